# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Every tower that reads merge blocks: what transformers' own towers say, from what it saves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from family_oracle import PROCESSORS
from make_tiny_checkpoint import FAMILIES
from tower_oracle import VisionOracle

from tensorrt_llm_ext.graphs.buckets import Bucket
from tensorrt_llm_ext.towers import load_tower, modalities_of
from tensorrt_llm_ext.towers.registry import tower_entry

from .checks import (
    ORACLE,
    capture,
    check_isolation,
    check_replays,
    relative_error,
    run_fake,
    worst,
)
from .small import VISION, save

Grid = tuple[int, int, int]


@pytest.fixture(scope="module", params=VISION)
def saved(request: Any, tmp_path_factory: Any) -> VisionOracle:
    return save(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def tower(saved: VisionOracle) -> Any:
    tower = load_tower(saved.folder)
    capture(tower, 256, buckets=[(64, 8), (256, 64)])
    return tower


MIXED: list[Grid] = [(1, 2, 2), (3, 4, 2), (1, 12, 10), (1, 2, 10)]
LARGE: list[Grid] = [(1, 16, 16), (1, 2, 30), (1, 30, 2), (1, 16, 2)]  # beyond the table


CUT: list[Grid] = [(1, 14, 2), (2, 8, 8), (1, 2, 14)]  # windows, at every border
BATCHES = [MIXED, LARGE, CUT, [(40, 2, 2)], [(5, 6, 8)], [(3, 10, 14)]]


@pytest.mark.parametrize("grids", BATCHES, ids=str)
def test_matches_transformers(
    grids: list[Grid], saved: VisionOracle, tower: Any, make_batch: Any
) -> None:
    items = make_batch(tower, grids)
    expected = saved.ask(items)
    replayed = check_replays(tower, items)
    assert worst(replayed, expected) <= ORACLE
    assert worst(tower.encode(items, eager=True), expected) <= ORACLE
    assert [len(out.deepstack) for out in replayed] == [tower.num_deepstack] * len(items)
    for (t, h, w), out in zip(grids, replayed, strict=True):
        assert out.features.shape == (t * h * w // 4, 40)


def test_frames_of_a_video_are_pictures(saved: VisionOracle, tower: Any, make_item: Any) -> None:
    """Every frame pair by itself says the same, and their order is kept."""
    t, h, w = 4, 6, 4
    video = make_item(tower, (t, h, w))
    frames = [
        {"pixel_values": rows, "grid_thw": (1, h, w)} for rows in video["pixel_values"].split(h * w)
    ]
    for eager in (False, True):
        (out,) = tower.encode([video], eager=eager)
        alone = tower.encode(frames, eager=eager)
        assert relative_error(out.features, torch.cat([f.features for f in alone])) <= ORACLE
    assert worst(tower.encode([video]), saved.ask([video])) <= ORACLE
    swapped = {**video, "pixel_values": video["pixel_values"].roll(h * w, 0)}
    assert worst(tower.encode([swapped]), saved.ask([video])) > 1e-2


def test_batch_mates_change_nothing(tower: Any, make_batch: Any) -> None:
    grids = [(1, 4, 4), (7, 2, 2), (1, 2, 12), (2, 6, 4), (1, 12, 12), (1, 2, 2), (3, 4, 6)]
    check_isolation(tower, make_batch(tower, grids))


def test_captured_region_reads_nothing_from_the_device(saved: VisionOracle, tower: Any) -> None:
    config = json.loads((saved.folder / "config.json").read_text())
    entry = tower_entry(config["model_type"], "image")
    shapes = run_fake(lambda: entry.factory(config), Bucket(64, 8))
    deepstack = [f"deepstack_{i}" for i in range(tower.num_deepstack)]
    assert shapes == dict.fromkeys(["features", *deepstack], (16, 40))


def test_modalities(saved: VisionOracle) -> None:
    omni = saved.model_type.startswith("qwen3_omni")
    assert modalities_of(saved.folder) == (("audio", "image") if omni else ("image",))


# ---- controls: what of the config and of the weights is seen ---------------------------------


def test_every_weight_is_used(saved: VisionOracle, make_batch: Any) -> None:
    """Another value of any parameter changes an output; none is loaded for nothing."""
    tower = load_tower(saved.folder)
    items = make_batch(tower, [(1, 4, 6), (2, 2, 4)])
    before = tower.encode(items)
    expected = saved.ask(items)
    generator = torch.Generator().manual_seed(1)
    unused = []
    for name, parameter in tower.named_parameters():
        kept = parameter.clone()
        with torch.no_grad():
            parameter += torch.randn(parameter.shape, generator=generator) * 0.5
        if worst(tower.encode(items), before) == 0.0:
            unused.append(name)
        with torch.no_grad():
            parameter.copy_(kept)
    # The bias of the keys cancels in the softmax, but it is one parameter with query's and value's.
    assert unused == []
    assert worst(tower.encode(items), expected) <= ORACLE


# Family, key of vision_config, its value in the checkpoint, another one of the same shapes.
KEYS: list[tuple[str, str, Any, Any]] = [
    ("glm4v", "rms_norm_eps", 0.3, 1e-5),
    ("glm4v", "hidden_act", "gelu", "silu"),
    ("glm4v_moe", "rms_norm_eps", 0.3, 1e-5),
    ("glm_ocr", "rms_norm_eps", 0.3, 1e-5),
    ("glm_ocr", "hidden_act", "gelu", "silu"),
    ("glm_ocr", "in_channels", 1, None),
    ("glm5_next", "rms_norm_eps", 0.3, 1e-5),
    ("glm5_next", "swiglu_limit", 1.0, 0.3),
    ("qwen3_omni", "hidden_act", "silu", "gelu"),
    ("qwen3_omni", "deepstack_visual_indexes", [2, 1], [1, 2]),
    ("qwen3_5", "num_position_embeddings", 36, None),
]


@pytest.mark.parametrize(("name", "key", "value", "other"), KEYS)
def test_keys_of_the_config(
    name: str, key: str, value: Any, other: Any, tmp_path: Path, make_batch: Any
) -> None:
    checkpoint = save(name, tmp_path, **{key: value})
    tower = load_tower(tmp_path)
    items = make_batch(tower, MIXED)
    expected = checkpoint.ask(items)
    assert worst(tower.encode(items), expected) <= ORACLE
    if other is not None:
        edit_vision(tmp_path, lambda vision: vision.update({key: other}))
        assert worst(load_tower(tmp_path).encode(items), expected) > 1e-4


def edit_vision(folder: Path, how: Callable[[dict[str, Any]], Any]) -> None:
    config = json.loads((folder / "config.json").read_text())
    how(config.get("thinker_config", config)["vision_config"])
    (folder / "config.json").write_text(json.dumps(config))


def test_keys_that_a_published_config_leaves_out(tmp_path: Path) -> None:
    """Defaults are transformers' class defaults, not those of another GLM."""
    from transformers import GlmOcrVisionConfig
    from transformers.models.glm4v import Glm4vVisionConfig
    from transformers.models.glm5_next import Glm5NextVisionConfig

    kinds = {
        "glm_ocr": GlmOcrVisionConfig,
        "glm5_next": Glm5NextVisionConfig,
        "glm4v": Glm4vVisionConfig,
    }
    for name, kind in kinds.items():
        keys = {"attention_bias", "swiglu_limit", "rms_norm_eps", "hidden_act", "in_channels"}
        keys = {key for key in keys if hasattr(kind(), key)}
        defaults = {key: getattr(kind(), key) for key in keys}
        save(name, tmp_path / name, **defaults)
        edit_vision(tmp_path / name, lambda vision, keys=keys: [vision.pop(k, 0) for k in keys])
        tower = load_tower(tmp_path / name)
        assert {key: getattr(tower.config, key) for key in keys} == defaults, name


# ---- real pictures ---------------------------------------------------------------------------

PICTURES: dict[str, dict[str, Any]] = {
    "qwen3_omni": {"patch_size": 16, "num_position_embeddings": 2304},
    "qwen2_5_vl": {"patch_size": 14, "window_size": 112},
    "glm4v": {"patch_size": 14, "image_size": 336},
    "glm46v_moe": {"patch_size": 14, "image_size": 336},
    "glm_ocr": {"patch_size": 14},
    "glm5_next": {"patch_size": 14},
}


@pytest.mark.parametrize("name", PICTURES)
def test_real_photographs(name: str, tmp_path: Path, photo: Any, photo2: Any) -> None:
    """Published patch, window and table, pixels from transformers' own processor."""
    import transformers

    saved = save(name, tmp_path, **PICTURES[name])
    processor = getattr(transformers, PROCESSORS[FAMILIES[name].preprocessors][1])
    pictures = [photo.resize((320, 214)), photo2.resize((112, 240))]
    batch = processor.from_pretrained(tmp_path)(images=pictures, return_tensors="pt")
    grids = batch["image_grid_thw"]
    rows = batch["pixel_values"].split(grids.prod(1).tolist())
    items = [{"pixel_values": r, "grid_thw": g} for r, g in zip(rows, grids, strict=True)]

    tower = load_tower(tmp_path)
    expected = saved.ask(items)
    largest = sum(map(len, rows))
    capture(tower, largest + 32, buckets=[(largest + 32, 3)])
    assert worst(check_replays(tower, items), expected) <= ORACLE
    assert tower.encoder_stats().replays == {f"{largest + 32}x3": 2}
