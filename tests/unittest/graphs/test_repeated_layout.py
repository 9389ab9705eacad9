# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""A layout that repeats costs no metadata work, and its results never depend on that."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tensorrt_llm_ext.graphs import batch as batch_module
from tensorrt_llm_ext.graphs.adapter import EncoderGraphIOAdapter, PackedEncoderGraphIOAdapter
from tensorrt_llm_ext.graphs.batch import BatchPlanner
from tensorrt_llm_ext.graphs.buckets import Bucket
from tensorrt_llm_ext.graphs.packer import Packer
from tensorrt_llm_ext.towers.metadata import PackedMetadataProvider

from .fakes import (
    CPU,
    FakeTower,
    SpyBackend,
    assert_outputs,
    captured_tower,
    graph_config,
    make_adapter,
    make_item,
)


def batch_of(count: int, seed: int = 0, tag: int = 0) -> list[dict[str, Any]]:
    """Items of one layout whose values depend on the seed."""
    return [make_item((8, 4), tag=tag, seed=seed * 100 + i) for i in range(count)]


class Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def without_graphs(tower: FakeTower) -> FakeTower:
    """Only what the host does around the graphs is left."""
    for captured in tower._runner._captured.values():
        captured.graph.replay = lambda: None
    return tower


# ---- cost ------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 8])
def test_operations_of_a_repeated_layout(count):
    """One copy in, a tensor and a copy out for each block of outputs, and views."""
    tower = without_graphs(captured_tower(256, max_batch_size=16))
    tower.encode(batch_of(count))
    items = batch_of(count, seed=1)
    with Operations() as seen:
        tower.encode(items)
    block = ["view", "unsafe_split_with_sizes"]
    staged = "copy_" if count == 1 else "cat"
    # The caller's tensors are made after the launch, which is all that the device waits for.
    assert seen.names == [staged, "new_empty", "new_empty", "copy_", "copy_", *block * 2]


def test_operations_of_a_new_layout():
    """Two copies of integers on top, from memory that is let go, and slack where there is any."""
    tower = without_graphs(captured_tower(256, max_batch_size=16))
    tower.encode(batch_of(8))  # 96 tokens in 128
    items = [make_item((12,), seed=i) for i in range(8)]
    with Operations() as seen:
        tower.encode(items)
    views = {"slice", "detach", "view"}
    assert [name for name in seen.names if name not in views] == [
        *["empty", "copy_"],  # layout of the rows
        "cat",
        *["empty", "copy_"],  # of attention
        *["new_empty", "new_empty", "copy_", "copy_"],
        *["unsafe_split_with_sizes"] * 2,
    ]
    with Operations() as seen:
        tower.encode([make_item((4,), tag=2)])  # less than before: slack
    assert seen.names.count("zero_") == 1  # of rows; that of their layout is copied with it
    assert seen.names.count("empty") == 2


@pytest.mark.parametrize("count", [1, 8])
def test_nothing_is_planned_built_or_refreshed_again(count, monkeypatch):
    tower = captured_tower(256, max_batch_size=16)
    tower.encode(batch_of(count))
    for owner, name in (
        (Packer, "plan"),
        (PackedEncoderGraphIOAdapter, "pad"),
        (PackedEncoderGraphIOAdapter, "place"),
        (EncoderGraphIOAdapter, "segment_lengths"),
        (PackedEncoderGraphIOAdapter, "clear"),
        (PackedMetadataProvider, "refresh_in_place"),
        (np, "concatenate"),
        (torch, "tensor"),
        (torch, "from_numpy"),
        (torch.Tensor, "pin_memory"),
        (torch.Tensor, "tolist"),
        (torch.Tensor, "item"),
    ):
        monkeypatch.setattr(
            owner, name, lambda *_, name=name, **__: pytest.fail(f"{name} for a repeated layout")
        )
    items = batch_of(count, seed=1)
    got = tower.encode(items)
    monkeypatch.undo()
    assert_outputs(tower, items, got)
    assert tower.encoder_stats().eager == {}


def test_plans_are_kept_by_layout_up_to_a_bound(monkeypatch):
    tower = captured_tower(256)
    planner = tower._planner(None)
    packed = [[tower.pack_item(i) for i in batch_of(2, tag=tag)] for tag in range(3)]
    plans = [planner.plan(p) for p in packed]
    again = [tower.pack_item(i) for i in batch_of(2, seed=5)]
    assert planner.plan(again) is plans[0]
    assert plans[0] is not plans[1]  # the layout counts, not only the lengths
    monkeypatch.setattr(batch_module, "_CACHED_ITEMS", 6)  # two plans of two items
    small = BatchPlanner(planner.packer, tower._adapter, tower._runner, CPU)
    first = small.plan(packed[0])
    for other in packed[1:]:
        small.plan(other)
    assert small.plan(packed[0]) is not first
    assert len(small._plans) == 2


# ---- results ---------------------------------------------------------------------------------


def encode_and_check(tower: FakeTower, items: list[dict[str, Any]]) -> None:
    assert_outputs(tower, items, tower.encode(items))


def test_new_values_of_a_repeated_layout():
    tower = captured_tower(256)
    for seed in range(4):
        encode_and_check(tower, batch_of(3, seed))


