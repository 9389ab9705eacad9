# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The vision tower of Qwen3-VL (dense and MoE models; Qwen3.5 is the same without deepstack).

Pictures and videos ride on one tower; a video is one segment per frame pair. Maths and checkpoint
keys follow the published checkpoints and transformers' ``Qwen3VLVisionModel``, which is the oracle
of the tests. Shape letters: T tokens (patches), C width, P patch values, O output width, U merge
unit (merge * merge).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Annotated, Any, Literal, cast

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    model_validator,
)
from torch import nn

from ..graphs.adapter import EncoderGraphTensorSpec, PackedEncoderGraphIOAdapter, Tensors
from ..graphs.layout import EncoderItem
from ..ops.attention import PackedAttnMetadata, attention_for
from .checkpoint import DiskTensor
from .grid import bilinear_taps, patch_positions
from .mixin import MultimodalEncoderMixin
from .output import ItemOutput
from .packed_vit import AxialRope, PackedBlock, PackedViTConfig
from .registry import register_tower


def _square(value: int) -> int:
    if round(value**0.5) ** 2 != value:
        raise ValueError(f"{value} position embeddings do not form a square table")
    return value


class AxialRopeParameters(BaseModel):
    """As transformers 5 writes them; published checkpoints have none."""

    rope_theta: PositiveFloat | None = None
    rope_type: Literal["axial", "default"] = Field(
        "axial", validation_alias=AliasChoices("rope_type", "type")
    )


class Qwen3VLVisionConfig(BaseModel):
    """``vision_config`` of a checkpoint's config.json; keys without use here are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    depth: PositiveInt
    hidden_size: PositiveInt
    num_heads: PositiveInt
    intermediate_size: PositiveInt
    out_hidden_size: PositiveInt
    deepstack_visual_indexes: tuple[int, ...] = ()
    num_position_embeddings: Annotated[PositiveInt, AfterValidator(_square)] = 2304
    in_channels: PositiveInt = 3
    patch_size: PositiveInt = 16
    temporal_patch_size: PositiveInt = 2
    spatial_merge_size: PositiveInt = 2
    hidden_act: str = "gelu_pytorch_tanh"
    rope_theta: PositiveFloat = 10000.0
    rope_parameters: AxialRopeParameters | None = Field(
        None, validation_alias=AliasChoices("rope_parameters", "rope_scaling")
    )

    @model_validator(mode="after")
    def _check_deepstack(self) -> Qwen3VLVisionConfig:
        taps = self.deepstack_visual_indexes
        if len(set(taps)) != len(taps) or any(not 0 <= i < self.depth for i in taps):
            raise ValueError(
                f"deepstack_visual_indexes {list(taps)} have to be different blocks in "
                f"0..{self.depth - 1}"
            )
        return self

    @property
    def patch_dim(self) -> int:
        """P: values of one row of ``pixel_values`` (channel, frame, y, x)."""
        return self.in_channels * self.temporal_patch_size * self.patch_size**2

    @property
    def merge_unit(self) -> int:
        """U: patches that become one output row."""
        return self.spatial_merge_size**2

    def packed_vit(self) -> PackedViTConfig:
        """Knobs of the shared transformer."""
        return PackedViTConfig(
            depth=self.depth,
            width=self.hidden_size,
            num_heads=self.num_heads,
            mlp_width=self.intermediate_size,
            activation=self.hidden_act,
            rope_theta=(self.rope_parameters and self.rope_parameters.rope_theta)
            or self.rope_theta,
        )


class _ModelConfig(BaseModel):
    vision_config: Qwen3VLVisionConfig


class PatchMerger(nn.Module):
    """Joins U neighbouring rows and projects them; the norm comes before or after the join."""

    def __init__(self, config: Qwen3VLVisionConfig, *, norm_after_join: bool) -> None:
        """Makes the layers."""
        super().__init__()
        joined = config.hidden_size * config.merge_unit
        self.norm_after_join = norm_after_join
        self.norm = nn.LayerNorm(joined if norm_after_join else config.hidden_size, eps=1e-6)
        self.linear_fc1 = nn.Linear(joined, joined)
        self.linear_fc2 = nn.Linear(joined, config.out_hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, C] -> [T / U, O], dtype of the weights."""
        joined = self.linear_fc1.in_features
        x = self.norm(x.view(-1, joined)) if self.norm_after_join else self.norm(x).view(-1, joined)
        return self.linear_fc2(F.gelu(self.linear_fc1(x)))


