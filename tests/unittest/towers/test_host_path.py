# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""What ``encode`` of each kind of tower does on the host when a layout repeats, counted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from writes import Writes

from tensorrt_llm_ext.towers import load_tower

from .checks import capture, poison, worst
from .small import VISION

AUDIO = {
    "num_mel_bins": 16,
    "encoder_layers": 1,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "d_model": 64,
    "output_dim": 40,
    "downsample_hidden_size": 4,
}
RADIO = {
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "patch_size": 4,
    "max_img_size": 32,
}
QWEN2_5 = {
    "depth": 2,
    "hidden_size": 32,
    "num_heads": 2,
    "intermediate_size": 48,
    "out_hidden_size": 40,
    "patch_size": 4,
    "window_size": 32,
    "fullatt_block_indexes": [1],
}


def picture(width: int, seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {"pixel_values": torch.randn(32, width, generator=generator), "grid_thw": (1, 8, 4)}


def clip(seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {"input_features": torch.randn(16, 250, generator=generator)}


class Case(NamedTuple):
    """A kind of tower.

    Attributes:
        config: Parsed config.json.
        modality: Of the tower.
        item: Seed -> an item; all of one layout.
        writes: Calls that write tensors: for one item, for eight.
        calls: Most Python and C calls for one item, and for each further one.
    """

    config: dict[str, Any]
    modality: str
    item: Callable[[int], dict[str, Any]]
    writes: tuple[list[str], list[str]]
    calls: tuple[int, int]


CASES = {
    "qwen3_vl": Case(
        {"model_type": "qwen3_vl", "vision_config": {**VISION["qwen3_vl"], "depth": 4}},
        "image",
        lambda seed: picture(96, seed),
        (["copy_", "copy_"], ["cat", "copy_"]),
        (100, 17),
    ),
    "qwen2_5_vl": Case(
        {"model_type": "qwen2_5_vl", "vision_config": QWEN2_5},
        "image",
        lambda seed: picture(96, seed),
        (["copy_", "copy_"], ["cat", "copy_"]),
        (104, 17),
    ),
    "audio": Case(
        {"model_type": "qwen3_omni_moe", "thinker_config": {"audio_config": AUDIO}},
        "audio",
        clip,
        (["copy_"] * 3, ["copy_"] * 17),  # whole chunks and a tail each; all results
        (108, 30),
    ),
    "radio": Case(
        {"model_type": "radio", **RADIO},
        "image",
        lambda seed: picture(48, seed),
        (["copy_", "copy_"], ["_foreach_copy_", "copy_"]),  # learned rows lie between
        (108, 25),
    ),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[Case, Any]:
    """A kind of tower, and one of it."""
    chosen = CASES[request.param]
    tower = load_tower(chosen.config, modality=chosen.modality)
    capture(tower, 1024, max_batch_size=32)
    return chosen, tower


def count_calls(function: Callable[[], Any]) -> int:
    """Python and C functions that are called."""
    count = -1  # setting the profiler back

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


def stub_graphs(tower: Any) -> None:
    """Leaves what the host does around them."""
    for captured in tower._runner._captured.values():
        captured.graph.replay = lambda: None


def test_a_repeated_layout_copies_rows_in_and_results_out(case: Any) -> None:
    chosen, tower = case
    stub_graphs(tower)
    for count, writes in zip((1, 8), chosen.writes, strict=True):
        tower.encode([chosen.item(seed) for seed in range(count)])
        items = [chosen.item(seed + 10) for seed in range(count)]
        with Writes() as seen:
            tower.encode(items)
        assert seen.names == writes


def test_calls_of_a_repeated_layout(case: Any) -> None:
    """Counted, not timed: what a slow machine cannot blur."""
    chosen, tower = case
    stub_graphs(tower)
    first, each = chosen.calls
    for count in (1, 8):
        items = [chosen.item(seed) for seed in range(count)]
        tower.encode(items)
        calls = count_calls(lambda items=items: tower.encode(items))  # type: ignore[misc]
        assert calls <= first + each * (count - 1), count


def test_layouts_in_turn_give_what_each_gives_alone(case: Any) -> None:
    chosen, tower = case
    batches = [[chosen.item(seed) for seed in range(n)] for n in (1, 3, 2, 8)]
    eager = [tower.encode(batch, eager=True) for batch in batches]
    for index in (0, 1, 0, 0, 3, 2, 3, 3, 1, 2, 0):
        assert worst(tower.encode(batches[index]), eager[index]) <= 1e-5
    poison(tower)
    for index in (0, 3):
        assert worst(tower.encode(batches[index]), eager[index]) <= 1e-5
    assert set(tower.encoder_stats().eager) == {"requested"}
