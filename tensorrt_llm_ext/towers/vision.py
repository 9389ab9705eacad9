# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""What the vision towers over patch grids share: items, layout, and the captured region.

A tower is patch embedding, positions, packed blocks and a tail. Pictures and videos ride on one
tower; a video is one segment per frame pair. Shape letters: T tokens (patches), C width, P patch
values, O output width, U merge unit (merge * merge), K taps.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from functools import cached_property
from typing import Any, Literal, Protocol, cast

import numpy as np
import torch
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt
from torch import nn

from ..graphs.adapter import EncoderGraphTensorSpec, PackedEncoderGraphIOAdapter, Tensors
from ..graphs.layout import EncoderItem
from ..ops.packed_metadata import PackedAttnMetadata
from ..ops.taps import add_taps_
from .checkpoint import DiskTensor, DiskTensors, disk_tensors_of
from .grid import patch_positions, position_taps, repeated
from .items import check_float_tensor, check_keys
from .mixin import MultimodalEncoderMixin
from .output import ItemOutput
from .packed_blocks import PackedBlocks
from .packed_vit import AxialRope, PackedViTConfig

_KEYS = frozenset({"pixel_values", "grid_thw"})


class AxialRopeParameters(BaseModel):
    """As transformers 5 writes them; published checkpoints have none."""

    rope_theta: PositiveFloat | None = None
    rope_type: Literal["axial", "default"] = Field(
        "axial", validation_alias=AliasChoices("rope_type", "type")
    )


