# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Padding, isolation, static regions and metadata of the captured Qwen3-VL tower."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from tensorrt_llm_ext.graphs.backends import graph_backend_for
from tensorrt_llm_ext.graphs.batch import BatchPlan
from tensorrt_llm_ext.graphs.buckets import Bucket
from tensorrt_llm_ext.graphs.layout import Replay
from tensorrt_llm_ext.graphs.packer import Packer
from tensorrt_llm_ext.graphs.runner import MultimodalEncoderGraphRunner
from tensorrt_llm_ext.graphs.variants import VariantChoices
from tensorrt_llm_ext.llmapi.mm_config import MultimodalConfig
from tensorrt_llm_ext.ops.attention import PackedAttention, SegmentAttention, attention_for
from tensorrt_llm_ext.towers import load_tower, setup_mm_encoder_cuda_graphs
from tensorrt_llm_ext.towers.metadata import PackedMetadataProvider
from tensorrt_llm_ext.towers.qwen3_vl import Qwen3VLVisionTower

from .checks import CPU, capture


def differences(ours: Any, others: Any) -> list[float]:
    """Largest relative L2 difference of every output tensor."""
    found = []
    for a, b in zip(ours, others, strict=True):
        for x, y in zip([a.features, *a.deepstack], [b.features, *b.deepstack], strict=True):
            found.append(float((x.double() - y.double()).norm() / y.double().norm()))
    return found


def poison(runner: Any) -> None:
    """What an earlier request could have left, and worse: NaN pixels, rows far outside a table."""
    for name, tensor in runner._inputs.items():
        tensor.fill_(float("nan") if name == "pixel_values" else 1 << 30)
    for tensor in runner._outputs.values():
        tensor.fill_(float("nan"))


def run_in_bucket(
    tower: Qwen3VLVisionTower, bucket: Bucket, items: list[Any], attention: PackedAttention
) -> list[Any]:
    """One dirty, padded bucket; per-segment attention cannot be captured, so its body is run."""
    runner = MultimodalEncoderGraphRunner(
        choices=VariantChoices("test", 0.0),
        encoder_fn=tower.encoder_forward,
        metadata_provider=PackedMetadataProvider(attention, CPU),
        adapter=tower.make_io_adapter(),
        backend=graph_backend_for(CPU),  # type: ignore[arg-type]
        device=CPU,
        eager_metadata=tower.make_eager_metadata,
        warmup_steps=1,
    )
    list(runner.capture([bucket]))
    poison(runner)
    packed = [tower.pack_item(item) for item in items]
    (step,) = Packer([bucket], eager_token_budget=1).plan([p.segment_lengths for p in packed])
    assert isinstance(step, Replay)
    prepared = runner.prepare(step, packed)
    batch = BatchPlan.of(tower.make_io_adapter(), packed, [prepared], CPU)
    sinks = [sink.fill_(torch.nan) for sink in batch.allocate()]
    per_segment = isinstance(attention, SegmentAttention)
    runner.replay(prepared, packed, lambda: sinks, uncaptured=per_segment)
    return [tower.make_output(*both) for both in zip(packed, batch.split(sinks), strict=True)]


PADDED = {
    "one in many slots": [(1, 4, 6)],
    "mixed": [(1, 8, 4), (1, 2, 10), (3, 4, 4), (1, 6, 6)],
    "videos": [(3, 4, 2), (1, 2, 2), (5, 2, 6), (9, 2, 4)],
    "almost full": [(1, 16, 10), (1, 8, 10), (1, 2, 6)],
}


