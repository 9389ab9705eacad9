# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The Qwen3-VL tower says what transformers' tower says, eagerly and replayed."""

from __future__ import annotations

from typing import Any

import pytest

from tensorrt_llm_ext.graphs.layout import Replay
from tensorrt_llm_ext.towers import load_tower

from .checks import ORACLE, capture, worst

BUCKETS = [(64, 4), (64, 16), (256, 16), (256, 64)]

# Grids, and the decisions: bucket or eager reason of every step.
BATCHES: dict[str, tuple[list[tuple[int, int, int]], list[str]]] = {
    "one picture": ([(1, 4, 6)], ["64x4"]),
    "smallest": ([(1, 2, 2)], ["64x4"]),
    "mixed": ([(1, 2, 2), (1, 8, 4), (1, 2, 10), (1, 12, 12)], ["256x16"]),
    "larger than the table": ([(1, 16, 2), (1, 2, 30), (1, 16, 10)], ["256x16"]),
    "many segments": ([(1, 2, 2)] * 40, ["256x64"]),
    "segments at the cap": ([(1, 2, 2)] * 16, ["64x16"]),
    "segments above the cap": ([(1, 2, 2)] * 17, ["256x64"]),
    "budget": ([(1, 16, 16)], ["256x16"]),
    "budget + 1": ([(1, 2, 130)], ["too_many_tokens"]),
    "one frame pair": ([(1, 6, 4)], ["64x4"]),
    "200 frame pairs": ([(200, 2, 2)], ["256x64", "256x64", "256x64", "64x16"]),
    "videos": ([(3, 4, 2), (1, 2, 2), (5, 2, 6), (17, 2, 4)], ["256x64"]),
    "larger than any bucket": (
        [(1, 4, 4), (2, 18, 16), (1, 2, 2)],
        ["64x4", "too_many_tokens", "too_many_tokens"],
    ),
}


def decisions(steps: Any) -> list[str]:
    return sorted(s.bucket.label if isinstance(s, Replay) else s.reason.value for s in steps)


@pytest.fixture(scope="module", params=[32, 64, 72], ids="head{}".format)
def pair(request: pytest.FixtureRequest, make_checkpoint: Any) -> tuple[Any, Any]:
    """Oracle and captured tower for a head size; position table of 7 x 7."""
    checkpoint = make_checkpoint(hidden_size=2 * request.param, num_heads=2)
    tower = load_tower(checkpoint.folder)
    capture(tower, buckets=BUCKETS)
    return checkpoint, tower


