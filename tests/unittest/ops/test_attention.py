# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Packed attention against a plain softmax in fp64, one segment at a time."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from writes import Writes

from tensorrt_llm_ext.ops.attention import (
    BlockMaskAttention,
    PackedAttention,
    PackedAttnMetadata,
    SegmentAttention,
    TileAttention,
    VarlenAttention,
    attention_for,
)
from tensorrt_llm_ext.ops.packed_metadata import make_metadata
from tensorrt_llm_ext.ops.tile_attention import (
    LOW,
    MIDDLE,
    TALL,
    TILE_FIELDS,
    TINY,
    list_tiles,
)

CPU = torch.device("cpu")
LAYOUTS = {
    "one token": (1,),
    "one segment": (37,),
    "single tokens": (1,) * 9,
    "many": (4, 16, 1, 8, 8, 30, 2),
    "empty inside": (5, 0, 7, 0, 0, 3),
    "empty first": (0, 6, 2),
    "empty last": (6, 2, 0),
}


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: tuple[int, ...]
) -> torch.Tensor:
    """softmax(q k^T / sqrt(D)) v in fp64, [T, H, D]."""
    out = torch.empty_like(q, dtype=torch.float64)
    start = 0
    for length in lengths:
        rows = slice(start, start + length)
        for head in range(q.shape[1]):
            scores = q[rows, head].double() @ k[rows, head].double().T / q.shape[-1] ** 0.5
            weights = (scores - scores.amax(-1, keepdim=True)).exp() if length else scores
            out[rows, head] = weights / weights.sum(-1, keepdim=True) @ v[rows, head].double()
        start += length
    return out


def varlen_double(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    *,
    return_aux: object = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
) -> torch.Tensor:
    """Signature of torch 2.11 (no CPU kernel); checks what the kernel takes for granted."""
    assert return_aux is None
    assert scale is None
    assert window_size == (-1, -1)
    for tensor in (query, key, value):
        assert tensor.dim() == 3
        assert tensor.stride(-1) == 1
    for offsets, longest in ((cu_seq_q, max_q), (cu_seq_k, max_k)):
        assert offsets.dtype == torch.int32
        assert offsets.is_contiguous()
        assert type(longest) is int
        assert int(offsets[-1]) == query.shape[0]
        assert int(offsets.diff().max()) <= longest
    return reference(query, key, value, tuple(cu_seq_q.diff().tolist())).to(query.dtype)


def qkv(num_tokens: int, head_size: int, heads: int = 2) -> tuple[torch.Tensor, ...]:
    """Strided as the tower passes them: slices of the fused projection."""
    return torch.randn(num_tokens, 3, heads, head_size).unbind(1)


def metadata_for(
    attention: PackedAttention, lengths: tuple[int, ...], *, spare: int = 0
) -> PackedAttnMetadata:
    metadata = make_metadata(
        attention,
        num_tokens=sum(lengths),
        max_segments=len(lengths) + spare,
        max_segment_len=max(lengths),
        device=CPU,
    )
    metadata.refresh(lengths)
    return metadata


def attend(attention: PackedAttention, metadata: PackedAttnMetadata, x: tuple) -> torch.Tensor:
    return attention(*x, metadata, attention.prepare(metadata, x[0].shape[0]))


@pytest.mark.parametrize("head_size", [64, 72, 80, 128])  # of the published towers
@pytest.mark.parametrize("lengths", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize(
    "attention", [SegmentAttention(), BlockMaskAttention(), VarlenAttention()], ids=lambda a: a.name
)
def test_matches_fp64_softmax_per_segment(
    attention: PackedAttention,
    lengths: tuple[int, ...],
    head_size: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_double)
    x = qkv(sum(lengths), head_size)
    expected = reference(*x, lengths)
    for spare in (0, 5):
        out = attend(attention, metadata_for(attention, lengths, spare=spare), x)
        assert out.shape == x[0].shape
        assert out.dtype == x[0].dtype
        torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=2e-6)


def test_block_mask_equals_segments_of_random_layouts() -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(25):
        count = int(torch.randint(1, 12, (), generator=generator))
        lengths = tuple(torch.randint(0, 9, (count,), generator=generator).tolist())
        if not sum(lengths):
            continue
        x = qkv(sum(lengths), 64)
        masked = attend(BlockMaskAttention(), metadata_for(BlockMaskAttention(), lengths), x)
        split = attend(SegmentAttention(), metadata_for(SegmentAttention(), lengths), x)
        torch.testing.assert_close(masked, split, rtol=1e-5, atol=2e-6)


def test_tokens_after_the_last_segment_stay_apart_and_finite() -> None:
    attention = BlockMaskAttention()
    metadata = metadata_for(attention, (5, 3), spare=2)
    x = qkv(12, 64)
    out = attend(attention, metadata, x)
    torch.testing.assert_close(
        out[:8].double(), reference(*(t[:8] for t in x), (5, 3)), rtol=1e-5, atol=2e-6
    )
    assert out.isfinite().all()


