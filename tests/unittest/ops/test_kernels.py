# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Every kernel in Triton's interpreter against its plain-torch reference."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tensorrt_llm_ext.ops import (
    activation,
    convolution,
    kernels,
    linear,
    norm,
    rope,
    taps,
    tile_attention,
)
from tensorrt_llm_ext.ops.attention import SegmentAttention
from tensorrt_llm_ext.ops.packed_metadata import make_metadata
from tensorrt_llm_ext.ops.tile_attention import LOW, MIDDLE, TALL, TILE_FIELDS, TINY, list_tiles

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs them for real")

CPU = torch.device("cpu")
OVERFLOWS = pytest.mark.filterwarnings("ignore:overflow encountered in exp2")  # as it is meant to
NUMPY_TALKS = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's, about NaN


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs a call by reference, then by kernel."""

    def run(call: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        reference = call()
        launched = []
        launch = kernels.launch

        def spy(*args: Any, **options: Any) -> None:
            launched.append(args[0])
            launch(*args, **options)

        for module in (activation, convolution, norm, rope, taps):
            monkeypatch.setattr(module, "has_kernels", lambda *where: True)
            monkeypatch.setattr(module, "launch", spy)
        found = call()
        monkeypatch.undo()
        assert launched
        return reference, found

    return run


def worst(pair: tuple[torch.Tensor, torch.Tensor]) -> float:
    return (pair[0].double() - pair[1].double()).abs().max().item()


class FakeKernel:
    """Stands for a kernel that Triton has compiled; notes who was launched with what."""

    arg_names = ("x", "n", "scale", "BLOCK")

    def __init__(self) -> None:
        self.bound: list[Any] = []
        self.direct: list[Any] = []

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        def bind(*args: Any, **options: Any) -> Any:
            self.bound.append((grid, args, options))
            return _Binary(self)

        return bind


class _Binary:
    def __init__(self, kernel: FakeKernel) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *args: self.kernel.direct.append((grid, args))


def test_a_binary_is_looked_up_once_for_arguments_of_its_kind() -> None:
    kernel, x = FakeKernel(), torch.zeros(64)
    options = {"BLOCK": 32, "num_warps": 4}
    kernels.launch(kernel, (3,), x, 48, 0.5, **options)
    kernels.launch(kernel, (5, 2), torch.zeros(8), 64, 0.25, **options)  # the same kind
    assert len(kernel.bound) == 1
    grid, (_, *rest) = kernel.direct[0]
    assert (grid[:3], rest) == ((5, 2, 1), [64, 0.25, 32])
    other = [
        (x, 40, 0.5, options),  # 16 does not divide it
        (x, 1, 0.5, options),
        (x, 1 << 40, 0.5, options),
        (x, 1 << 40 | 1, 0.5, options),
        (x[1:], 48, 0.5, options),  # nor this address
        (x.half(), 48, 0.5, options),
        (x, 48, 0.5, {**options, "BLOCK": 64}),
        (x, 48, 0.5, {**options, "num_warps": 2}),
    ]
    for count, (tensor, number, scale, its) in enumerate(other, start=2):
        kernels.launch(kernel, (3,), tensor, number, scale, **its)
        assert len(kernel.bound) == count
    kernels.launch(FakeKernel(), (3,), x, 48, 0.5, **options)
    assert len(kernel.direct) == 1


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ((1 << 31) - 1, 40, True),
        ((1 << 31) - 1, 1 << 31, False),
        (1 << 31, 1 << 40, True),
        (-(1 << 31), 48, True),
        (-(1 << 31) - 16, 48, False),
        (1 << 40, (1 << 40) + 8, False),
        (0, 16, True),
        (1, 17, False),
        (1, 16, False),
    ],
)
def test_a_binary_depends_on_how_wide_a_number_is_and_what_divides_it(one, other, same) -> None:
    kernel, x = FakeKernel(), torch.zeros(64)
    for number in (one, other):
        kernels.launch(kernel, (3,), x, number, 0.5, BLOCK=32)
    assert len(kernel.direct) == same


@pytest.mark.parametrize(
    ("strides", "offset", "aligned"),
    [
        ((96, 48, 1), 16, True),
        ((96, 48, 1), 20, False),
        ((100, 48, 1), 16, False),
        ((96, 44, 1), 16, False),
    ],
)
def test_rows_are_copied_by_16_bytes_where_every_head_starts_at_one(strides, offset, aligned):
    good = torch.empty(1000, dtype=torch.float16).as_strided((4, 2, 40), (96, 48, 1))
    other = torch.empty(1000, dtype=torch.float16).as_strided((4, 2, 40), strides, offset)
    assert tile_attention._aligned((good, other, good)) is aligned


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("width", [96, 1152, 1280])
def test_norm_with_skipped_biases(both: Any, width: int, rms: bool) -> None:
    x, weight, bias, skipped = (torch.randn(n, width) for n in (5, 1, 1, 3))

    def call() -> torch.Tensor:
        lacking, outs = norm.BiasSum(width, CPU), []
        for row in skipped:
            out, shift = torch.empty_like(x), None if rms else bias[0]
            norm.normalise(x, weight[0], shift, 1e-6, rms=rms, lacking=lacking, out=out)
            lacking.skip(row)
            outs.append(out)
        for _ in range(2):  # adds what is pending, then what is summed
            outs.append(norm.complete(x, lacking=lacking, out=torch.empty_like(x)))
        return torch.stack(outs)

    reference, found = both(call)
    assert worst((reference, found)) < 4e-6
    assert worst((found[-1], x + skipped.sum(0))) < 4e-6
    assert torch.equal(found[-1], found[-2])


@pytest.mark.parametrize("kind", [torch.nn.LayerNorm, torch.nn.RMSNorm])
def test_norm_of_a_module(both: Any, kind: Any) -> None:
    module = kind(72, eps=1e-5)
    torch.nn.init.normal_(module.weight)
    x = torch.randn(4, 72)
    with torch.no_grad():
        assert worst(both(lambda: norm.apply_norm(module, x))) < 4e-6


def test_a_bias_is_read_before_the_next_is_skipped() -> None:
    lacking = norm.BiasSum(4, CPU)
    lacking.skip(None)
    assert lacking.is_zero
    lacking.skip(torch.ones(4))
    with pytest.raises(RuntimeError, match="read the residual before"):
        lacking.skip(torch.ones(4))


def test_a_stream_that_lacks_nothing_is_complete() -> None:
    x = torch.randn(2, 4)
    assert norm.complete(x, lacking=norm.BiasSum(4, CPU), out=torch.empty_like(x)) is x


@pytest.mark.parametrize(("normed", "turned"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize(("heads", "size"), [(4, 72), (3, 80), (2, 128)])
def test_turn(both: Any, heads: int, size: int, normed: bool, turned: bool) -> None:
    qkv = torch.randn(7, 3, heads, size)
    positions = torch.randint(0, 60, (7, 5), dtype=torch.int32)[:, 1:3]
    angles = rope.AxialAngles(positions, torch.rand(size // 4)) if turned else None
    weights = rope.HeadNorm(torch.randn(size), torch.randn(size), 1e-6) if normed else None

    def call() -> torch.Tensor:
        out = qkv.clone()
        rope.turn_(out, None if angles is None else angles.tables(), weights)
        return out

    reference, found = both(call)
    assert worst((reference, found)) < 4e-6
    assert torch.equal(found[:, 2], qkv[:, 2])
    assert not torch.equal(found[:, :2], qkv[:, :2])


def test_more_pairs_than_a_program_turns(both: Any) -> None:
    """36 pairs a head in groups of 4: 40 tokens of 2 x 3 heads are 2160 groups, 8.4 programs."""
    angles = rope.AxialAngles(torch.randint(0, 60, (40, 2), dtype=torch.int32), torch.rand(18))
    qkv, tables = torch.randn(40, 3, 3, 72), angles.tables()

    def call() -> torch.Tensor:
        out = qkv.clone()
        rope.turn_(out, tables, None)
        return out

    reference, found = both(call)
    assert worst((reference, found)) < 4e-6
    assert torch.equal(found[:, 2], qkv[:, 2])


def test_nothing_to_turn() -> None:
    qkv = torch.randn(2, 3, 1, 8)
    before = qkv.clone()
    rope.turn_(qkv, None, None)
    assert torch.equal(qkv, before)


@NUMPY_TALKS
@pytest.mark.parametrize("kind", activation.ACTIVATIONS)
@pytest.mark.parametrize("how", ["alone", "gated", "limited"])
def test_activations(both: Any, kind: str, how: str) -> None:
    x = 3 * torch.randn(3, 2200)

    def call() -> torch.Tensor:
        if how == "alone":
            return activation.activate_(x.clone(), kind)
        return activation.gate_(x.clone(), kind, 1.5 if how == "limited" else None)

    reference, found = both(call)
    assert worst((reference, found)) < 2e-5
    if how == "limited":
        gate, up = x.chunk(2, dim=-1)
        exact = activation.ACTIVATIONS[kind](gate.clamp(max=1.5)) * up.clamp(-1.5, 1.5)
        assert worst((found, exact)) < 2e-5


@OVERFLOWS
def test_gelu_where_it_ends(both: Any) -> None:
    """Exact enough for a rounding to half precision from one end of its slope to the other."""
    x = torch.linspace(-12, 12, 4096)[None]
    _, found = both(lambda: activation.activate_(x.clone(), "gelu"))
    off = (found - torch.nn.functional.gelu(x.double())).abs()
    assert (off <= 1e-7 + 3e-7 * x.abs().clamp(max=6)).all()


@NUMPY_TALKS
@pytest.mark.parametrize("kind", activation.ACTIVATIONS)
def test_activations_of_what_is_not_finite(both: Any, kind: str) -> None:
    """What fp16 could not hold stays what it is, and nothing hides a NaN."""
    x = torch.tensor([[float("inf"), float("nan"), 65504.0, -65504.0]])
    reference, found = both(lambda: activation.activate_(x.clone(), kind))
    torch.testing.assert_close(found, reference, rtol=0, atol=0, equal_nan=True)


@NUMPY_TALKS
def test_gelu_of_minus_infinity_is_nothing(both: Any) -> None:
    """As of every number below -6; torch makes NaN of it."""
    x = torch.full((1, 4), -float("inf"))
    _, found = both(lambda: activation.activate_(x.clone(), "gelu"))
    assert (found == 0).all()


@OVERFLOWS
@pytest.mark.parametrize("kind", ["gelu_pytorch_tanh", "silu"])
def test_activations_where_they_end(both: Any, kind: str) -> None:
    x = torch.linspace(-30, 30, 4096)[None]
    _, found = both(lambda: activation.activate_(x.clone(), kind))
    off = (found - activation.ACTIVATIONS[kind](x.double())).abs()
    assert (off <= 1e-7 + 4e-7 * x.abs()).all()


@OVERFLOWS
@pytest.mark.parametrize(("height", "width", "channels"), [(6, 10, 5), (7, 5, 70), (1, 1, 3)])
def test_convolution_of_a_plane(both: Any, height: int, width: int, channels: int) -> None:
    x, keep = torch.randn(3, height, width), torch.ones(3, -(-width // 2))
    keep[1, -1] = 0
    weight, bias = torch.randn(channels, 1, 3, 3), torch.randn(channels)
    reference, found = both(lambda: convolution.convolve_plane(x, weight, bias, keep))
    assert worst((reference, found)) < 4e-6
    exact = torch.nn.functional.gelu(torch.nn.functional.conv2d(x[:, None], weight, bias, 2, 1))
    assert worst((found.permute(0, 3, 1, 2), exact * keep[:, None, None])) < 4e-6


@OVERFLOWS
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("height", "width"), [(6, 10), (7, 5)])
def test_convolution(both: Any, height: int, width: int, last: bool) -> None:
    x, keep = torch.randn(3, height, width, 4), torch.ones(3, -(-width // 2))
    keep[1, -1] = 0
    weight, bias = torch.randn(90, 4, 3, 3), torch.randn(90)

    def call() -> torch.Tensor:
        if last:
            return convolution.convolve_to_columns(x, weight, bias)
        return convolution.convolve(x, weight, bias, keep)

    reference, found = both(call)
    assert worst((reference, found)) < 4e-6
    exact = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), weight, bias, 2, 1)
    exact = torch.nn.functional.gelu(exact)  # [N, C, H', W']
    exact = exact.permute(0, 3, 1, 2) if last else (exact * keep[:, None, None]).permute(0, 2, 3, 1)
    assert found.is_contiguous()
    assert worst((found, exact)) < 4e-5


def test_taps(both: Any) -> None:
    table, x = torch.randn(30, 700), torch.randn(6, 700)
    rows = torch.randint(0, 30, (6, 9), dtype=torch.int32)[:, :4]
    weights = torch.randn(6, 8)[:, 2:6]
    reference, found = both(lambda: taps.add_taps_(x.clone(), table, rows, weights))
    assert worst((reference, found)) < 4e-6
    exact = x + (table[rows.long()] * weights[:, :, None]).sum(1)
    assert worst((reference, exact)) < 4e-6


@pytest.mark.parametrize("kind", activation.ACTIVATIONS)
@pytest.mark.parametrize("bias", [torch.randn(9), None], ids=["bias", "no bias"])
def test_products(kind: str, bias: Any) -> None:
    x, weight, stream = torch.randn(5, 7), torch.randn(9, 7), torch.randn(5, 9)
    exact = torch.nn.functional.linear(x, weight, bias)
    out = torch.empty(5, 9)
    assert linear.project(x, weight, bias, out=out) is out
    assert worst((out, exact)) < 4e-6
    linear.project_and_activate(x, weight, bias, kind, out=out)
    assert worst((out, activation.ACTIVATIONS[kind](exact))) < 4e-6
    assert worst((linear.accumulate_(stream.clone(), x, weight), stream + x @ weight.t())) < 4e-6


# ---- attention ---------------------------------------------------------------------------------


@NUMPY_TALKS
@pytest.mark.parametrize("shape", [TINY, LOW, MIDDLE, TALL], ids=["tiny", "low", "middle", "tall"])
@pytest.mark.parametrize(("heads", "size"), [(2, 64), (2, 72), (1, 80), (1, 128), (2, 8), (1, 36)])
def test_tile_attention(heads: int, size: int, shape: Any) -> None:
    """NaN after the last segment is neither read into a result nor written over; idle tiles too."""
    lengths = [70, 1, 130, 64, 33]
    used = sum(lengths)
    qkv = torch.full((used + 20, 3, heads, size), float("nan"), dtype=torch.float16)
    qkv[:used] = torch.randn(used, 3, heads, size).half()
    idle = np.zeros((3, TILE_FIELDS), np.int32)
    tiles = torch.from_numpy(np.concatenate([list_tiles(lengths, shape.queries), idle]))
    out = torch.full((used + 20, heads, size), 7.0, dtype=torch.float16)
    tile_attention.attend_tiles(*qkv.unbind(1), tiles, shape, out=out)
    expected = attend_plainly(qkv[:used].float(), lengths)
    assert (out[:used].float() - expected).norm() / expected.norm() < 4e-4
    assert (out[used:] == 7).all()
    q, k, v = qkv.unbind(1)
    rest = torch.stack((k, v)).clone()
    tile_attention.attend_tiles(q, k, v, tiles, shape, out=q)  # what blocks do
    assert torch.equal(q[:used], out[:used])
    assert torch.equal(torch.stack((k, v)).view(torch.int16), rest.view(torch.int16))


@NUMPY_TALKS
def test_a_nan_segment_stays_alone() -> None:
    lengths = [40, 30, 50]
    qkv = torch.randn(120, 3, 1, 72).half()
    qkv[40:70] = float("nan")
    tiles = torch.from_numpy(list_tiles(lengths, TALL.queries))
    out = torch.empty(120, 1, 72, dtype=torch.float16)
    tile_attention.attend_tiles(*qkv.unbind(1), tiles, TALL, out=out)
    assert torch.isfinite(out[:40]).all()
    assert torch.isnan(out[40:70]).all()
    assert torch.isfinite(out[70:]).all()


def test_separate_queries_keys_and_values_of_any_stride() -> None:
    q, k, v = (torch.randn(2, 50, 32).half().transpose(0, 1) for _ in range(3))  # [50, 2, 32]
    out = torch.empty(50, 2, 32, dtype=torch.float16)
    tiles = torch.from_numpy(list_tiles([50], LOW.queries))
    tile_attention.attend_tiles(q, k, v, tiles, LOW, out=out)
    expected = attend_plainly(torch.stack((q, k, v), dim=1).float(), [50])
    assert (out.float() - expected).norm() / expected.norm() < 4e-4


def attend_plainly(qkv: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    metadata = make_metadata(
        SegmentAttention(),
        num_tokens=sum(lengths),
        max_segments=len(lengths),
        max_segment_len=max(lengths),
        device=CPU,
    )
    metadata.refresh(lengths)
    return metadata.attention(*qkv.unbind(1), metadata, None)


@pytest.mark.parametrize("queries", [64, 128])
def test_every_row_is_in_one_tile(queries: int) -> None:
    rng = random.Random(queries)
    for _ in range(50):
        lengths = [rng.choice([1, 2, 63, 64, 65, 128, 129, 500]) for _ in range(rng.randint(1, 9))]
        tiles = list_tiles(lengths, queries)
        rows = []
        for first, start, end, unused in tiles.tolist():
            assert unused == 0
            assert (end - start) in lengths
            rows += range(first, min(first + queries, end))
        assert sorted(rows) == list(range(sum(lengths)))
        assert len(tiles) <= tile_attention.max_tiles(sum(lengths), len(lengths), queries)
        sizes = (tiles[:, 2] - tiles[:, 1]).tolist()
        assert sizes == sorted(sizes, reverse=True)  # the longest first
