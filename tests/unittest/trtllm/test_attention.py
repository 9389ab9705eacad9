# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Upstream's attention inside a tower: its metadata are planned, refreshed in place and checked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tensorrt_llm_ext.graphs.variants import VariantChoices
from tensorrt_llm_ext.llmapi.mm_config import MultimodalConfig
from tensorrt_llm_ext.ops.attention import BlockMaskAttention
from tensorrt_llm_ext.ops.packed_metadata import PackedAttnMetadata
from tensorrt_llm_ext.trtllm import attention
from tensorrt_llm_ext.trtllm.attention import (
    BACKENDS,
    VARIABLE,
    UpstreamAttention,
    chosen_backend,
)

from .small import QWEN, host_tower, rows


class Metadata:
    """What an encoder uses of upstream's: setting ``seq_lens`` copies in place in a graph."""

    made: list[Metadata] = []  # noqa: RUF012

    def __init__(self, **sizes: Any) -> None:
        self.sizes = sizes
        self.is_cuda_graph = False
        self.prepared = 0
        self._seq_lens_cuda: torch.Tensor | None = None
        Metadata.made.append(self)

    @property
    def seq_lens(self) -> torch.Tensor | None:
        return self._seq_lens_cuda

    @seq_lens.setter
    def seq_lens(self, value: torch.Tensor) -> None:
        assert len(value) <= self.sizes["max_num_requests"]
        assert int(value.sum()) <= self.sizes["max_num_tokens"]
        if self.is_cuda_graph and self._seq_lens_cuda is not None:
            self._seq_lens_cuda.copy_(value)
        else:
            self._seq_lens_cuda = value.clone()

    def prepare(self) -> None:
        self.prepared += 1


class WithOffsets(Metadata):
    cu_q_seqlens: torch.Tensor | None = None
    bound = 0

    def bind_encoder_cuda_graph_seq_lens(self, seq_lens: torch.Tensor, count: int) -> None:
        self.bound = count

    def prepare_encoder_only(self) -> None:
        self.prepared += 1


class Moving(Metadata):
    """A version that makes a new tensor at every step."""

    def prepare(self) -> None:
        super().prepare()
        if self._seq_lens_cuda is not None:
            self._seq_lens_cuda = self._seq_lens_cuda.clone()


class Attention:
    fused = False
    compiling = True

    @classmethod
    def support_fused_qkv(cls) -> bool:
        return cls.fused

    def forward(self, q: Any, k: Any, v: Any, metadata: Any, *, attention_mask: Any) -> Any:
        assert attention_mask == "full"
        assert not Attention.compiling
        if self.fused:
            assert k is None
            assert v is None
            q, k, v = q.chunk(3, dim=1)
        heads = QWEN["vision_config"]["num_heads"]
        q, k, v = (x.view(len(x), heads, -1) for x in (q, k, v))
        offsets = getattr(metadata, "cu_q_seqlens", None)
        if offsets is None:
            ends = metadata.seq_lens.cumsum(0, dtype=torch.int32)
            offsets = torch.nn.functional.pad(ends, (1, 0))
        form = BlockMaskAttention()
        packed = PackedAttnMetadata(offsets, (), len(q), form)
        return form(q, k, v, packed, form.prepare(packed, len(q))).flatten(1)


class Fused(Attention):
    fused = True


@contextlib.contextmanager
def compiling(value: bool) -> Iterator[None]:
    """A decoder that is compiled has left this flag on."""
    Attention.compiling, before = value, Attention.compiling
    yield
    Attention.compiling = before


def with_backend(
    monkeypatch: pytest.MonkeyPatch, backend: str, kind: type, metadata: type[Metadata]
) -> Any:
    names = {
        "create_attention": lambda name, layer, heads, dim, num_kv_heads: kind(),
        "get_attention_backend": lambda name: SimpleNamespace(Metadata=metadata),
        "PredefinedAttentionMask.FULL": "full",
        "torch_compiling": compiling,
    }
    monkeypatch.setattr(attention, "find", lambda *paths: names[paths[0].partition(":")[2]])
    monkeypatch.setenv(VARIABLE, backend)
    Metadata.made.clear()
    return host_tower()


