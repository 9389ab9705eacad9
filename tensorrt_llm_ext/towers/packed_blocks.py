# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The blocks of a tower, one after the other: as modules, or fused.

Fused, a block is 8 launches (7 without rope): norm, qkv, rope, attention, output projection, norm,
first and second MLP layer; one more for an activation that cuBLAS does not have. The residual
stream is updated by the matrix products themselves and lacks their biases (``ops.norm``). Beside it
two buffers are alive at most. Shape letters: T tokens, C width, F MLP width, H heads, D head size.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from typing import cast

import torch
from torch import nn

from ..ops.activation import gate_
from ..ops.kernels import has_kernels
from ..ops.linear import accumulate_, project, project_and_activate
from ..ops.norm import BiasSum, complete, normalise
from ..ops.packed_metadata import PackedAttnMetadata
from ..ops.rope import AxialAngles, HeadNorm, RotaryTables, turn_
from .packed_vit import PackedBlock, PackedViTConfig, part_of

_MLPS_AT_ONCE = 8
_SLICE_ROWS = 8192  # in two slices, products of so many rows take 4 % more (H200)
_SLICE_BYTES = 108 << 20  # of an MLP's rows: what queries, keys and values of 16384 tokens take
_ROW_STEP = 256  # of slices: whole tiles of a matrix product


class PackedBlocks(nn.ModuleList):
    """``depth`` blocks."""

    def __init__(self, config: PackedViTConfig) -> None:
        """Makes the blocks."""
        super().__init__(PackedBlock(config) for _ in range(config.depth))
        self.config = config

    def lay_out_weights(self, device: torch.device) -> None:
        """See ``PackedMLP.lay_out_weights``; only where blocks are fused.

        Args:
            device: Where the weights are, or are going to be if they are on device meta.
        """
        mlps = [cast(PackedBlock, block).mlp for block in self]
        mlps = [m for m in mlps if m.room_needed and has_kernels(device, m.linear_fc1.weight.dtype)]
        for start in range(0, len(mlps), _MLPS_AT_ONCE):
            group = mlps[start : start + _MLPS_AT_ONCE]
            sizes = [mlp.room_needed for mlp in group]
            # Alone, each would take up to 2 MiB more: the allocator rounds large blocks.
            dtype = group[0].linear_fc1.weight.dtype
            room = torch.zeros(sum(sizes), dtype=dtype, device=device)
            for mlp, part in zip(group, room.split(sizes), strict=True):
                mlp.lay_out_weights(part)

    def run(
        self,
        x: torch.Tensor,
        angles: AxialAngles | None,
        metadata: PackedAttnMetadata,
        *,
        fused: bool | None = None,
        taps: Collection[int] = (),
    ) -> Iterator[torch.Tensor]:
        """All blocks.

        Args:
            x: [T, C], contiguous, dtype of the weights; overwritten when fused.
            angles: Of rope, for T tokens, or None.
            metadata: Layout of the batch.
            fused: Whether to fuse; None: where there are kernels for it.
            taps: Blocks whose output is wanted too.

        Yields:
            Outputs of those blocks in their order, then of the last: [T, C] each, dtype of the
            weights, valid until the next one is asked for.
        """
        if has_kernels(x.device, x.dtype) if fused is None else fused:
            yield from _FusedRun(self.config, x, angles, metadata).run(self, taps)
            return
        tables = None if angles is None else angles.tables()
        prepared = metadata.attention.prepare(metadata, x.shape[0])
        for index, block in enumerate(self):
            x = block(x, tables, metadata, prepared)
            if self.config.clamp_fp16:
                x = clamp_fp16(x)
            if index in taps:
                yield x
        yield x


def clamp_fp16(x: torch.Tensor) -> torch.Tensor:
    """Keeps fp16 finite.

    Args:
        x: [T, C], any float dtype.

    Returns:
        x [T, C], its own dtype: in fp16 clamped in place to 1000 below the largest number.
    """
    if x.dtype == torch.float16:
        limit = torch.finfo(x.dtype).max - 1000
        x.clamp_(-limit, limit)
    return x


