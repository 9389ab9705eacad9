# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""RADIO: C-RADIO v2, v3 and v4 on their own.

Patches in raster order, a position table resampled to each grid, and a few learned tokens a picture
(summaries and registers). They follow the patches here, where published code puts them in front:
attention does not care, and rows stay aligned. transformers' ``RadioModel`` is the oracle of the
tests. Shape letters: T tokens, C width, P patch values, R learned tokens a picture.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)
from torch import nn

from ..graphs.adapter import EncoderGraphTensorSpec, PackedEncoderGraphIOAdapter, Tensors
from ..graphs.layout import EncoderItem
from ..ops.packed_metadata import PackedAttnMetadata
from ..ops.taps import add_taps_
from .checkpoint import DiskTensor, DiskTensors, disk_tensors_of, parse_section
from .grid import position_taps, repeated
from .mixin import MultimodalEncoderMixin
from .output import ItemOutput
from .packed_blocks import PackedBlocks
from .packed_vit import PackedViTConfig
from .registry import register_tower
from .vision import checked_grid_item


class RadioConfig(BaseModel):
    """Keys of a RADIO config.json; others are ignored.

    ``align_corners`` is ours: how the position table is resampled. The weights were trained
    without; the remote code of C-RADIOv2-H resamples with.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    hidden_size: PositiveInt
    num_hidden_layers: PositiveInt
    num_attention_heads: PositiveInt
    mlp_ratio: PositiveFloat = 4.0
    hidden_act: str = "gelu"
    layer_norm_eps: PositiveFloat = 1e-6
    qkv_bias: bool = True
    use_swiglu_ffn: bool = False
    num_channels: PositiveInt = 3
    patch_size: PositiveInt = 16
    max_img_size: PositiveInt = 2048
    num_cls_tokens: PositiveInt = 3
    num_registers: NonNegativeInt = 7
    summary_idxs: tuple[int, ...] = Field((0, 1), min_length=1)
    norm_mean: tuple[float, ...] = (0.48145466, 0.4578275, 0.40821073)
    norm_std: tuple[float, ...] = (0.26862954, 0.26130258, 0.27577711)
    align_corners: bool = False

    temporal_patch_size: int = 1
    spatial_merge_size: int = 1

    @model_validator(mode="after")
    def _check_summaries(self) -> RadioConfig:
        if not all(0 <= i < self.num_cls_tokens for i in self.summary_idxs):
            raise ValueError(
                f"summary_idxs {list(self.summary_idxs)} have to be in 0..{self.num_cls_tokens - 1}"
            )
        return self

    @cached_property
    def patch_dim(self) -> int:
        """P: values of one row of ``pixel_values`` (channel, y, x)."""
        return self.num_channels * self.patch_size**2

    @property
    def num_learned(self) -> int:
        """R."""
        return self.num_cls_tokens + self.num_registers

    @property
    def num_rowless(self) -> int:
        """Tokens after the patches of a picture: R, filled up to whole merge blocks."""
        return self.num_learned + -self.num_learned % self.spatial_merge_size**2

    @property
    def table_side(self) -> int:
        """Side of the square position table."""
        return self.max_img_size // self.patch_size


class RadioTower(MultimodalEncoderMixin, nn.Module):
    """Patch rows to dense features and a summary.

    An item is ``{"pixel_values": float [t * h * w, P], "grid_thw": (t, h, w)}``: pixels 0..1, rows
    in raster order; every frame is a picture of its own. Its output has ``features``
    [t * h * w, C] and ``summary`` [t, summaries * C].
    """

    encoder_cuda_graph_modality = "image"
    disk_ignored = {  # noqa: RUF012
        r"summary_idxs": None,
        r"model\.patch_generator\.video_embedder\.weight": None,
        r"model\.blocks\.\d+\.layer_scale[12]\.lambda1": 1.0,
    }

    def __init__(self, config: RadioConfig, *, conditioned: bool = True) -> None:
        """Makes the modules; weights come from ``load_tower``.

        Args:
            config: Sizes.
            conditioned: The tower normalises its pixels itself.
        """
        super().__init__()
        if config.use_swiglu_ffn or not config.qkv_bias:
            raise ValueError("RADIO with use_swiglu_ffn or without qkv_bias is not supported")
        self.config = config
        width, channels = config.hidden_size, config.num_channels
        self.conditioned = conditioned
        if conditioned:
            self.norm_mean = nn.Parameter(torch.empty(channels, 1, 1))
            self.norm_std = nn.Parameter(torch.empty(channels, 1, 1))
        self.patch_embed = nn.Linear(config.patch_dim, width, bias=False)
        self.pos_embed = nn.Embedding(config.table_side**2, width)
        self.learned = nn.Embedding(config.num_learned, width)
        vit = PackedViTConfig(
            depth=config.num_hidden_layers,
            width=width,
            num_heads=config.num_attention_heads,
            mlp_width=int(width * config.mlp_ratio),
            activation=config.hidden_act,
            norm_eps=config.layer_norm_eps,
            rope_theta=None,
        )
        self.blocks = PackedBlocks(vit)

    def disk_tensors(self) -> DiskTensors:
        """See the mixin."""
        generator = "model.patch_generator"
        disk = disk_tensors_of(
            self,
            {
                r"^norm_": "input_conditioner.norm_",
                r"^blocks\.": "model.blocks.",
                r"\.linear_fc": ".fc",
                r"^patch_embed\.": f"{generator}.embedder.",
                r"^learned\.weight": f"{generator}.cls_token.token",
                r"^pos_embed\.weight": f"{generator}.pos_embed",
            },
        )
        table = tuple(self.pos_embed.weight.shape)
        disk["pos_embed.weight"] = (DiskTensor(f"{generator}.pos_embed", (1, *table)),)
        return disk

    def initial_value(self, name: str) -> torch.Tensor | None:
        """See the mixin.

        Returns:
            Mean and deviation of the pixels, fp32 [channels, 1, 1]; None for the weights.
        """
        value = {"norm_mean": self.config.norm_mean, "norm_std": self.config.norm_std}.get(name)
        return None if value is None else torch.tensor(value).view(-1, 1, 1)

    def make_io_adapter(self) -> PackedEncoderGraphIOAdapter:
        """See the mixin."""
        c, spec = self.config, EncoderGraphTensorSpec
        attention = self.attention(captured=True)
        return PackedEncoderGraphIOAdapter(
            row_specs={"pixel_values": spec((c.patch_dim,), self.dtype)},
            layout_specs={
                "table_rows": spec((4,), torch.int32),
                "table_weights": spec((4,), torch.float32),
                "learned_row": spec((1,), torch.int32),
            },
            output_specs={"hidden": spec((c.hidden_size,), self.dtype)},
            build_layout=self._build_layout,
            rowless_tokens=c.num_learned,
            bakes_max_segment_len=attention.bakes_max_segment_len,
            short_segment_len=attention.short_segment_len,
        )

    def _build_layout(
        self, layout: Hashable, first_segment: int, num_segments: int
    ) -> dict[str, np.ndarray]:
        """Patches read the position table, learned tokens a row of theirs (-1: none)."""
        height, width = cast(tuple[int, int], layout)
        c = self.config
        rows, weights = position_taps(
            height,
            width,
            c.table_side,
            c.spatial_merge_size,
            align_corners=c.align_corners,
            square=True,
        )
        blank, none = np.zeros((c.num_rowless, 4)), np.full((len(rows), 1), -1)
        learned = np.arange(c.num_rowless)[:, None] % c.num_learned  # what fills up is not read
        picture = {
            "table_rows": np.concatenate([rows, blank.astype(np.int32)]),
            "table_weights": np.concatenate([weights, blank.astype(np.float32)]),
            "learned_row": np.concatenate([none, learned]).astype(np.int32),
        }
        return {name: repeated(array, num_segments) for name, array in picture.items()}

    def pack_item(self, item: Mapping[str, Any]) -> EncoderItem:
        """See the class and the mixin."""
        pixels, (t, h, w) = checked_grid_item(item, self.config)
        return EncoderItem((h * w + self.config.num_rowless,) * t, {"pixel_values": pixels}, (h, w))

    def encoder_forward(
        self, inputs: Mapping[str, torch.Tensor], metadata: PackedAttnMetadata
    ) -> dict[str, torch.Tensor]:
        """Patch rows to hidden states.

        Args:
            inputs: ``pixel_values`` [T, P] dtype of the weights, ``table_rows`` int32 [T, 4],
                ``table_weights`` fp32 [T, 4], ``learned_row`` int32 [T, 1].
            metadata: Layout of the segments.

        Returns:
            ``hidden`` [T, C], dtype of the weights.
        """
        is_patch = inputs["learned_row"] < 0  # [T, 1]
        x = self.patch_embed(self._condition(inputs["pixel_values"]))  # [T, C]
        add_taps_(x, self.pos_embed.weight, inputs["table_rows"], inputs["table_weights"])
        learned = self.learned(inputs["learned_row"][:, 0].clamp(min=0))
        x = torch.where(is_patch, x, learned)
        (x,) = self.blocks.run(x, None, metadata, fused=self.fused_layers)
        return {"hidden": x}

    def _condition(self, pixels: torch.Tensor) -> torch.Tensor:
        """Normalises pixels per channel in fp32: [T, P] -> [T, P], dtype of pixels."""
        if not self.conditioned:
            return pixels
        channels = pixels.float().unflatten(1, (self.config.num_channels, -1))
        mean, std = self.norm_mean.float().flatten(1), self.norm_std.float().flatten(1)
        return ((channels - mean) / std).flatten(1).to(pixels.dtype)

    def make_output(self, item: EncoderItem, tensors: Tensors) -> ItemOutput:
        """See the class."""
        frames = tensors["hidden"].view(len(item.segment_lengths), item.segment_lengths[0], -1)
        patches = item.segment_lengths[0] - self.config.num_learned
        summary = [frames[:, patches + i] for i in self.config.summary_idxs]
        return ItemOutput(
            features=frames[:, :patches].flatten(0, 1), summary=torch.cat(summary, dim=1)
        )


@register_tower("radio", prefixes=("radio_model.", "vision_model.radio_model."))
def _radio_tower(config: Mapping[str, Any]) -> RadioTower:
    return RadioTower(parse_section(RadioConfig, config))