@pytest.mark.parametrize("name", BATCHES)
def test_matches_transformers(name: str, pair: Any, make_batch: Any) -> None:
    oracle, tower = pair
    grids, expected_steps = BATCHES[name]
    items = make_batch(tower, grids)
    expected = oracle.ask(items)
    segments = [(h * w,) * t for t, h, w in grids]
    assert decisions(tower.plan(segments)) == sorted(expected_steps)

    before = tower.encoder_stats()
    replayed = tower.encode(items)
    after = tower.encoder_stats()
    eager = tower.encode(items, eager=True)

    rows = sum(t * h * w for t, h, w in grids)
    captured = sum(int(label.split("x")[0]) for label in expected_steps if label[0].isdigit())
    eager_rows = 2 * 18 * 16 if name == "larger than any bucket" else 260 * (name == "budget + 1")
    assert after.real_tokens - before.real_tokens == rows
    assert after.padded_tokens - before.padded_tokens == captured - (rows - eager_rows)
    assert after.segments - before.segments == sum(t for t, _, _ in grids)
    for (t, h, w), out in zip(grids, replayed, strict=True):
        assert out.features.shape == (t * h * w // 4, tower.out_hidden_size)
        assert len(out.deepstack) == tower.num_deepstack == 2
        assert out["features"] is out.features
    assert worst(eager, expected) <= ORACLE
    assert worst(replayed, expected) <= ORACLE


def test_videos_of_many_lengths(make_checkpoint: Any, make_batch: Any) -> None:
    """Each alone and all in one batch, around every border of a bucket."""
    checkpoint = make_checkpoint()
    tower = load_tower(checkpoint.folder)
    capture(tower, buckets=BUCKETS)
    grids = [(n, 2, 2) for n in (1, 2, 4, 5, 15, 16, 17, 63, 64, 65, 128, 129, 199, 200)]
    items = make_batch(tower, grids)
    expected = checkpoint.ask(items)
    for item, outputs in zip(items, expected, strict=True):
        assert worst(tower.encode([item]), [outputs]) <= ORACLE
    assert worst(tower.encode(items), expected) <= ORACLE
    assert tower.encoder_stats().eager == {}


def test_an_empty_list_is_no_work(pair: Any) -> None:
    _, tower = pair
    before = tower.encoder_stats()
    assert tower.encode([]) == []
    assert tower.encode([], eager=True) == []
    assert tower.encoder_stats() == before


def test_the_test_can_see(pair: Any, make_item: Any) -> None:
    """Controls: another position, another order of rows, another picture."""
    oracle, tower = pair
    item = make_item(tower, (1, 4, 8))
    expected = oracle.ask([item])
    for wrong in (
        {**item, "grid_thw": (1, 8, 4)},
        {**item, "grid_thw": (2, 4, 4)},
        {**item, "pixel_values": item["pixel_values"].roll(1, 0)},
        {**item, "pixel_values": item["pixel_values"] * 1.1},
    ):
        assert worst(tower.encode([wrong]), expected) > 1e-3


def test_real_photographs(photo: Any, photo2: Any, make_checkpoint: Any) -> None:
    """Published patch and position table, pixels from transformers' own processor."""
    from transformers.models.qwen2_vl import Qwen2VLImageProcessorPil

    checkpoint = make_checkpoint(patch_size=16, num_position_embeddings=2304)
    tower = load_tower(checkpoint.folder)
    processor = Qwen2VLImageProcessorPil(
        patch_size=16,
        merge_size=2,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
        size={"shortest_edge": 64 * 64, "longest_edge": 320 * 320},
    )
    batch = processor(images=[photo, photo2.resize((256, 96)), photo2], return_tensors="pt")
    grids = batch["image_grid_thw"]
    rows = batch["pixel_values"].split(grids.prod(1).tolist())
    items = [{"pixel_values": r, "grid_thw": g} for r, g in zip(rows, grids, strict=True)]
    expected = checkpoint.ask(items)
    largest = sum(len(r) for r in rows)
    capture(tower, budget=largest, buckets=[(largest + 32, 4)])
    assert worst(tower.encode(items), expected) <= ORACLE
    assert worst(tower.encode(items, eager=True), expected) <= ORACLE
    assert tower.encoder_stats().replays == {f"{largest + 32}x4": 1}
    # Two pictures are not the same answer.
    assert (items[0]["grid_thw"] == items[2]["grid_thw"]).all()
    assert worst(tower.encode([items[0]]), expected[2:]) > 0.1


@pytest.mark.parametrize("indexes", [[2, 0], [1], [], [0, 1, 2], [2, 1, 0]], ids=str)
def test_deepstack_keeps_merger_and_order(
    indexes: list[int],
    make_checkpoint: Any,
    make_batch: Any,
) -> None:
    checkpoint = make_checkpoint(deepstack_visual_indexes=indexes)
    tower = load_tower(checkpoint.folder)
    items = make_batch(tower, [(1, 4, 4), (2, 2, 4)])
    expected = checkpoint.ask(items)
    assert len(expected[0]["deepstack"]) == len(indexes)
    capture(tower, budget=64, buckets=[(64, 4)])
    assert worst(tower.encode(items), expected) <= ORACLE
    assert worst(tower.encode(items, eager=True), expected) <= ORACLE
    assert tower.num_deepstack == len(indexes)


def test_rope_theta_of_the_config_is_used(make_checkpoint: Any, make_batch: Any) -> None:
    checkpoint = make_checkpoint(rope_parameters={"rope_theta": 50.0, "rope_type": "axial"})
    tower = load_tower(checkpoint.folder)
    items = make_batch(tower, [(1, 8, 6)])
    error = worst(tower.encode(items), checkpoint.ask(items))
    assert error <= ORACLE
    default = load_tower(make_checkpoint().folder)
    assert worst(default.encode(items), checkpoint.ask(items)) > 1e-4


@pytest.mark.parametrize("act", ["gelu", "gelu_pytorch_tanh", "silu"])
def test_activation_of_the_config_is_used(act: str, make_checkpoint: Any, make_batch: Any) -> None:
    checkpoint = make_checkpoint(hidden_act=act)
    tower = load_tower(checkpoint.folder)
    items = make_batch(tower, [(1, 8, 6)])
    assert worst(tower.encode(items), checkpoint.ask(items)) <= ORACLE
