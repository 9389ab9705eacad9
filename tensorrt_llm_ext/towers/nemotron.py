# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""RADIO as the encoder of Nemotron Omni: pixel shuffle and projector follow in the captured region.

A pixel shuffle by one half joins the patches of every 2 x 2 block. Patches are therefore put in
merge-block order, where that is a view, and the learned tokens behind them are filled up to whole
blocks; the tokens that fill up attend to nobody. Pixels come normalised. transformers'
``NemotronH_Omni_Reasoning_V3`` (from 5.20 on) is the oracle of the tests. Shape letters: T tokens,
C width, P patch values, O output width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field, PositiveInt
from torch import nn

from ..graphs.adapter import EncoderGraphTensorSpec, PackedEncoderGraphIOAdapter, Tensors
from ..graphs.buckets import Bucket
from ..graphs.layout import EncoderItem, SegmentRun
from ..ops.norm import apply_norm
from ..ops.packed_metadata import PackedAttnMetadata
from .checkpoint import DiskTensor, DiskTensors, parse_section
from .output import ItemOutput
from .radio import RadioConfig, RadioTower
from .registry import register_tower

_EPS = 1e-5


class NemotronVisionConfig(RadioConfig):
    """``vision_config`` of a Nemotron checkpoint; sizes that it leaves out are C-RADIO-H's."""

    hidden_size: PositiveInt = 1280
    num_hidden_layers: PositiveInt = 32
    num_attention_heads: PositiveInt = 16
    spatial_merge_size: int = 2

    @property
    def merge_unit(self) -> int:
        """Patches that become one output row."""
        return self.spatial_merge_size**2