class Qwen3VLVisionTower(MultimodalEncoderMixin, nn.Module):
    """Patch rows to merged features and deepstack features, all of it in the captured region.

    An item is ``{"pixel_values": float [t * h * w, P], "grid_thw": (t, h, w)}``: rows in
    merge-block order, h and w in patches. Its output has ``features`` [t * h * w / U, O] and
    ``deepstack``, a list of tensors of the same shape, in the order of the blocks they leave.
    """

    encoder_cuda_graph_modality = "image"

    def __init__(self, config: Qwen3VLVisionConfig) -> None:
        """Makes the modules; weights come from ``load_tower``."""
        super().__init__()
        self.config = config
        vit = config.packed_vit()
        self.patch_embed = nn.ModuleDict({"proj": nn.Linear(config.patch_dim, config.hidden_size)})
        self.pos_embed = nn.Embedding(config.num_position_embeddings, config.hidden_size)
        self.rope = AxialRope(vit)
        self.blocks = nn.ModuleList(PackedBlock(vit) for _ in range(config.depth))
        self.merger = PatchMerger(config, norm_after_join=False)
        self.deepstack_merger_list = nn.ModuleList(
            PatchMerger(config, norm_after_join=True) for _ in config.deepstack_visual_indexes
        )

    @property
    def spatial_merge_size(self) -> int:
        """Side of the square of patches that becomes one output row."""
        return self.config.spatial_merge_size

    @property
    def out_hidden_size(self) -> int:
        """O: width of every output."""
        return self.config.out_hidden_size

    @property
    def num_deepstack(self) -> int:
        """Deepstack outputs per item."""
        return len(self.config.deepstack_visual_indexes)

    def disk_tensors(self) -> dict[str, DiskTensor]:
        """See the mixin; keys are the module's own names."""
        disk = super().disk_tensors()
        # A convolution on disk: its kernel is its stride, so it is one product per patch row.
        name, c = "patch_embed.proj.weight", self.config
        kernel = (c.in_channels, c.temporal_patch_size, c.patch_size, c.patch_size)
        disk[name] = DiskTensor(name, (c.hidden_size, *kernel))
        return disk

    def make_io_adapter(self) -> PackedEncoderGraphIOAdapter:
        """See the mixin."""
        c, spec = self.config, EncoderGraphTensorSpec
        merged = spec((c.out_hidden_size,), self.dtype, c.merge_unit)
        deepstack = {f"deepstack_{i}": merged for i in range(self.num_deepstack)}
        attention = attention_for(self.device, self.dtype, captured=True)
        return PackedEncoderGraphIOAdapter(
            row_specs={"pixel_values": spec((c.patch_dim,), self.dtype)},
            layout_specs={
                "positions": spec((2,), torch.int32),
                "pos_embed_rows": spec((4,), torch.int32),
                "pos_embed_weights": spec((4,), torch.float32),
            },
            output_specs={"features": merged, **deepstack},
            build_layout=self._build_layout,
            unit=c.merge_unit,
            bakes_max_segment_len=attention.bakes_max_segment_len,
        )

    def _build_layout(
        self, layout: Hashable, first_segment: int, num_segments: int
    ) -> dict[str, np.ndarray]:
        """Every frame pair of an item has the same layout."""
        height, width = cast(tuple[int, int], layout)
        merge = self.config.spatial_merge_size
        side = round(self.config.num_position_embeddings**0.5)
        rows, weights = bilinear_taps(height, width, side, merge)
        frame = {
            "positions": patch_positions(height, width, merge),
            "pos_embed_rows": rows,
            "pos_embed_weights": weights,
        }
        return {name: np.tile(array, (num_segments, 1)) for name, array in frame.items()}

    def pack_item(self, item: Mapping[str, Any]) -> EncoderItem:
        """See the class and the mixin."""
        pixels, (t, h, w) = _checked_item(item, self.config)
        return EncoderItem((h * w,) * t, {"pixel_values": pixels}, (h, w))

    def encoder_forward(
        self, inputs: Mapping[str, torch.Tensor], metadata: PackedAttnMetadata
    ) -> dict[str, torch.Tensor]:
        """Patch rows to features.

        Args:
            inputs: ``pixel_values`` [T, P] dtype of the weights, ``positions`` int32 [T, 2],
                ``pos_embed_rows`` int32 [T, 4], ``pos_embed_weights`` fp32 [T, 4].
            metadata: Layout of the segments.

        Returns:
            ``features`` and ``deepstack_{i}``, [T / U, O] each, dtype of the weights.
        """
        pixels = inputs["pixel_values"]
        x = self.patch_embed["proj"](pixels)  # [T, C]
        x = x + self._position_embedding(inputs).to(x.dtype)
        rope = self.rope(inputs["positions"])
        prepared = metadata.attention.prepare(metadata, pixels.shape[0])
        outputs: dict[str, torch.Tensor] = {}
        taps = self.config.deepstack_visual_indexes
        for index, block in enumerate(self.blocks):
            x = block(x, rope, metadata, prepared)
            if index in taps:
                merger = self.deepstack_merger_list[taps.index(index)]
                outputs[f"deepstack_{len(outputs)}"] = merger(x)
        outputs["features"] = self.merger(x)
        return outputs

    def _position_embedding(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Weighted sum of four rows of the table, fp32 [T, C], one tap at a time."""
        rows, weights = inputs["pos_embed_rows"], inputs["pos_embed_weights"]
        total = self.pos_embed(rows[:, 0]).float() * weights[:, 0:1]
        for tap in range(1, rows.shape[1]):
            total.addcmul_(self.pos_embed(rows[:, tap]).float(), weights[:, tap : tap + 1])
        return total

    def make_output(self, tensors: Tensors) -> ItemOutput:
        """See the class."""
        deepstack = [tensors[f"deepstack_{i}"] for i in range(self.num_deepstack)]
        return ItemOutput(features=tensors["features"], deepstack=deepstack)


def _checked_item(
    item: Mapping[str, Any], config: Qwen3VLVisionConfig
) -> tuple[torch.Tensor, tuple[int, int, int]]:
    if not isinstance(item, Mapping) or set(item) != {"pixel_values", "grid_thw"}:
        found = list(item) if isinstance(item, Mapping) else f"those of a {type(item).__name__}"
        raise ValueError(f"keys are {found}; expected ['grid_thw', 'pixel_values']")
    pixels, merge = item["pixel_values"], config.spatial_merge_size
    grid = item["grid_thw"]
    if isinstance(grid, (torch.Tensor, np.ndarray)):
        if isinstance(grid, torch.Tensor) and grid.device.type != "cpu":
            raise ValueError("grid_thw is on the device; pass Python ints: reading it would wait")
        grid = grid.tolist()
    if not isinstance(grid, (tuple, list)) or len(grid) != 3 or not all(map(_is_count, grid)):
        raise ValueError(f"grid_thw is {grid}; expected three positive ints (t, h, w)")
    t, h, w = map(int, grid)
    if h % merge or w % merge:
        raise ValueError(f"grid_thw is {(t, h, w)}: h and w have to be multiples of {merge}")
    if not isinstance(pixels, torch.Tensor) or not pixels.is_floating_point():
        kind = pixels.dtype if isinstance(pixels, torch.Tensor) else f"a {type(pixels).__name__}"
        raise ValueError(f"pixel_values is {kind}; expected a floating-point tensor")
    if tuple(pixels.shape) != (t * h * w, config.patch_dim):
        raise ValueError(
            f"pixel_values is {list(pixels.shape)}; grid {(t, h, w)} needs "
            f"[{t * h * w}, {config.patch_dim}]"
        )
    return pixels, (t, h, w)


def _is_count(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and int(value) > 0


@register_tower("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", prefixes=("model.visual.",))
def _qwen3_vl_tower(config: Mapping[str, Any]) -> Qwen3VLVisionTower:
    return Qwen3VLVisionTower(_ModelConfig.model_validate(dict(config)).vision_config)