class PatchConfig(BaseModel):
    """Sizes of patch rows; other keys are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    in_channels: PositiveInt = 3
    patch_size: PositiveInt = 16
    temporal_patch_size: PositiveInt = 2
    spatial_merge_size: PositiveInt = 2

    @cached_property
    def patch_dim(self) -> int:
        """P: values of one row of ``pixel_values`` (channel, frame, y, x)."""
        return self.in_channels * self.temporal_patch_size * self.patch_size**2

    @property
    def merge_unit(self) -> int:
        """U: patches that become one output row."""
        return self.spatial_merge_size**2


class PatchGridConfig(PatchConfig):
    """Keys of ``vision_config`` that all patch-grid towers have; others are ignored."""

    depth: PositiveInt
    hidden_size: PositiveInt
    num_heads: PositiveInt
    intermediate_size: PositiveInt
    out_hidden_size: PositiveInt
    rope_theta: PositiveFloat = 10000.0
    rope_parameters: AxialRopeParameters | None = Field(
        None, validation_alias=AliasChoices("rope_parameters", "rope_scaling")
    )

    @property
    def rope_base(self) -> float:
        """Base of the rotary embedding, wherever it stands."""
        return (self.rope_parameters and self.rope_parameters.rope_theta) or self.rope_theta


class GridTower(MultimodalEncoderMixin, nn.Module):
    """Base of the towers whose items are patch rows and a grid.

    An item is ``{"pixel_values": float [t * h * w, P], "grid_thw": (t, h, w)}``: rows in
    merge-block order, h and w in patches; every frame pair is a segment. Its output has
    ``features`` [t * h * w / U, O] and ``deepstack``, a list of tensors of the same shape (empty
    for most towers), in the order of the blocks they leave.
    """

    encoder_cuda_graph_modality = "image"
    num_deepstack = 0
    out_hidden_size: int
    config: PatchConfig

    @property
    def spatial_merge_size(self) -> int:
        """Side of the square of patches that becomes one output row."""
        return self.config.spatial_merge_size

    def layout_specs(self) -> dict[str, EncoderGraphTensorSpec]:
        """Inputs that depend on the grid alone."""
        return {"positions": EncoderGraphTensorSpec((2,), torch.int32)}

    def frame_layout(self, height: int, width: int) -> dict[str, np.ndarray]:
        """These inputs for a frame of height x width patches, [height * width, n] each."""
        return {"positions": patch_positions(height, width, self.spatial_merge_size)}

    def make_io_adapter(self) -> PackedEncoderGraphIOAdapter:
        """See the mixin."""
        return PackedEncoderGraphIOAdapter(**self.io_specs())

    def io_specs(self) -> dict[str, Any]:
        """Arguments of the adapter."""
        c, spec = self.config, EncoderGraphTensorSpec
        merged = spec((self.out_hidden_size,), self.dtype, c.merge_unit)
        deepstack = dict.fromkeys(self._deepstack_names, merged)
        attention = self.attention(captured=True)
        return {
            "row_specs": {"pixel_values": spec((c.patch_dim,), self.dtype)},
            "layout_specs": self.layout_specs(),
            "output_specs": {"features": merged, **deepstack},
            "build_layout": self._build_layout,
            "unit": c.merge_unit,
            "bakes_max_segment_len": attention.bakes_max_segment_len,
            "short_segment_len": attention.short_segment_len,
        }

    def _build_layout(
        self, layout: Hashable, first_segment: int, num_segments: int
    ) -> dict[str, np.ndarray]:
        """Every frame pair of an item has the same layout."""
        frame = self.frame_layout(*cast(tuple[int, int], layout))
        return {name: repeated(array, num_segments) for name, array in frame.items()}

    def pack_item(self, item: Mapping[str, Any]) -> EncoderItem:
        """See the class and the mixin."""
        pixels, (t, h, w) = checked_grid_item(item, self.config)
        return EncoderItem((h * w,) * t, {"pixel_values": pixels}, (h, w))

    def make_output(self, item: EncoderItem, tensors: Tensors) -> ItemOutput:
        """See the class."""
        deepstack = [tensors[name] for name in self._deepstack_names]
        return ItemOutput(features=tensors["features"], deepstack=deepstack)

    @cached_property
    def _deepstack_names(self) -> tuple[str, ...]:
        return tuple(f"deepstack_{i}" for i in range(self.num_deepstack))


class PatchGridTower(GridTower):
    """Base of the towers built from packed blocks: embedding, positions, blocks, tail.

    Attributes:
        disk_renames: Patterns in parameter names that are called otherwise on disk, see
            ``checkpoint.disk_tensors_of``.
        num_taps: K: rows of the position table that a patch reads; 0 without a table.
    """

    disk_renames: Mapping[str, str | tuple[str, ...]] = {}
    num_taps = 0
    config: PatchGridConfig

    def __init__(self, config: PatchGridConfig, vit: PackedViTConfig) -> None:
        """Makes patch embedding, rope and blocks; weights come from ``load_tower``."""
        super().__init__()
        self.config = config
        self.out_hidden_size = config.out_hidden_size
        self.patch_embed = nn.ModuleDict({"proj": nn.Linear(config.patch_dim, config.hidden_size)})
        self.rope = None if vit.rope_theta is None else AxialRope(vit.head_dim, vit.rope_theta)
        self.blocks = PackedBlocks(vit)

    # ---- what a tower fills in -------------------------------------------------------------

    def position_taps(self, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the position table and their weights for a frame, [height * width, K] each."""
        raise NotImplementedError(f"{type(self).__name__} reads no position table")

    def position_table(self) -> torch.Tensor:
        """The position table.

        Returns:
            [rows, C], dtype of the weights.
        """
        raise NotImplementedError(f"{type(self).__name__} has no position table")

    def embed(self, pixels: torch.Tensor) -> torch.Tensor:
        """Patch rows to hidden states.

        Args:
            pixels: [T, P], dtype of the weights.

        Returns:
            [T, C], dtype of the weights, before positions.
        """
        return cast(torch.Tensor, self.patch_embed["proj"](pixels))

    @property
    def taps(self) -> tuple[int, ...]:
        """Blocks that a deepstack output leaves."""
        return ()

    def tap(self, index: int, x: torch.Tensor) -> torch.Tensor:
        """Deepstack output after a block.

        Args:
            index: The block, one of ``taps``.
            x: Its output [T, C], dtype of the weights.

        Returns:
            [T / U, O], dtype of the weights.
        """
        raise NotImplementedError(f"{type(self).__name__} has no deepstack outputs")

    def tail(self, x: torch.Tensor) -> torch.Tensor:
        """Hidden states to features.

        Args:
            x: Output of the last block [T, C], dtype of the weights.

        Returns:
            [T / U, O], dtype of the weights.
        """
        raise NotImplementedError

    # ---- the mixin's contract --------------------------------------------------------------

    def disk_tensors(self) -> DiskTensors:
        """See the mixin; the patch embedding is a convolution on disk."""
        disk = disk_tensors_of(self, self.disk_renames)
        name, c = "patch_embed.proj.weight", self.config
        kernel = (c.in_channels, c.temporal_patch_size, c.patch_size, c.patch_size)
        # Its kernel is its stride, so it is one product per patch row.
        disk[name] = (DiskTensor(name, (c.hidden_size, *kernel)),)
        return disk

    def layout_specs(self) -> dict[str, EncoderGraphTensorSpec]:
        """See the base class: positions for rope, taps for a table."""
        spec = EncoderGraphTensorSpec
        specs = {} if self.rope is None else super().layout_specs()
        if self.num_taps:
            specs["table_rows"] = spec((self.num_taps,), torch.int32)
            specs["table_weights"] = spec((self.num_taps,), torch.float32)
        return specs

    def frame_layout(self, height: int, width: int) -> dict[str, np.ndarray]:
        """See the base class."""
        frame = {} if self.rope is None else super().frame_layout(height, width)
        if self.num_taps:
            frame["table_rows"], frame["table_weights"] = self.position_taps(height, width)
        return frame

    def encoder_forward(
        self, inputs: Mapping[str, torch.Tensor], metadata: PackedAttnMetadata
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Patch rows to features, deepstack outputs first.

        Args:
            inputs: ``pixel_values`` [T, P] dtype of the weights; as the tower has them
                ``positions`` int32 [T, 2], ``table_rows`` int32 [T, K], ``table_weights`` fp32
                [T, K].
            metadata: Layout of the segments.

        Yields:
            ``deepstack_{i}`` and ``features``, [T / U, O] each, dtype of the weights.
        """
        x = self.embed(inputs["pixel_values"])
        if self.num_taps:
            add_taps_(x, self.position_table(), inputs["table_rows"], inputs["table_weights"])
        angles = None if self.rope is None else self.rope(inputs["positions"])
        found = self.blocks.run(x, angles, metadata, fused=self.fused_layers, taps=self.taps)
        yield from self.outputs_of(found, x.shape[0])

    def outputs_of(
        self, found: Iterator[torch.Tensor], num_tokens: int
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Outputs of the region from what leaves its blocks.

        Args:
            found: Outputs of the blocks of ``taps``, ascending, and of the last one: [T, C] each,
                dtype of the weights, valid until the next one is asked for.
            num_tokens: T.

        Yields:
            ``deepstack_{i}`` and ``features``, [T / U, O] each, dtype of the weights.
        """
        # Without names, which would keep them while the next blocks run.
        for ordinal, index in enumerate(sorted(self.taps)):
            yield f"deepstack_{ordinal}", self.tap(index, next(found))
        yield "features", self.tail(next(found))

    def table_taps(
        self, height: int, width: int, rows: int, **how: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        """Taps into a square table of a number of rows, see ``grid.position_taps``."""
        merge = self.config.spatial_merge_size
        return position_taps(height, width, round(rows**0.5), merge, **how)


class PatchRows(Protocol):
    """What the check of an item needs of a configuration."""

    @property
    def patch_dim(self) -> int:
        """P."""
        ...

    @property
    def spatial_merge_size(self) -> int:
        """Side of a merge block."""
        ...


def checked_grid_item(
    item: Mapping[str, Any], config: PatchRows
) -> tuple[torch.Tensor, tuple[int, int, int]]:
    """Rows and grid of an item.

    Args:
        item: ``pixel_values`` [t * h * w, P] of a float dtype, and ``grid_thw``.
        config: Of the tower.

    Returns:
        The rows as they are, [t * h * w, P] of a float dtype, and (t, h, w).

    Raises:
        ValueError: Something is missing, of the wrong kind or shape.
    """
    # What nearly every item is, is seen here: calls would take twice as long as the checks.
    if type(item) is not dict or item.keys() != _KEYS:
        check_keys(item, _KEYS)
    pixels, grid, merge = item["pixel_values"], item["grid_thw"], config.spatial_merge_size
    t, h, w = grid if type(grid) is tuple and len(grid) == 3 else (0, 0, 0)
    if not (type(t) is type(h) is type(w) is int and t > 0 and h > 0 and w > 0):
        t, h, w = _checked_grid(grid)
    if h % merge or w % merge:
        raise ValueError(f"grid_thw is {(t, h, w)}: h and w have to be multiples of {merge}")
    if not (isinstance(pixels, torch.Tensor) and pixels.dtype.is_floating_point):
        check_float_tensor("pixel_values", pixels)
    if pixels.shape != (t * h * w, config.patch_dim):
        raise ValueError(
            f"pixel_values is {list(pixels.shape)}; grid {(t, h, w)} needs "
            f"[{t * h * w}, {config.patch_dim}]"
        )
    return pixels, (t, h, w)


def _checked_grid(grid: Any) -> tuple[int, int, int]:
    if isinstance(grid, (torch.Tensor, np.ndarray)):
        if isinstance(grid, torch.Tensor) and grid.device.type != "cpu":
            raise ValueError("grid_thw is on the device; pass Python ints: reading it would wait")
        grid = grid.tolist()
    if not isinstance(grid, (tuple, list)) or len(grid) != 3 or not all(map(_is_count, grid)):
        raise ValueError(f"grid_thw is {grid}; expected three positive ints (t, h, w)")
    t, h, w = map(int, grid)
    return t, h, w


def _is_count(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and int(value) > 0