def test_no_segment_reads_another() -> None:
    lengths = (3, 6, 4)
    for attention in (SegmentAttention(), BlockMaskAttention()):
        metadata = metadata_for(attention, lengths)
        x = qkv(13, 72)
        before = attend(attention, metadata, x)
        for t in x:
            t[3:9] += 100.0
        after = attend(attention, metadata, x)
        assert torch.equal(before[:3], after[:3])
        assert torch.equal(before[9:], after[9:])
        assert not torch.allclose(before[3:9], after[3:9])


def test_block_mask_is_static_and_segments_are_not() -> None:
    def run(attention: PackedAttention) -> torch.Tensor:
        with FakeTensorMode(allow_non_fake_inputs=False):
            metadata = make_metadata(
                attention, num_tokens=8, max_segments=4, max_segment_len=8, device=CPU
            )
            return attend(attention, metadata, qkv(16, 64))

    assert run(BlockMaskAttention()).shape == (16, 2, 64)

    class ReadsTheDevice(BlockMaskAttention):
        def prepare(self, metadata: PackedAttnMetadata, num_tokens: int) -> torch.Tensor:
            end = metadata.cu_seqlens[-1].item()
            return torch.arange(num_tokens) < end

    with pytest.raises(DataDependentOutputException):
        run(ReadsTheDevice())


def test_refresh_is_in_place_and_empties_unused_slots() -> None:
    metadata = make_metadata(
        BlockMaskAttention(), num_tokens=9, max_segments=5, max_segment_len=9, device=CPU
    )
    tensor, address = metadata.cu_seqlens, metadata.cu_seqlens.data_ptr()
    for lengths, expected in (
        ((3, 9, 2, 1, 1), [0, 3, 12, 14, 15, 16]),
        ((4, 4), [0, 4, 8, 8, 8, 8]),
        ((), [0] * 6),
        ((1,), [0, 1, 1, 1, 1, 1]),
    ):
        metadata.refresh(lengths)
        assert metadata.cu_seqlens is tensor
        assert tensor.data_ptr() == address
        assert tensor.dtype == torch.int32
        assert tensor.tolist() == expected
        assert metadata.segment_lengths == lengths


def test_metadata_refuses_what_does_not_fit_and_stays_as_it_was() -> None:
    metadata = make_metadata(
        SegmentAttention(), num_tokens=4, max_segments=2, max_segment_len=4, device=CPU
    )
    metadata.refresh((4, 2))
    with pytest.raises(ValueError, match="3 segments do not fit metadata for 2"):
        metadata.refresh((1, 1, 1))
    with pytest.raises(ValueError, match=r"segment of 5 tokens .* bound of this metadata, 4"):
        metadata.refresh((1, 5))
    assert metadata.max_segments == 2
    assert metadata.cu_seqlens.tolist() == [0, 4, 6]
    assert metadata.segment_lengths == (4, 2)


def test_metadata_refuses_more_tokens_than_its_tiles_cover() -> None:
    """Tiles and offsets share memory: one tile too many would be lost among the offsets."""
    metadata = make_metadata(
        TileAttention(), num_tokens=64, max_segments=4, max_segment_len=512, device=CPU
    )
    metadata.refresh((64,))
    before = metadata.memory.clone()
    with pytest.raises(ValueError, match=r"384 tokens need 6 tiles .* room for 5"):
        metadata.refresh((384,))
    assert torch.equal(metadata.memory, before)
    assert metadata.segment_lengths == (64,)


