# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Kernels on a GPU against their plain-torch references in higher precision (make test-gpu)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tensorrt_llm_ext.ops import activation, convolution, kernels, norm, rope, taps
from tensorrt_llm_ext.ops.attention import SegmentAttention, TileAttention
from tensorrt_llm_ext.ops.packed_metadata import PackedAttnMetadata, make_metadata
from tensorrt_llm_ext.ops.tile_attention import LOW, MIDDLE, TALL, TILE_FIELDS, TINY

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda")
HALF = [torch.bfloat16, torch.float16]


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


def assert_like_reference(
    call: Callable[..., torch.Tensor], tensors: dict[str, torch.Tensor], monkeypatch: Any
) -> None:
    """The kernel's error against fp64 is a rounding of the result, as the reference's in fp32."""
    exact = call(**{k: v.float() if v.is_floating_point() else v for k, v in tensors.items()})
    got = call(**{k: v.clone() for k, v in tensors.items()})
    rounded = exact.to(got.dtype)
    assert relative(got, exact) < 1.1 * relative(rounded, exact) + 1e-6
    assert kernels.has_kernels(got.device, got.dtype)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("width", [768, 1024, 1152, 1280, 1536, 4608])
@pytest.mark.parametrize("rms", [False, True])
def test_norm(dtype: torch.dtype, width: int, rms: bool, monkeypatch: Any) -> None:
    def call(x: Any, weight: Any, bias: Any, skipped: Any) -> torch.Tensor:
        lacking, outs = norm.BiasSum(width, CUDA), []
        for row in skipped:
            out = torch.empty_like(x)
            shift = None if rms else bias
            outs.append(norm.normalise(x, weight, shift, 1e-6, rms=rms, lacking=lacking, out=out))
            lacking.skip(row)
        outs.append(norm.complete(x, lacking=lacking, out=torch.empty_like(x)))
        return torch.cat(outs)

    tensors = {
        "x": torch.randn(333, width, device=CUDA),
        "weight": torch.randn(width, device=CUDA),
        "bias": torch.randn(width, device=CUDA),
        "skipped": torch.randn(3, width, device=CUDA),
    }
    halves = {k: v.to(dtype) for k, v in tensors.items()}
    assert_like_reference(call, halves, monkeypatch)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("size", [64, 72, 80, 128])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_turn(dtype: torch.dtype, size: int, normed: bool, turned: bool, monkeypatch: Any) -> None:
    positions = torch.randint(0, 300, (257, 7), dtype=torch.int32, device=CUDA)[:, 2:4]
    frequencies = 1 / 10000 ** (torch.arange(size // 4, device=CUDA) / (size // 4))
    angles = rope.AxialAngles(positions, frequencies) if turned else None

    def call(qkv: Any, query: Any, key: Any) -> torch.Tensor:
        weights = rope.HeadNorm(query, key, 1e-6) if normed else None
        rope.turn_(qkv, None if angles is None else angles.tables(), weights)
        return qkv

    tensors = {
        "qkv": torch.randn(257, 3, 16, size, device=CUDA).to(dtype),
        "query": torch.randn(size, device=CUDA).to(dtype),
        "key": torch.randn(size, device=CUDA).to(dtype),
    }
    assert_like_reference(call, tensors, monkeypatch)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("kind", activation.ACTIVATIONS)
def test_activations(dtype: torch.dtype, kind: str, monkeypatch: Any) -> None:
    x = {"x": (3 * torch.randn(130, 2 * 4304, device=CUDA)).to(dtype)}
    assert_like_reference(lambda x: activation.activate_(x, kind), x, monkeypatch)
    for limit in (None, 1.0):
        assert_like_reference(
            lambda x, limit=limit: activation.gate_(x, kind, limit), x, monkeypatch
        )


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("count", [1, 3])
def test_convolutions(dtype: torch.dtype, count: int, monkeypatch: Any) -> None:
    """As many roundings as there are results: the middle ones are rounded here too."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    keep = torch.ones(count, 25, device=CUDA)
    keep[0, 20:] = 0

    def first(x: Any, weight: Any, bias: Any) -> torch.Tensor:
        kept = torch.ones(count, 50, dtype=x.dtype, device=CUDA)
        return convolution.convolve_plane(x, weight, bias, kept)

    def second(x: Any, weight: Any, bias: Any) -> torch.Tensor:
        return convolution.convolve(x, weight, bias, keep.to(x.dtype))

    channels = 480
    bias = torch.randn(channels, device=CUDA).to(dtype)
    plane = {
        "x": torch.randn(count, 128, 100, device=CUDA).to(dtype),
        "weight": (0.3 * torch.randn(channels, 1, 3, 3, device=CUDA)).to(dtype),
        "bias": bias,
    }
    assert_like_reference(first, plane, monkeypatch)
    wide = {
        "x": torch.randn(count, 64, 50, channels, device=CUDA).to(dtype),
        "weight": (0.02 * torch.randn(channels, channels, 3, 3, device=CUDA)).to(dtype),
        "bias": bias,
    }
    # cuDNN rounds before the activation.
    for call in (second, convolution.convolve_to_columns):
        exact = call(**{name: tensor.float() for name, tensor in wide.items()})
        got = call(**wide)
        assert got.shape == exact.shape
        assert relative(got, exact) < 2 * relative(exact.to(dtype), exact)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("num_taps", [4, 16])
def test_taps(dtype: torch.dtype, num_taps: int, monkeypatch: Any) -> None:
    layout = torch.randint(0, 2304, (301, 2 * num_taps + 2), dtype=torch.int32, device=CUDA)
    rows, weights = layout[:, 2 : num_taps + 2], torch.randn(301, num_taps, device=CUDA)

    def call(x: Any, table: Any) -> torch.Tensor:
        return taps.add_taps_(x, table, rows, weights)

    tensors = {
        "x": torch.randn(301, 1152, device=CUDA).to(dtype),
        "table": torch.randn(2304, 1152, device=CUDA).to(dtype),
    }
    assert_like_reference(call, tensors, monkeypatch)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("shape", [TINY, LOW, MIDDLE, TALL], ids=["tiny", "low", "middle", "tall"])
@pytest.mark.parametrize(
    ("heads", "size"), [(16, 64), (16, 72), (16, 80), (12, 128), (5, 88), (3, 20)]
)
def test_tile_attention(dtype: torch.dtype, shape: Any, heads: int, size: int) -> None:
    """Random layouts; what belongs to nobody is NaN and is neither read into a result nor written.

    Tiles of the layout before are idle: the list is refreshed in place.
    """
    rng = random.Random(f"{shape}{size}")
    attention, tokens = TileAttention(shape), 10240
    # make_metadata would choose a shape: this list is cut for the one that is tested.
    num_tiles, slots = tokens // 64 + 64, 64
    memory = torch.zeros(num_tiles * TILE_FIELDS + slots + 1, dtype=torch.int32, device=CUDA)
    metadata = PackedAttnMetadata(memory, (), 4096, attention, num_tiles)
    for lengths in (
        [rng.choice([1, 1, 2, 63, 64, 65, 200, 511]) for _ in range(20)],
        [1795, 1, 130],
        [256] * 8,
        [1],
    ):
        used = sum(lengths)
        qkv = torch.full((tokens, 3, heads, size), float("nan"), dtype=dtype, device=CUDA)
        qkv[:used] = torch.randn(used, 3, heads, size, device=CUDA).to(dtype)
        metadata.refresh(lengths)
        q, k, v = qkv.unbind(1)
        out = torch.full((tokens, heads, size), 7.0, dtype=dtype, device=CUDA)
        attention(q, k, v, metadata, None, out=out)
        expected = SegmentAttention()(*qkv[:used].double().unbind(1), metadata, None)
        # The weights of the values are rounded, as in any flash attention.
        assert relative(out[:used], expected) < (2.6e-3 if dtype == torch.bfloat16 else 3.3e-4)
        assert (out[used:] == 7).all()
        attention(q, k, v, metadata, None, out=q)  # what blocks do
        assert torch.equal(q[:used], out[:used])


def test_a_nan_segment_stays_alone() -> None:
    attention = TileAttention()
    metadata = make_metadata(
        attention, num_tokens=300, max_segments=3, max_segment_len=128, device=CUDA
    )
    metadata.refresh([100, 72, 128])
    qkv = torch.randn(300, 3, 16, 72, device=CUDA).bfloat16()
    qkv[100:172] = float("nan")
    out = metadata.attention(*qkv.unbind(1), metadata, None)
    assert torch.isfinite(out[:100]).all()
    assert torch.isnan(out[100:172]).all()
    assert torch.isfinite(out[172:]).all()
