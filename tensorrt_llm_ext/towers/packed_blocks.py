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
_SLICE_BYTES = 96 << 20
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
        # The MLP in equal slices of rows: its inner rows are the widest by far in some towers.
        inner = c.mlp_width * (2 if c.gated_mlp else 1) * x.element_size()
        slices = -(-tokens * inner // _SLICE_BYTES)
        self.mlp_rows = -(-tokens // slices // _ROW_STEP) * _ROW_STEP
        # In one piece: tables alone would take 20 MiB of torch's allocator.
        numbers = 0 if angles is None else math.prod(angles.table_shape)
        room = x.new_empty(x.numel() + numbers * torch.float32.itemsize // x.element_size())
        # Normed rows, then attended ones: they are not needed at the same time.
        self.narrow = room[: x.numel()].view_as(x)
        self.tables: RotaryTables | None = None
        if angles is not None:
            rest = room[x.numel() :].view(torch.float32)
            self.tables = angles.tables(rest.view(angles.table_shape))
        self.attended = self.narrow.view(tokens, c.num_heads, c.head_dim)
        self.x_slices, self.normed_slices = (  # the same in every block
            t.split(self.mlp_rows) if slices > 1 else (t,) for t in (x, self.narrow)
        )

    def run(self, blocks: Iterable[nn.Module], taps: Collection[int]) -> Iterator[torch.Tensor]:
        for index, block in enumerate(blocks):
            self._attend(block)
            self._transform(cast(PackedBlock, block))
            if self.config.clamp_fp16:
                clamp_fp16(self.x)
            if index in taps:
                yield complete(self.x, lacking=self.lacking, out=self.narrow)
        yield complete(self.x, lacking=self.lacking, out=self.narrow)

    def _norm(self, norm: nn.Module) -> torch.Tensor:
        rms = self.config.norm == "rms"
        return normalise(
            self.x,
            part_of(norm, "weight"),
            None if rms else part_of(norm, "bias"),
            self.config.norm_eps,
            rms=rms,
            lacking=self.lacking,
            out=self.narrow,
        )

    def _wide(self, rows: int, columns: int) -> torch.Tensor:
        """Not kept: the same memory serves one after the other, and what taps need."""
        return torch.empty(rows, columns, dtype=self.x.dtype, device=self.x.device)

    def _attend(self, block: nn.Module) -> None:
        attn, tokens = part_of(block, "attn"), self.x.shape[0]
        normed = self._norm(part_of(block, "norm1"))
        qkv_proj, out_proj = part_of(attn, "qkv"), part_of(attn, "proj")
        wide = self._wide(tokens, 3 * self.config.width)
        weight, bias = part_of(qkv_proj, "weight"), part_of(qkv_proj, "bias")
        qkv = project(normed, weight, bias, out=wide).view(tokens, 3, *attn.heads)
        head_norm = None
        if attn.q_norm is not None and attn.k_norm is not None:
            query, key = (cast(torch.Tensor, n.weight) for n in (attn.q_norm, attn.k_norm))
            head_norm = HeadNorm(query, key, self.config.norm_eps)
        turn_(qkv, self.tables, head_norm)
        q, k, v = qkv.unbind(1)
        self.metadata.attention(q, k, v, self.metadata, self.prepared, out=self.attended)
        accumulate_(self.x, self.narrow, part_of(out_proj, "weight"))
        self.lacking.skip(part_of(out_proj, "bias"))

    def _transform(self, block: PackedBlock) -> None:
        mlp, c = part_of(block, "mlp"), self.config
        fc1, fc2 = part_of(mlp, "linear_fc1"), part_of(mlp, "linear_fc2")
        first, bias, second = mlp.filled_up() or (
            part_of(fc1, "weight"),
            part_of(fc1, "bias"),
            part_of(fc2, "weight"),
        )
        self._norm(part_of(block, "norm2"))
        wide = self._wide(self.mlp_rows, first.shape[0])  # of all slices
        for x, rows in zip(self.x_slices, self.normed_slices, strict=True):
            inner = wide[: rows.shape[0]]
            if c.gated_mlp:
                project(rows, first, bias, out=inner)
                inner = gate_(inner, c.activation, c.gate_limit)
            else:
                project_and_activate(rows, first, bias, c.activation, out=inner)
            accumulate_(x, inner, second)
        self.lacking.skip(part_of(fc2, "bias"))