@pytest.fixture
def same_gemms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linear layers with 256 rows whatever comes in.

    A BLAS picks its kernel, and with it the rounding, by the number of rows; everything else here
    works row by row or segment by segment, so with this bits can be compared on any machine.
    """

    def forward(self: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
        rows = torch.nn.functional.pad(x, (0, 0, 0, 256 - len(x)))
        return torch.nn.functional.linear(rows, self.weight, self.bias)[: len(x)]

    monkeypatch.setattr(torch.nn.Linear, "forward", forward)


@pytest.mark.parametrize("name", PADDED)
@pytest.mark.parametrize("head_size", [32, 72])
def test_padded_dirty_buckets_equal_unpadded(
    name: str, head_size: int, make_checkpoint: Any, make_batch: Any, same_gemms: None
) -> None:
    tower = load_tower(make_checkpoint(hidden_size=2 * head_size).folder)
    tower.setup_attn_metadata(max_num_tokens=256)
    items = make_batch(tower, PADDED[name])
    unpadded = tower.encode(items)
    assert tower.encoder_stats().eager == {"graphs_off": 1}
    bucket = Bucket(256, 32)
    padded = run_in_bucket(tower, bucket, items, SegmentAttention())
    assert max(differences(padded, unpadded)) == 0.0
    masked = run_in_bucket(tower, bucket, items, attention_for(CPU, tower.dtype, captured=True))
    assert max(differences(masked, unpadded)) <= 1e-6


def test_dirty_replay_equals_clean_replay_bit_for_bit(tower: Any, make_batch: Any) -> None:
    capture(tower, buckets=[(128, 16)])
    items = make_batch(tower, [(1, 4, 6), (2, 4, 4)])
    clean = tower.encode(items)
    poison(tower._runner)
    assert max(differences(tower.encode(items), clean)) == 0.0
    tower.encode(make_batch(tower, [(1, 8, 16)], seed=9))
    assert max(differences(tower.encode(items), clean)) == 0.0


def test_replay_equals_the_same_bucket_uncaptured(tower: Any, make_batch: Any) -> None:
    capture(tower, buckets=[(128, 16)])
    items = make_batch(tower, [(1, 4, 6), (2, 4, 4)])
    replayed = tower.encode(items)
    runner, replay = tower._runner, tower._runner.replay
    runner.replay = lambda *args: replay(*args, uncaptured=True)
    assert max(differences(tower.encode(items), replayed)) == 0.0


# ---- static region ---------------------------------------------------------------------------


def run_fake(tower_class: type, config: Any) -> Mapping[str, torch.Tensor]:
    """The captured region with the captured form of attention, on tensors without values."""
    # The frequencies are real: a constant of the module. Everything else is fake.
    with FakeTensorMode(allow_non_fake_inputs=True):
        tower = tower_class(config)
        metadata = PackedMetadataProvider(attention_for(CPU, torch.float32, captured=True), CPU)
        bucket = Bucket(64, 8)
        adapter = tower.make_io_adapter()
        built = metadata.build(bucket, adapter.num_segment_slots(bucket))
        inputs = adapter.allocate_inputs(bucket.num_tokens, CPU)
        return dict(tower.encoder_forward(inputs, built))


class ReadsTheLayout(Qwen3VLVisionTower):
    """Cuts at the last offset, which only the device knows."""

    def encoder_forward(self, inputs: Any, metadata: Any) -> dict[str, torch.Tensor]:
        end = int(metadata.cu_seqlens[-1])
        return {n: t[:end] for n, t in super().encoder_forward(inputs, metadata)}


class BranchesOnPixels(Qwen3VLVisionTower):
    """Skips blank batches."""

    def encoder_forward(self, inputs: Any, metadata: Any) -> dict[str, torch.Tensor]:
        if inputs["pixel_values"].abs().sum() == 0:
            return {}
        return dict(super().encoder_forward(inputs, metadata))


def test_captured_region_reads_nothing_from_the_device(tower: Any) -> None:
    outputs = run_fake(Qwen3VLVisionTower, tower.config)
    assert {n: tuple(t.shape) for n, t in outputs.items()} == dict.fromkeys(
        ("features", "deepstack_0", "deepstack_1"), (16, tower.out_hidden_size)
    )
    for bad in (ReadsTheLayout, BranchesOnPixels):
        with pytest.raises(DataDependentOutputException):
            run_fake(bad, tower.config)


# ---- isolation -------------------------------------------------------------------------------


def test_batch_mates_change_nothing(tower: Any, make_batch: Any) -> None:
    grids = [(1, 4, 4), (7, 2, 2), (1, 2, 12), (2, 6, 4), (1, 14, 12), (1, 2, 2), (3, 4, 8)]
    items = make_batch(tower, grids)
    random.Random(5).shuffle(items)
    capture(tower, budget=512, buckets=[(64, 4), (128, 16), (512, 32)])
    for eager in (False, True):
        alone = [tower.encode([item], eager=eager)[0] for item in items]
        together = tower.encode(items, eager=eager)
        assert max(differences(together, alone)) <= 1e-5
        twice = tower.encode([items[0], items[0]], eager=eager)
        assert max(differences(twice, [alone[0]] * 2)) <= 1e-5


def test_outputs_belong_to_the_caller(tower: Any, make_batch: Any) -> None:
    capture(tower, buckets=[(64, 8)])
    a, b = make_batch(tower, [(1, 4, 6), (1, 8, 8)])
    for eager in (False, True):
        (out,) = tower.encode([a], eager=eager)
        kept = {
            k: [t.clone() for t in v] if k == "deepstack" else v.clone() for k, v in out.items()
        }
        (other,) = tower.encode([b], eager=eager)
        assert torch.equal(out.features, kept["features"])
        for now, before in zip(out.deepstack, kept["deepstack"], strict=True):
            assert torch.equal(now, before)
        for tensor in (other.features, *other.deepstack):  # and what a caller does to them is his
            tensor.fill_(torch.nan)
        assert max(differences(tower.encode([a], eager=eager), [out])) == 0.0


def test_threads_do_not_mix(tower: Any, make_batch: Any) -> None:
    capture(tower, buckets=[(64, 8)])
    items = make_batch(tower, [(1, 4, 6), (2, 4, 4), (1, 8, 8), (5, 2, 2)])
    expected = [tower.encode([item])[0] for item in items]
    wrong: list[float] = []

    def work(index: int) -> None:
        for round_ in range(8):
            i = (index + round_) % len(items)
            wrong.extend(d for d in differences(tower.encode([items[i]]), [expected[i]]) if d)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert tower.encoder_stats().items == 4 + 4 * 8


def test_weights_changed_in_place_are_seen(tower: Any, make_batch: Any) -> None:
    capture(tower, buckets=[(64, 8)])
    items = make_batch(tower, [(1, 4, 6)])
    before = tower.encode(items)
    generator = torch.Generator().manual_seed(3)
    for parameter in tower.parameters():
        with torch.no_grad():
            parameter += torch.randn(parameter.shape, generator=generator) * 0.02
        after, eager = tower.encode(items), tower.encode(items, eager=True)
        assert max(differences(after, eager)) <= 1e-6
        assert max(differences(after, before)) > 0
        before = after


# ---- metadata --------------------------------------------------------------------------------


@pytest.mark.parametrize("explicit_budget", [True, False])
def test_metadata_of_a_graph_is_sized_from_its_bucket(
    explicit_budget: bool, tower: Any, make_batch: Any
) -> None:
    tower.setup_attn_metadata(max_num_tokens=128)
    eager = tower.attn_metadata
    address, size = eager.cu_seqlens.data_ptr(), eager.cu_seqlens.numel()
    assert (eager.max_segments, eager.max_segment_len) == (128, 128)
    entry: dict[str, Any] = {"max_batch_size": 4, "warmup_steps": 1}
    if explicit_budget:
        entry["max_num_tokens"] = 96
    (report,) = setup_mm_encoder_cuda_graphs(
        {"image": tower}, MultimodalConfig(encoder_cuda_graph={"image": entry})
    )
    budget = 96 if explicit_budget else 128
    assert [b.num_tokens for b in report.buckets] == [64, budget]
    adapter = tower.make_io_adapter()
    for bucket, captured in tower._runner._captured.items():
        slots = adapter.num_segment_slots(bucket)
        assert captured.metadata.max_segments == slots <= 4 + 4
        assert captured.metadata.max_segment_len == bucket.num_tokens
        assert captured.metadata.cu_seqlens.data_ptr() != address
    for grids in ([(1, 2, budget // 2)], [(2, 4, budget // 8)], [(1, 8, 10)], [(1, 4, 6)] * 3):
        items = make_batch(tower, grids)
        replayed = tower.encode(items)
        assert max(differences(replayed, tower.encode(items, eager=True))) <= 1e-6
    stats = tower.encoder_stats()
    assert set(stats.eager) == {"requested"}
    assert stats.replays == {f"{budget}x4": 4}
    assert tower.attn_metadata is eager
    assert eager.cu_seqlens.data_ptr() == address
    assert eager.cu_seqlens.numel() == size


def test_budget_argument_of_the_lifecycle(tower: Any) -> None:
    tower.setup_attn_metadata(max_num_tokens=128)
    config = MultimodalConfig(encoder_cuda_graph={"image": {"max_batch_size": 2}})
    tower.configure_encoder_cuda_graph(config, 72)
    assert [b.num_tokens for b in tower.planned_buckets()] == [64, 72]
    tower.configure_encoder_cuda_graph(config)
    assert [b.num_tokens for b in tower.planned_buckets()] == [64, 128]


def test_eager_runs_of_more_segments_than_the_metadata_holds(tower: Any, make_batch: Any) -> None:
    tower.setup_attn_metadata(256, attention_metadata_capacity={"attention": 3})
    items = make_batch(tower, [(5, 2, 4)])
    expected = load_like(tower).encode(items)
    assert max(differences(tower.encode(items), expected)) == 0.0
    assert tower.attn_metadata.max_segments == 3


def load_like(tower: Any) -> Any:
    other = Qwen3VLVisionTower(tower.config)
    other.load_state_dict(tower.state_dict())
    other.setup_attn_metadata(4096)
    return other
