# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""One lifecycle for all towers: impossible combinations, validation before any capture."""

from __future__ import annotations

import pytest
import torch

from tensorrt_llm_ext.graphs.lifecycle import refuse_impossible, setup_mm_encoder_cuda_graphs
from tensorrt_llm_ext.llmapi.mm_config import MultimodalConfig

from .fakes import FakeAudioTower, FakeTower, SpyBackend, assert_outputs, graph_config, make_item


class Supports:
    supports_encoder_graph_lifecycle = True


class SaysNo:
    supports_encoder_graph_lifecycle = False


class SaysNothing:
    pass


class Truthy:
    supports_encoder_graph_lifecycle = "yes"  # only True counts


GRAPHS = graph_config(max_batch_size=4)
OFF = MultimodalConfig()
EMPTY = MultimodalConfig(encoder_cuda_graph={})
# The model itself refuses the pair; an engine may hand over one that was changed afterwards.
SIDE_STREAM = GRAPHS.model_copy(update={"encoder_side_stream_max_ahead": 1})


@pytest.mark.parametrize(
    ("config", "engine", "device", "what"),
    [
        (GRAPHS, Supports, "cpu", None),
        (GRAPHS, Supports, "cuda", None),
        (GRAPHS, Supports, "cuda:1", None),
        (GRAPHS, SaysNo, "cpu", "engine SaysNo does not capture"),
        (GRAPHS, SaysNothing, "cpu", "engine SaysNothing does not capture"),
        (GRAPHS, Truthy, "cpu", "engine Truthy does not capture"),
        (GRAPHS, Supports, "meta", "no graph backend for device meta; allowed: cpu, cuda"),
        (SIDE_STREAM, Supports, "cpu", "encoder_side_stream_max_ahead=1 cannot go with"),
        (OFF, SaysNothing, "meta", None),
        (EMPTY, SaysNothing, "meta", None),
        (OFF.model_copy(update={"encoder_side_stream_max_ahead": 2}), SaysNothing, "cpu", None),
    ],
)
def test_refuse_impossible(config, engine, device, what):
    if what is None:
        refuse_impossible(config, engine, torch.device(device))
        return
    with pytest.raises(ValueError, match=what) as error:
        refuse_impossible(config, engine, torch.device(device))
    assert "Remove multimodal_config.encoder_cuda_graph" in str(error.value)


@pytest.fixture
def backends(monkeypatch):
    """Notes every backend that the lifecycle makes."""
    made = []

    def make(device, owner=None):
        made.append(SpyBackend())
        return made[-1]

    for module in ("graphs.lifecycle", "towers.mixin"):
        monkeypatch.setattr(f"tensorrt_llm_ext.{module}.graph_backend_for", make)
    return made


def towers(budget=256, audio=FakeAudioTower):
    both = {"image": FakeTower(), "audio": audio()}
    for tower in both.values():
        tower.setup_attn_metadata(max_num_tokens=budget)
    return both


def both_config(image=None, audio=None):
    entries = {
        "image": image or {"max_batch_size": 4},
        "audio": audio or {"buckets": [(64, 2)]},
    }
    return MultimodalConfig.model_validate({"encoder_cuda_graph": entries})


def test_all_towers_share_one_pool(backends):
    both = towers()
    image, audio = setup_mm_encoder_cuda_graphs(both, both_config())
    assert (image.modality, image.status) == ("image", "captured")
    assert (audio.modality, audio.status) == ("audio", "captured")
    (backend,) = backends
    assert backend.captured == [256, 192, 128, 64, 64]
    items = [make_item((12, 4))]
    for tower in both.values():
        assert_outputs(tower, items, tower.encode(items))


def test_a_tower_with_a_cap_has_a_pool_of_its_own(backends):
    """Captured again, it gets memory back only when all graphs of its pool are gone."""
    config = both_config(audio={"max_batch_size": 4, "max_graph_memory": 1 << 30})
    setup_mm_encoder_cuda_graphs(towers(), config)
    assert [backend.captured for backend in backends] == [[256, 192, 128, 64]] * 2


class Misfit(FakeAudioTower):
    def planned_buckets(self):
        raise ValueError("this tower cannot do that")


