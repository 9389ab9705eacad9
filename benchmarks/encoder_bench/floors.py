# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The least time that a batch can take: its arithmetic, and what has to be read and written.

Both are counted for the real tokens, from the tower's own weights. A multiplication and an addition
are two operations. Nothing but the weights, the inputs and the outputs is counted as traffic:
activations could stay on the chip. Norms, rope and activation functions are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from tensorrt_llm_ext.towers.audio_adapter import halved

from .layouts import Shapes, frames_of, grids_of

FLOPS_PER_US = 790e6
"""bf16 matrix multiplication that one H200 sustains: 790 TFLOP/s."""
BYTES_PER_US = 4.3e6
"""Its memory, reads and writes together: 4.3 TB/s."""
_TABLES = ("pos_embed.", "learned.")  # a few rows are gathered


class Work(NamedTuple):
    """What a batch comes to.

    Attributes:
        tokens: Rows of the blocks.
        segments: Runs of tokens that attend to each other.
        block_flops: Operations of the blocks, attention included.
        flops: Operations of the whole tower.
        bytes: Weights once, inputs and outputs.
    """

    tokens: int
    segments: int
    block_flops: int
    flops: int
    bytes: int

    @property
    def flops_us(self) -> float:
        """Floor of the arithmetic, microseconds."""
        return self.flops / FLOPS_PER_US

    @property
    def bytes_us(self) -> float:
        """Floor of the memory traffic, microseconds."""
        return self.bytes / BYTES_PER_US


def work_of(tower: Any, shapes: Shapes) -> Work:
    """Counts a batch.

    Args:
        tower: A tower of ours; weights are not read, meta tensors do.
        shapes: Pictures (t, h, w) or clips (frames).
    """
    audio = tower.encoder_cuda_graph_modality == "audio"
    segments = [n for shape in shapes for n in _segments(tower, shape)]
    tokens = sum(segments)
    matrices = dict(_matrices(tower))
    blocks = 2 * tokens * sum(n for name, n in matrices.items() if name.startswith("blocks."))
    width = tower.blocks[0].attn.qkv.in_features
    # q k^T and probabilities times v, in every layer.
    blocks += 4 * width * sum(n * n for n in segments) * len(tower.blocks)
    rest = {name: n for name, n in matrices.items() if not name.startswith("blocks.")}
    element = tower.dtype.itemsize
    if audio:
        others = 2 * tokens * sum(rest.values()) + sum(
            _conv_flops(tower, n) for n in frames_of(shapes)
        )
        inputs = sum(frames_of(shapes)) * tower.config.num_mel_bins
    else:
        patches = sum(math.prod(grid) for grid in grids_of(shapes))
        merged = patches // tower.config.spatial_merge_size**2
        rows = {n: patches if n.startswith("patch_embed.") else merged for n in rest}
        others = sum(2 * rows[name] * n for name, n in rest.items())
        inputs = patches * tower.config.patch_dim
    outputs = sum(
        spec.rows(tokens) * math.prod(spec.shape) * spec.dtype.itemsize
        for spec in tower.make_io_adapter().output_specs.values()
    )
    weights = sum(
        p.numel() * p.element_size()
        for name, p in tower.named_parameters()
        if not name.startswith(_TABLES)
    )
    return Work(
        tokens, len(segments), blocks, blocks + others, weights + inputs * element + outputs
    )


def _segments(tower: Any, shape: Any) -> list[int]:
    if isinstance(shape, int):
        geometry = tower.geometry
        tokens = geometry.num_tokens(shape)
        window = geometry.window_chunks * geometry.chunk_tokens
        whole, rest = divmod(tokens, window)
        return [window] * whole + [rest] * (rest > 0)
    t, h, w = shape
    return [h * w + getattr(tower.config, "num_learned", 0)] * t


def _matrices(tower: Any) -> Iterable[tuple[str, int]]:
    """Elements of every matrix that rows are multiplied by."""
    for name, parameter in tower.named_parameters():
        if parameter.dim() == 2 and not name.startswith(_TABLES):
            yield name, parameter.numel()


def _conv_flops(tower: Any, frames: int) -> int:
    """Three convolutions of stride 2 over the chunks of a clip."""
    geometry = tower.geometry
    whole, rest = divmod(frames, geometry.chunk_frames)
    convolutions = [m for m in tower.modules() if isinstance(m, torch.nn.Conv2d)]

    def chunk(columns: int) -> int:
        return sum(
            2 * conv.weight.numel() * halved(geometry.mel_bins, i) * halved(columns, i)
            for i, conv in enumerate(convolutions, 1)
        )

    return whole * chunk(geometry.chunk_frames) + (chunk(rest) if rest else 0)
