# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Weights after capture: values written in place are seen, rebound tensors are noticed."""

from __future__ import annotations

import pytest
import torch

from tensorrt_llm_ext.graphs.buckets import EagerReason
from tensorrt_llm_ext.graphs.layout import Eager
from tensorrt_llm_ext.towers.weights import WeightAddresses, WeightVersions

from .fakes import FakeTower, SpyBackend, assert_outputs, captured_tower, make_item


def rebind_data(tower: FakeTower) -> None:
    tower.merger.weight.data = tower.merger.weight.data * 3


def assign_state(tower: FakeTower) -> None:
    state = {name: value * 2 for name, value in tower.state_dict().items()}
    tower.load_state_dict(state, assign=True)


def new_parameter(tower: FakeTower) -> None:
    tower.embed.bias = torch.nn.Parameter(tower.embed.bias.detach() + 1)


def remove_parameter(tower: FakeTower) -> None:
    tower.qkv.bias = None


REBOUND = [rebind_data, assign_state, new_parameter, remove_parameter]


def test_in_place_updates_are_seen_by_a_replay():
    tower, items = captured_tower(), [make_item((8, 4)), make_item((12,), tag=1)]
    with torch.no_grad():
        for parameter in tower.parameters():
            parameter.mul_(1.5)
    assert_outputs(tower, items, tower.encode(items))
    assert tower.encoder_stats().eager == {}


@pytest.mark.parametrize("rebind", REBOUND, ids=lambda f: f.__name__)
def test_rebound_weights_are_never_stale(rebind, caplog):
    tower, items = captured_tower(), [make_item((8, 4))]
    tower.encode(items)
    rebind(tower)
    for _ in range(2):
        if rebind is remove_parameter:
            tower.encode(items)
        else:
            assert_outputs(tower, items, tower.encode(items))
    assert tower.encoder_stats().eager == {"weights_moved": 2}
    warnings = [r for r in caplog.records if "recapture()" in r.getMessage()]
    assert len(warnings) == 1  # said once, counted each time


@pytest.mark.parametrize("rebind", REBOUND[:3], ids=lambda f: f.__name__)
def test_recapture_replays_the_new_weights(rebind):
    tower, items = captured_tower(), [make_item((8, 4))]
    first = tower.capture_encoder_cuda_graphs()
    rebind(tower)
    report = tower.recapture()
    assert report is not first
    assert [b.num_tokens for b in report.buckets] == [b.num_tokens for b in first.buckets]
    assert_outputs(tower, items, tower.encode(items))
    assert tower.encoder_stats().eager == {}


def test_cast_there_and_back_counts_as_moved():
    tower, items = captured_tower(), [make_item((8, 4))]
    tower.double().float()  # the same values in new tensors
    assert_outputs(tower, items, tower.encode(items))
    assert tower.encoder_stats().eager == {"weights_moved": 1}
    tower.recapture()
    assert_outputs(tower, items, tower.encode(items))
    assert tower.encoder_stats().eager == {"weights_moved": 1}


def test_recapture_needs_a_capture():
    tower = FakeTower()
    with pytest.raises(RuntimeError, match=r"capture_encoder_cuda_graphs\(\) first"):
        tower.recapture()


def test_release_forgets_the_addresses():
    tower = captured_tower()
    tower.release_encoder_cuda_graphs()
    rebind_data(tower)
    tower.encode([make_item((8,))])
    assert tower.encoder_stats().eager == {"released": 1}


# ---- when it looks ---------------------------------------------------------------------------


def test_a_rebinding_is_seen_after_the_launch_then_before_it():
    """The first look comes with a replay in flight: its results are nobody's."""
    backend = SpyBackend()
    tower, items = captured_tower(backend=backend), [make_item((8, 4))]
    tower.encode(items)
    replays = backend.replays
    rebind_data(tower)
    assert_outputs(tower, items, tower.encode(items))
    assert backend.replays == replays + 1
    for _ in range(2):
        assert_outputs(tower, items, tower.encode(items))
    assert backend.replays == replays + 1
    assert tower.encoder_stats().replays == {"64x8": 1}
    assert tower.encoder_stats().eager == {"weights_moved": 3}


def test_memory_that_a_graph_reads_outlives_a_rebinding_until_it_is_seen():
    tower, items = captured_tower(), [make_item((8, 4))]
    weights = tower._captured_weights
    assert weights is not None
    address = tower.merger.weight.data_ptr()
    rebind_data(tower)
    assert address in [tensor.data_ptr() for tensor in weights._kept]
    tower.encode(items)
    assert weights._kept == []
    assert not weights.kept_on(torch.device("cpu"))


def test_weights_that_come_back_are_replayed_again():
    """A call with other weights for a moment: nothing is captured anew for it."""
    tower, items = captured_tower(), [make_item((8, 4))]
    own = tower.merger.weight
    tower.merger.weight = torch.nn.Parameter(own.detach() * 2)
    assert_outputs(tower, items, tower.encode(items))
    tower.merger.weight = own
    for _ in range(2):
        assert_outputs(tower, items, tower.encode(items))
    assert tower.encoder_stats().eager == {"weights_moved": 1}
    assert sum(tower.encoder_stats().replays.values()) == 2


def test_a_plan_looks_at_the_weights():
    tower = captured_tower()
    rebind_data(tower)
    (step,) = tower.plan([(8,)])
    assert isinstance(step, Eager)
    assert step.reason is EagerReason.WEIGHTS_MOVED


def test_weights_on_another_device_are_noticed_before_a_replay():
    weights = WeightAddresses(FakeTower())
    assert weights.kept_on(torch.device("cpu"))
    assert not weights.kept_on(torch.device("cuda", 0))


@pytest.mark.parametrize("what", ["a parameter", "a buffer", "deleted", "none"])
def test_every_slot_is_looked_at(what):
    module = torch.nn.Sequential(torch.nn.Linear(3, 3, bias=False), torch.nn.BatchNorm1d(3))
    weights = WeightAddresses(module)
    assert not weights.moved()
    if what == "a parameter":
        module[0].weight.data = module[0].weight.data.clone()
    elif what == "a buffer":
        module[1].running_mean = torch.zeros(3)
    elif what == "deleted":
        del module[1].running_var
    else:
        module[0].weight = None
    assert weights.moved()


def write_in_place(tower: FakeTower) -> None:
    with torch.no_grad():
        tower.merger.weight.mul_(2)


def load_state(tower: FakeTower) -> None:
    tower.load_state_dict(tower.state_dict())


def replace_a_module(tower: FakeTower) -> None:
    tower.merger = torch.nn.Sequential(tower.merger, torch.nn.Identity())


@pytest.mark.parametrize(
    "change",
    [*REBOUND, write_in_place, load_state, replace_a_module],
    ids=lambda f: f.__name__,
)
def test_versions_see_every_change(change):
    tower = FakeTower()
    versions = WeightVersions(tower)
    assert not versions.changed()
    change(tower)
    assert versions.changed()
    assert not WeightVersions(tower).changed()


def test_versions_see_buffers_and_no_encoding():
    tower = captured_tower()
    tower.register_buffer("scale", torch.ones(1))
    versions = WeightVersions(tower)
    tower.encode([make_item((8, 4))])
    assert not versions.changed()
    tower.scale.add_(1)
    assert versions.changed()


def test_versions_of_weights_made_in_inference_mode():
    with torch.inference_mode():
        tower = FakeTower()
    versions = WeightVersions(tower)
    assert not versions.changed()
    rebind_data(tower)
    assert versions.changed()