@pytest.mark.parametrize(
    ("audio", "config", "what"),
    [
        (Misfit, both_config(), "cannot do that"),
        (
            FakeAudioTower,
            both_config(audio={"buckets": [(63, 2)], "enable_padding": False}),
            r"bucket \(63, 2\) can never be replayed",
        ),
        (
            FakeAudioTower,
            both_config(audio={"max_batch_size": 1, "max_num_tokens": 3}),
            "token budget of 3 cannot hold",
        ),
    ],
)
def test_a_misconfigured_tower_stops_all_captures(backends, audio, config, what):
    both = towers(audio=audio)
    with pytest.raises(ValueError, match=what):
        setup_mm_encoder_cuda_graphs(both, config)
    assert [b.captured for b in backends] in ([], [[]])
    assert both["image"].plan([(4,)])[0].reason.value == "graphs_off"


def test_metadata_that_was_not_set_up_stops_all_captures(backends):
    both = {"image": FakeTower(), "audio": FakeAudioTower()}
    both["image"].setup_attn_metadata(max_num_tokens=64)
    with pytest.raises(RuntimeError, match="setup_attn_metadata"):
        setup_mm_encoder_cuda_graphs(both, both_config(audio={"max_batch_size": 4}))
    assert backends == []


@pytest.mark.parametrize(("there", "known"), [(["image"], r"\['image'\]"), ([], "none")])
def test_unknown_modality_lists_the_towers(backends, there, known):
    some = {name: tower for name, tower in towers().items() if name in there}
    config = graph_config("audio", max_batch_size=4)
    with pytest.raises(ValueError, match=rf"entry for 'audio', .* it has {known}"):
        setup_mm_encoder_cuda_graphs(some, config)
    assert backends == []


@pytest.mark.parametrize("config", [OFF, EMPTY])
def test_off_means_nothing_is_captured(backends, config):
    both = towers()
    reports = setup_mm_encoder_cuda_graphs(both, config)
    assert [(r.status, r.buckets, r.graph_memory_bytes) for r in reports] == [("off", [], 0)] * 2
    assert backends == []
    items = [make_item((12, 4))]
    for tower in both.values():
        assert_outputs(tower, items, tower.encode(items))
        assert tower.encoder_stats().eager == {"graphs_off": 1}


def test_a_tower_without_an_entry_stays_eager(backends):
    image, audio = setup_mm_encoder_cuda_graphs(towers(), GRAPHS)
    assert (image.status, audio.status) == ("captured", "off")


def test_set_up_twice_captures_once(backends):
    both = towers()
    first = setup_mm_encoder_cuda_graphs(both, both_config())
    again = setup_mm_encoder_cuda_graphs(both, both_config())
    assert all(a is b for a, b in zip(first, again, strict=True))
    assert [b.captured for b in backends if b.captured] == [[256, 192, 128, 64, 64]]


def test_another_configuration_needs_a_release_first(backends):
    both = towers()
    setup_mm_encoder_cuda_graphs(both, both_config())
    other = both_config(image={"max_batch_size": 2})
    with pytest.raises(RuntimeError, match="release_encoder_cuda_graphs"):
        setup_mm_encoder_cuda_graphs(both, other)
    for tower in both.values():
        tower.release_encoder_cuda_graphs()
    image, _ = setup_mm_encoder_cuda_graphs(both, other)
    assert {b.max_segments for b in image.buckets} == {2}


@pytest.mark.parametrize(
    ("entry", "explicit_budget", "largest"),
    [
        ({"max_batch_size": 4}, None, 256),  # of setup_attn_metadata
        ({"max_batch_size": 4}, 128, 128),
        ({"max_batch_size": 4, "max_num_tokens": 192}, 128, 192),
        ({"buckets": [(320, 2)]}, 128, 320),
    ],
)
def test_where_the_budget_comes_from(entry, explicit_budget, largest):
    tower = FakeTower()
    tower.setup_attn_metadata(max_num_tokens=256)
    (report,) = setup_mm_encoder_cuda_graphs(
        {"image": tower}, graph_config(**entry), max_num_tokens=explicit_budget
    )
    assert report.buckets[-1].num_tokens == largest


def test_one_towers_failure_leaves_the_other_its_graphs(backends):
    both = towers()

    def forward(inputs, metadata):
        raise ArithmeticError("broken")

    both["image"].encoder_forward = forward
    image, audio = setup_mm_encoder_cuda_graphs(both, both_config())
    assert (image.status, audio.status) == ("eager", "captured")
    assert backends[0].alive == [64]