class NemotronProjectorConfig(BaseModel):
    """Keys of a Nemotron config.json that the projector needs; others are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    class Text(BaseModel):
        """Of the language model."""

        model_config = ConfigDict(extra="ignore", frozen=True)

        hidden_size: PositiveInt
        num_nextn_predict_layers: int = 0

    projector_hidden_size: PositiveInt = 4096
    downsample_ratio: float = Field(0.5, ge=0.5, le=0.5)
    text_config: Text


class AlignedIOAdapter(PackedEncoderGraphIOAdapter):
    """Packed, and the last tokens of every segment are a segment of their own."""

    def __init__(self, *, filling: int, **specs: Any) -> None:
        """Takes the number of those tokens; the rest as in the base class."""
        super().__init__(**specs)
        self._filling = filling

    def num_segment_slots(self, bucket: Bucket) -> int:
        """Twice as many real segments."""
        return super().num_segment_slots(bucket) + bucket.max_segments

    def segment_lengths(
        self, items: Sequence[EncoderItem], runs: Sequence[SegmentRun]
    ) -> tuple[int, ...]:
        """Every segment without what fills it up, then that."""
        filling = self._filling
        whole = super().segment_lengths(items, runs)
        return tuple(part for n in whole for part in ((n - filling, filling) if filling else (n,)))


class NemotronVisionTower(RadioTower):
    """Patch rows to rows of the language model.

    An item is ``{"pixel_values": float [t * h * w, P], "grid_thw": (t, h, w)}``: normalised pixels,
    rows in raster order, h and w even; every frame is a picture of its own. Its output has
    ``features`` [t * h * w / 4, O], in raster order of the blocks.
    """

    config: NemotronVisionConfig
    disk_ignored = {  # noqa: RUF012
        **RadioTower.disk_ignored,
        r"input_conditioner\.norm_(mean|std)": None,
    }

    def __init__(self, config: NemotronVisionConfig, projector: NemotronProjectorConfig) -> None:
        """Makes the modules; weights come from ``load_tower``."""
        super().__init__(config, conditioned=False)
        width, joined = config.hidden_size, config.hidden_size * config.merge_unit
        text = projector.text_config
        self.final_norm: nn.LayerNorm | None = None
        if text.num_nextn_predict_layers > 0:
            self.final_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.projector_norm = nn.RMSNorm(joined, eps=_EPS)
        self.linear_1 = nn.Linear(joined, projector.projector_hidden_size, bias=False)
        self.linear_2 = nn.Linear(projector.projector_hidden_size, text.hidden_size, bias=False)

    @property
    def out_hidden_size(self) -> int:
        """O: width of the language model."""
        return self.linear_2.out_features

    def disk_tensors(self) -> DiskTensors:
        """See the mixin; the projector is not under the tower's prefix."""
        names = {
            "projector_norm": "mlp1.0",
            "linear_1": "mlp1.1",
            "linear_2": "mlp1.3",
            "final_norm": "vision_projector.vision_final_layernorm",
        }
        disk = super().disk_tensors()
        for name, parameter in self.named_parameters():
            module, _, leaf = name.rpartition(".")
            if module in names:
                shape = tuple(parameter.shape)
                disk[name] = (DiskTensor(f"{names[module]}.{leaf}", shape, absolute=True),)
        return disk

    def make_io_adapter(self) -> PackedEncoderGraphIOAdapter:
        """See the mixin."""
        c, spec = self.config, EncoderGraphTensorSpec
        attention = self.attention(captured=True)
        plain = super().make_io_adapter()
        return AlignedIOAdapter(
            filling=c.num_rowless - c.num_learned,
            row_specs=plain.row_specs,
            layout_specs=plain.layout_specs,
            output_specs={"features": spec((self.out_hidden_size,), self.dtype, c.merge_unit)},
            build_layout=self._build_layout,
            unit=c.merge_unit,
            rowless_tokens=c.num_rowless,
            bakes_max_segment_len=attention.bakes_max_segment_len,
            short_segment_len=attention.short_segment_len,
        )

    def pack_item(self, item: Mapping[str, Any]) -> EncoderItem:
        """See the class and the mixin; rows are put in merge-block order."""
        packed = super().pack_item(item)
        t, h, w = (int(n) for n in item["grid_thw"])
        rows = packed.rows["pixel_values"].view(t, h // 2, 2, w // 2, 2, -1).transpose(2, 3)
        blocks = {"pixel_values": rows.reshape(t * h * w, -1)}
        return EncoderItem(packed.segment_lengths, blocks, packed.layout)

    def encoder_forward(
        self, inputs: Mapping[str, torch.Tensor], metadata: PackedAttnMetadata
    ) -> dict[str, torch.Tensor]:
        """Patch rows to rows of the language model.

        Args:
            inputs: As in the base class: ``pixel_values`` [T, P] dtype of the weights and the
                layout, int32 and fp32 [T, k].
            metadata: Layout of the segments.

        Returns:
            ``features`` [T / 4, O], dtype of the weights.
        """
        x = super().encoder_forward(inputs, metadata)["hidden"]
        if self.final_norm is not None:
            x = apply_norm(self.final_norm, x)
        x = apply_norm(self.projector_norm, x.view(-1, self.linear_1.in_features))
        return {"features": self.linear_2(F.relu(self.linear_1(x)).square())}

    def make_output(self, item: EncoderItem, tensors: Tensors) -> ItemOutput:
        """See the class."""
        unit, frames = self.config.merge_unit, len(item.segment_lengths)
        rows = tensors["features"].view(frames, item.segment_lengths[0] // unit, -1)
        blocks = (item.segment_lengths[0] - self.config.num_rowless) // unit
        return ItemOutput(features=rows[:, :blocks].flatten(0, 1))


@register_tower("nemotron_h_omni", prefixes=("vision_model.radio_model.", "radio_model."))
def _nemotron_tower(config: Mapping[str, Any]) -> NemotronVisionTower:
    # Released checkpoints call the language model llm_config.
    text = config.get("text_config") or config.get("llm_config")
    projector = parse_section(NemotronProjectorConfig, {**config, "text_config": text})
    return NemotronVisionTower(
        parse_section(NemotronVisionConfig, config, "vision_config"), projector
    )