def test_layouts_in_turn():
    """Same bucket, other bucket, cut over several replays, and back."""
    tower = captured_tower(128, max_batch_size=4)
    batches = [
        [make_item((8, 4)), make_item((12,), tag=1)],
        [make_item((4, 8)), make_item((12,), tag=1)],
        [make_item((12,), tag=1), make_item((8, 4))],
        [make_item((128,), tag=2)],
        [make_item((60,), tag=3)],
        [make_item((40,) * 7, tag=4), make_item((8,), tag=5)],
    ]
    order = [*range(6), *range(6), *random.Random(0).choices(range(6), k=30)]
    for index in order:
        encode_and_check(tower, batches[index])
    assert tower.encoder_stats().eager == {}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_rows_of_a_larger_step_never_reach_a_smaller_one(value):
    tower = captured_tower(128, max_batch_size=4)
    small = [make_item((8, 4))]
    encode_and_check(tower, small)
    for large in (make_item((128,)), make_item((20,), tag=1), make_item((64,), tag=2)):
        tower.encode([{**large, "x": torch.full_like(large["x"], value)}])
        for _ in range(2):
            encode_and_check(tower, small)


def test_strangers_writes_between_calls():
    tower = captured_tower(128, max_batch_size=4)
    items = [make_item((8, 4)), make_item((20,), tag=1)]
    encode_and_check(tower, items)
    for tensor in tower._runner._inputs.values():
        tensor.fill_(float("nan") if tensor.is_floating_point() else 1 << 30)
        encode_and_check(tower, items)
    for captured in tower._runner._captured.values():
        captured.metadata.cu_seqlens.fill_(3)
    encode_and_check(tower, items)


class FailsError(Exception):
    """Of one replay."""


@pytest.mark.parametrize("where", ["stage", "refresh", "replay", "rows"])
def test_failure_between_staging_and_replay(where, monkeypatch):
    tower = captured_tower(128, max_batch_size=4)
    items, other = [make_item((8, 4))], [make_item((4, 8), tag=1)]
    encode_and_check(tower, items)
    captured = tower._runner._captured[Bucket(64, 4)]

    def fail(*_: Any) -> None:
        raise FailsError

    if where == "stage":
        monkeypatch.setattr(tower._adapter._layout_parts, "rows", fail)
    elif where == "refresh":
        refresh = tower._runner._parts.provider.refresh_in_place

        def half(metadata: Any, lengths: Any) -> None:
            refresh(metadata, lengths)
            raise FailsError

        monkeypatch.setattr(tower._runner._parts.provider, "refresh_in_place", half)
    elif where == "replay":
        monkeypatch.setattr(captured.graph, "replay", fail)
    else:
        other = [{**other[0], "x": torch.zeros(12, 7)}]
    with pytest.raises((FailsError, RuntimeError)):
        tower.encode(other)
    monkeypatch.undo()
    encode_and_check(tower, items)
    encode_and_check(tower, [make_item((4, 8), tag=1)])
    encode_and_check(tower, items)
    assert tower.encoder_stats().items == 4  # the failed call is not counted


def test_towers_of_one_pool_hold_their_own():
    backend = SpyBackend()
    towers = [captured_tower(128, backend, max_batch_size=4) for _ in range(2)]
    batches = [[make_item((8, 4))], [make_item((4, 8), tag=1)]]
    for _ in range(3):
        for tower in towers:
            for items in batches:
                encode_and_check(tower, items)


def test_capture_again_starts_from_nothing():
    tower = captured_tower(128, max_batch_size=4)
    items = [make_item((8, 4))]
    encode_and_check(tower, items)
    prepared = tower._planner(None).plan([tower.pack_item(i) for i in items]).steps[0]
    runner = tower._runner
    tower.recapture()
    encode_and_check(tower, items)
    assert tower.encoder_stats().eager == {}
    for owner in (runner, tower._runner):  # what was prepared belongs to graphs that are gone
        with pytest.raises(ValueError, match="64x4 is not captured"):
            owner.replay(prepared, [tower.pack_item(i) for i in items], list)


def test_an_encoder_that_writes_into_its_inputs_is_not_captured():
    class Writes(FakeTower):
        def encoder_forward(self, inputs, metadata):
            inputs["gain"].mul_(2)
            return super().encoder_forward(inputs, metadata)

    tower = captured_tower(64)
    assert tower.capture_encoder_cuda_graphs().status == "captured"
    writes = Writes()
    writes.configure_encoder_cuda_graph(graph_config(max_batch_size=2))
    writes.setup_attn_metadata(max_num_tokens=64)
    report = writes.capture_encoder_cuda_graphs()
    assert report.status == "eager"
    assert "writes into its inputs ['layout', 'position', 'gain']" in report.reason
    assert "Write into a copy" in report.reason


def test_output_names_of_several_blocks_go_to_their_items():
    adapter = make_adapter()
    assert [b.names for b in adapter.output_blocks] == [("features",), ("tokens",)]
    tower = captured_tower(128, max_batch_size=4)
    items = [make_item((8,)), make_item(()), make_item((4, 4), tag=1)]
    encode_and_check(tower, items)
    outs = tower.encode(items)
    before = [{n: t.clone() for n, t in out.items()} for out in outs]
    outs[0].features.fill_(torch.nan)  # the caller's own, each on its own
    assert torch.equal(outs[2].features, before[2]["features"])
    assert torch.equal(outs[0].tokens, before[0]["tokens"])