@pytest.mark.parametrize(
    ("backend", "kind", "metadata"),
    [
        ("TRTLLM", Fused, WithOffsets),
        ("TRTLLM", Attention, Metadata),
        ("FLASHINFER", Attention, Metadata),
    ],
)
def test_upstreams_attention_eager_and_captured(
    backend: str, kind: type, metadata: type[Metadata], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = host_tower()
    theirs = with_backend(monkeypatch, backend, kind, metadata)
    pixels, grid = rows((1, 4, 4), (2, 2, 2))
    expected = ours(pixels, grid)[0]
    torch.testing.assert_close(theirs(pixels, grid)[0], expected)
    (eager,) = Metadata.made
    assert not eager.is_cuda_graph
    assert eager.seq_lens.tolist() == [16, 4, 4]  # type: ignore[union-attr]
    assert ("kv_layout" in eager.sizes) is (backend == "FLASHINFER")
    graphs = {"image": {"buckets": [(16, 1), (32, 3)]}}
    theirs.tower.configure_encoder_cuda_graph(MultimodalConfig(encoder_cuda_graph=graphs))
    report = theirs.tower.capture_encoder_cuda_graphs()
    assert (report.status, report.attention) == ("captured", f"upstream {backend}")
    planned = [m for m in Metadata.made if m.is_cuda_graph]
    tokens = [m.sizes["max_num_tokens"] for m in planned]
    assert tokens == sorted(tokens, reverse=True)  # a shared workspace is final at the first
    assert tokens[0] == 32
    before = [m.seq_lens.data_ptr() for m in planned]  # type: ignore[union-attr]
    for shapes in (((1, 4, 4), (2, 2, 2)), ((1, 2, 2),), ((1, 4, 2), (1, 2, 4))):
        pixels, grid = rows(*shapes, seed=3)
        torch.testing.assert_close(theirs(pixels, grid)[0], ours(pixels, grid)[0])
    assert sum(theirs.tower.encoder_stats().replays.values()) >= 3
    assert [m.seq_lens.data_ptr() for m in planned] == before  # type: ignore[union-attr]
    lengths = [len(m.seq_lens) for m in planned]  # type: ignore[arg-type]
    assert lengths == [m.sizes["max_num_requests"] for m in planned]  # unused ones are empty
    if metadata is WithOffsets:
        assert [m.bound for m in planned] == lengths  # type: ignore[attr-defined]


def test_what_a_start_up_remembers_is_not_that_of_the_other_backend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    choices: list[Any] = []
    monkeypatch.setattr(VariantChoices, "save", lambda self: choices.append(self))
    for backend in BACKENDS:
        tower = with_backend(monkeypatch, backend, Attention, Metadata).tower
        graphs = {"image": {"buckets": [(16, 1)]}}
        tower.configure_encoder_cuda_graph(MultimodalConfig(encoder_cuda_graph=graphs))
        tower.capture_encoder_cuda_graphs()
    one, other = (made._path for made in choices)
    assert one != other


def test_metadata_that_move_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    host = with_backend(monkeypatch, "TRTLLM", Attention, Moving)
    config = MultimodalConfig(encoder_cuda_graph={"image": {"buckets": [(16, 1)]}})
    host.tower.configure_encoder_cuda_graph(config)
    report = host.tower.capture_encoder_cuda_graphs()
    pixels, grid = rows((1, 4, 4))
    if report.status == "captured":
        with pytest.raises(RuntimeError, match="_seq_lens_cuda"):
            host(pixels, grid)
    else:
        assert "_seq_lens_cuda" in report.reason


def test_longer_than_planned_gets_metadata_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    host = with_backend(monkeypatch, "FLASHINFER", Attention, Metadata)
    pixels, grid = rows((1, 10, 10))  # 100 tokens, planned were 64
    torch.testing.assert_close(host(pixels, grid)[0], host_tower()(pixels, grid)[0])
    assert [m.sizes["max_num_tokens"] for m in Metadata.made][:2] == [64, 100]


def test_bounds_are_checked() -> None:
    form = UpstreamAttention("TRTLLM", Attention(), Metadata, "full", torch.device("cpu"))
    meta = form.metadata(num_tokens=8, max_segments=2, max_segment_len=4)
    for lengths in ([1, 1, 1], [5]):
        with pytest.raises(ValueError, match="do not fit metadata for 2 of up to 4"):
            meta.refresh(lengths)


def test_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert chosen_backend() == "packed"
    monkeypatch.setenv(VARIABLE, "VANILLA")
    with pytest.raises(
        ValueError, match="'VANILLA' is unknown; allowed: packed, TRTLLM, FLASHINFER"
    ):
        chosen_backend()
    monkeypatch.setenv(VARIABLE, "TRTLLM")
    with pytest.raises(ValueError, match=r"TRTLLM: not found.*unset it for our attention"):
        host_tower()