def test_varlen_gets_the_bound_of_the_metadata_not_of_the_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []

    def spy(*args: object, **kwargs: object) -> torch.Tensor:
        seen.append((args[5:], kwargs))
        return varlen_double(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", spy)
    metadata = make_metadata(
        VarlenAttention(), num_tokens=64, max_segments=4, max_segment_len=64, device=CPU
    )
    metadata.refresh((2, 3))
    attend(VarlenAttention(), metadata, qkv(5, 64))
    assert seen == [((64, 64), {})]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("captured", [True, False])
@pytest.mark.parametrize("triton", [True, False])
def test_form_for_a_device(
    dtype: torch.dtype, captured: bool, triton: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensorrt_llm_ext.ops.attention.HAS_TRITON", triton)
    static = BlockMaskAttention if captured else SegmentAttention
    half = dtype is not torch.float32
    assert isinstance(attention_for(CPU, dtype, captured=captured), static)
    cuda = attention_for(torch.device("cuda", 1), dtype, captured=captured)
    flash = TileAttention if triton else VarlenAttention
    assert isinstance(cuda, flash if half else static)
    # What a capture may take for granted about the form it uses.
    assert cuda.bakes_max_segment_len is (half and not triton)


def test_form_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, half = torch.device("cuda"), torch.bfloat16
    monkeypatch.setattr("tensorrt_llm_ext.ops.attention.HAS_TRITON", True)
    for backend in ("tiles", "varlen"):
        assert attention_for(cuda, half, captured=True, backend=backend).name == backend
    assert attention_for(cuda, half, captured=True, backend="static").name == "block_mask"
    with pytest.raises(ValueError, match=r"'flash' is unknown; allowed: \['auto', 'tiles'"):
        attention_for(cuda, half, captured=True, backend="flash")  # type: ignore[arg-type]
    for where, dtype in ((CPU, half), (cuda, torch.float32)):
        with pytest.raises(ValueError, match="'varlen' needs half precision on CUDA, this is"):
            attention_for(where, dtype, captured=True, backend="varlen")
    monkeypatch.setattr("tensorrt_llm_ext.ops.attention.HAS_TRITON", False)
    with pytest.raises(ValueError, match="'tiles' needs half precision on CUDA and Triton"):
        attention_for(cuda, half, captured=True, backend="tiles")


# ---- tiles in metadata ---------------------------------------------------------------------------


def tiled(
    num_tokens: int, max_segments: int, longest: int, size: int | None = 72
) -> PackedAttnMetadata:
    return make_metadata(
        TileAttention(head_size=size),
        num_tokens=num_tokens,
        max_segments=max_segments,
        max_segment_len=longest,
        device=CPU,
    )


@pytest.mark.parametrize(
    ("size", "num_tokens", "longest", "shape"),
    [
        (72, 64, 64, TINY),
        (72, 65, 65, MIDDLE),
        (72, 1024, 1024, MIDDLE),
        (72, 1025, 1025, LOW),
        (72, 4096, 1536, LOW),
        (72, 1537, 1537, TALL),
        (80, 1024, 1024, MIDDLE),
        (80, 8192, 8192, LOW),
        (64, 512, 512, MIDDLE),
        (64, 513, 513, LOW),
        (64, 8192, 8192, LOW),
        (128, 512, 512, MIDDLE),
        (128, 513, 513, LOW),
        (128, 3072, 3072, LOW),
        (128, 3073, 3073, TALL),
        (None, 3072, 3072, LOW),
        (None, 3073, 3073, TALL),
    ],
)
def test_shape_of_a_bucket(size: int | None, num_tokens: int, longest: int, shape: Any) -> None:
    metadata = tiled(num_tokens, 3, longest, size)
    assert metadata.attention == TileAttention(shape, size)
    short = metadata.attention.short_segment_len
    assert (shape is TALL) == (num_tokens > 1024 and short is not None and longest > short)
    assert metadata.tiles is not None
    assert metadata.tiles.shape == (num_tokens // shape.queries + 3, TILE_FIELDS)


def test_tiles_are_refreshed_in_place() -> None:
    metadata = tiled(2048, 20, 2048)
    assert metadata.tiles is not None
    address = metadata.tiles.data_ptr()
    for lengths in ([700, 1, 300], [64], [2048], [100] * 20):
        metadata.refresh(lengths)
        found = list_tiles(lengths, TALL.queries)
        assert metadata.tiles[: len(found)].tolist() == found.tolist()
        assert not metadata.tiles[len(found) :].any()
        assert metadata.tiles.data_ptr() == address


def test_tiles_and_offsets_are_refreshed_by_one_copy() -> None:
    metadata = tiled(2048, 20, 2048)
    assert metadata.tiles is not None
    versions = [t._version for t in (metadata.tiles, metadata.cu_seqlens)]
    with Writes() as seen:
        metadata.refresh([700, 1, 300])
    assert seen.names == ["copy_"]
    now = [t._version for t in (metadata.tiles, metadata.cu_seqlens)]
    assert now == [version + 1 for version in versions]  # both count it, whoever looks at either
    assert metadata.cu_seqlens.tolist() == [0, 700, 701] + [1001] * 18


@pytest.mark.parametrize("segments", [1, 2, 3, 4, 5])
def test_tiles_are_aligned_however_many_segments_there_are(segments: int) -> None:
    """The kernel reads one by 16 bytes."""
    own = tiled(512, segments, 512)
    for metadata in (own, own.for_one_run([64] * segments)):
        assert metadata is not None
        assert metadata.tiles is not None
        assert metadata.tiles.data_ptr() % (4 * TILE_FIELDS) == 0


def test_metadata_of_one_run_is_exact_and_suits_its_layout() -> None:
    own = tiled(4096, 4, 4096)
    for lengths, shape in (([300, 200], MIDDLE), ([500] * 4, LOW), ([3000, 1], TALL), ([8], TINY)):
        run = own.for_one_run(lengths)
        assert run is not None
        assert run.attention == TileAttention(shape, 72)
        assert run.max_segment_len == max(lengths)
        assert run.cu_seqlens.tolist() == [0, *accumulate(lengths)]
        assert run.tiles is not None
        assert run.tiles.tolist() == list_tiles(lengths, shape.queries).tolist()
        assert run.tiles.data_ptr() == own.tiles.data_ptr()  # type: ignore[union-attr]
    assert own.for_one_run([1] * 5) is None  # segments
    assert own.for_one_run([9000, 9000]) is None  # tiles
    assert own.max_segments == 4


def test_tiles_need_their_metadata() -> None:
    metadata = metadata_for(SegmentAttention(), (4, 4))
    with pytest.raises(ValueError, match="metadata without tiles"):
        attend(TileAttention(), metadata, qkv(8, 64))