def _rows_of_slices(tokens: int, count: int) -> int:
    return min(tokens, -(-tokens // count // _ROW_STEP) * _ROW_STEP)


def _slices(x: torch.Tensor, rows: int) -> tuple[torch.Tensor, ...]:
    return x.split(rows) if rows < x.shape[0] else (x,)


class _FusedRun:
    """One pass over the blocks: the residual stream, what it lacks, and the buffers."""

    def __init__(
        self,
        config: PackedViTConfig,
        x: torch.Tensor,
        angles: AxialAngles | None,
        metadata: PackedAttnMetadata,
    ) -> None:
        self.config = c = config
        self.x = x
        self.metadata = metadata
        self.lacking = BiasSum(c.width, x.device)
        self.prepared = metadata.attention.prepare(metadata, x.shape[0])
        tokens = x.shape[0]
        # Equal slices where there are many rows: what is normed is needed for one product, and an
        # MLP's inner rows are the widest by far in some towers.
        inner = (c.mlp_width * (2 if c.gated_mlp else 1) + c.width) * x.element_size()
        rows = _rows_of_slices(tokens, -(-tokens // _SLICE_ROWS))
        self.mlp_rows = _rows_of_slices(tokens, -(-tokens * inner // _SLICE_BYTES))
        self.slices, self.mlp_slices = _slices(x, rows), _slices(x, self.mlp_rows)
        # In one piece: tables alone would take 20 MiB of torch's allocator.
        normed = rows * c.width
        numbers = 0 if angles is None else math.prod(angles.table_shape)
        room = x.new_empty(normed + numbers * torch.float32.itemsize // x.element_size())
        self.normed = room[:normed].view(rows, c.width)
        self.tables: RotaryTables | None = None
        if angles is not None:
            self.tables = angles.tables(room[normed:].view(torch.float32).view(angles.table_shape))

    def run(self, blocks: Iterable[nn.Module], taps: Collection[int]) -> Iterator[torch.Tensor]:
        for index, block in enumerate(blocks):
            self._attend(block)
            self._transform(cast(PackedBlock, block))
            if self.config.clamp_fp16:
                clamp_fp16(self.x)
            if index in taps:
                yield self._completed()
        yield self._completed()

    def _completed(self) -> torch.Tensor:
        out = self.normed if len(self.slices) == 1 else torch.empty_like(self.x)
        return complete(self.x, lacking=self.lacking, out=out)

    def _norm(self, norm: nn.Module, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        rms = self.config.norm == "rms"
        return normalise(
            x,
            part_of(norm, "weight"),
            None if rms else part_of(norm, "bias"),
            self.config.norm_eps,
            rms=rms,
            lacking=self.lacking,
            out=out[: x.shape[0]],
        )

    def _room(self, rows: int, *widths: int) -> tuple[torch.Tensor, ...]:
        """Not kept: the same memory serves one after the other, and what taps need."""
        sizes = [rows * width for width in widths]
        room = torch.empty(sum(sizes), dtype=self.x.dtype, device=self.x.device)
        parts = room.split(sizes) if len(sizes) > 1 else (room,)
        return tuple(part.view(rows, -1) for part in parts)

    def _attend(self, block: nn.Module) -> None:
        attn, c = part_of(block, "attn"), self.config
        norm, qkv_proj = part_of(block, "norm1"), part_of(attn, "qkv")
        weight, bias = part_of(qkv_proj, "weight"), part_of(qkv_proj, "bias")
        (wide,) = self._room(self.x.shape[0], 3 * c.width)
        for x, out in zip(self.slices, _slices(wide, len(self.normed)), strict=True):
            project(self._norm(norm, x, self.normed), weight, bias, out=out)
        qkv = wide.view(-1, 3, *attn.heads)
        head_norm = None
        if attn.q_norm is not None and attn.k_norm is not None:
            query, key = (cast(torch.Tensor, n.weight) for n in (attn.q_norm, attn.k_norm))
            head_norm = HeadNorm(query, key, c.norm_eps)
        turn_(qkv, self.tables, head_norm)
        q, k, v = qkv.unbind(1)
        # Over the queries where there is no room elsewhere: no tile reads those of another.
        attended = self.normed if len(self.slices) == 1 else wide[:, : c.width]
        by_head = attended.unflatten(1, attn.heads)
        self.metadata.attention(q, k, v, self.metadata, self.prepared, out=by_head)
        out_proj = part_of(attn, "proj")
        accumulate_(self.x, attended, part_of(out_proj, "weight"))
        self.lacking.skip(part_of(out_proj, "bias"))

    def _transform(self, block: PackedBlock) -> None:
        mlp, norm, c = part_of(block, "mlp"), part_of(block, "norm2"), self.config
        fc1, fc2 = part_of(mlp, "linear_fc1"), part_of(mlp, "linear_fc2")
        first, bias, second = mlp.filled_up() or (
            part_of(fc1, "weight"),
            part_of(fc1, "bias"),
            part_of(fc2, "weight"),
        )
        if self.mlp_rows <= len(self.normed):
            (wide,), room = self._room(self.mlp_rows, first.shape[0]), self.normed
        else:
            wide, room = self._room(self.mlp_rows, first.shape[0], c.width)
        for x in self.mlp_slices:
            normed, inner = self._norm(norm, x, room), wide[: x.shape[0]]
            if c.gated_mlp:
                project(normed, first, bias, out=inner)
                inner = gate_(inner, c.activation, c.gate_limit)
            else:
                project_and_activate(normed, first, bias, c.activation, out=inner)
            accumulate_(x, inner, second)
        self.lacking.skip(part_of(fc2, "bias"))
