# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Qwen3-Omni, Qwen3.5 and GLM: what transformers' own towers say, from what it saves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

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

Grid = tuple[int, int, int]

VISION: dict[str, Any] = {
    "depth": 3,
    "hidden_size": 64,
    "num_heads": 2,
    "intermediate_size": 96,
    "out_hidden_size": 40,
    "patch_size": 4,
}
QWEN = {"num_position_embeddings": 49}
OMNI = {**QWEN, "deepstack_visual_indexes": [1, 0]}
GLM4 = {"image_size": 28, "intermediate_size": 56}  # a 7 x 7 table; the merger's width
GLM5 = {"projection_intermediate_size": 48, "swiglu_limit": 0.3}

TEXT = {
    "vocab_size": 64,
    "hidden_size": 40,
    "intermediate_size": 32,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}
MOE = {"num_experts": 2, "num_experts_per_tok": 1, "n_routed_experts": 2, "n_shared_experts": 1}
GLM5_TEXT = {
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "v_head_dim": 8,
    "qk_nope_head_dim": 8,
    "index_head_dim": 8,
    "index_n_heads": 2,
    "linear_head_dim": 8,
    "linear_num_heads": 2,
}
AUDIO = {
    "num_mel_bins": 16,
    "encoder_layers": 1,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "d_model": 16,
    "output_dim": 40,
    "downsample_hidden_size": 4,
}


class Family(NamedTuple):
    """A model type with a tower.

    ``make`` returns the whole model; transformers saves it and its tower is the oracle.
    """

    model_type: str
    vision: dict[str, Any]
    make: Callable[[dict[str, Any]], nn.Module]
    oracle_class: str
    flatten: bool = False  # transformers' model hands videos over as pictures


def _whole(model_type: str, text: dict[str, Any], **extra: Any) -> Callable[..., nn.Module]:
    def make(vision: dict[str, Any]) -> nn.Module:
        from transformers import AutoConfig, AutoModelForImageTextToText

        kind = type(AutoConfig.for_model(model_type))
        default = AutoConfig.for_model(model_type).text_config
        known = {k: v for k, v in {**TEXT, **text}.items() if hasattr(default, k)}
        if "text_type" in extra:
            known["model_type"] = extra["text_type"]
        config = kind(text_config=known, vision_config=dict(vision))
        model: nn.Module = AutoModelForImageTextToText.from_config(config)
        return model

    return make


def _omni(vision: dict[str, Any], *, thinker_only: bool) -> nn.Module:
    import transformers
    from transformers.models.qwen3_omni_moe import configuration_qwen3_omni_moe as configs

    thinker = {
        "text_config": {**TEXT, **MOE, "head_dim": 16},
        "vision_config": dict(vision),
        "audio_config": AUDIO,
    }
    if thinker_only:
        config = configs.Qwen3OmniMoeThinkerConfig(**thinker)
        return transformers.Qwen3OmniMoeThinkerForConditionalGeneration(config)
    whole = configs.Qwen3OmniMoeConfig(thinker_config=thinker, enable_audio_output=False)
    return transformers.Qwen3OmniMoeForConditionalGeneration(whole)


FAMILIES = {
    "qwen3_omni": Family(
        "qwen3_omni_moe",
        OMNI,
        lambda vision: _omni(vision, thinker_only=False),
        "Qwen3OmniMoeVisionEncoder",
    ),
    "qwen3_omni_thinker": Family(
        "qwen3_omni_moe_thinker",
        OMNI,
        lambda vision: _omni(vision, thinker_only=True),
        "Qwen3OmniMoeVisionEncoder",
    ),
    "qwen3_5": Family("qwen3_5", QWEN, _whole("qwen3_5", {}), "Qwen3_5VisionModel"),
    "glm4v": Family("glm4v", GLM4, _whole("glm4v", {}), "Glm4vVisionModel", True),
    "glm4v_moe": Family("glm4v_moe", GLM4, _whole("glm4v_moe", MOE), "Glm4vMoeVisionModel", True),
    "glm46v": Family(
        "glm46v",
        {"model_type": "glm4v_vision", **GLM4},
        _whole("glm46v", {}, text_type="glm4v_text"),
        "Glm4vVisionModel",
        True,
    ),
    "glm46v_moe": Family(
        "glm46v",
        {"model_type": "glm4v_moe_vision", **GLM4},
        _whole("glm46v", MOE, text_type="glm4v_moe_text"),
        "Glm4vMoeVisionModel",
        True,
    ),
    "glm_ocr": Family("glm_ocr", {}, _whole("glm_ocr", {}), "GlmOcrVisionModel", True),
    "glm5_next": Family(
        "glm5_next",
        GLM5,
        _whole("glm5_next", {**MOE, **GLM5_TEXT}),
        "Glm5NextVisionModel",
        True,
    ),
}


class Saved(NamedTuple):
    name: str
    family: Family
    folder: Path
    oracle: nn.Module

    def ask(self, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Transformers' answer per item, under the names of our outputs."""
        grids = [tuple(int(n) for n in item["grid_thw"]) for item in items]
        rows = [t * h * w // 4 for t, h, w in grids]
        if self.family.flatten:
            grids = [(1, h, w) for t, h, w in grids for _ in range(t)]
        pixels = torch.cat([item["pixel_values"] for item in items])
        with torch.no_grad():
            out = self.oracle(pixels, grid_thw=torch.tensor(grids))
        deepstack = getattr(out, "deepstack_features", None) or []
        taps = [tap.split(rows) for tap in deepstack]
        return [
            {"features": features, "deepstack": [tap[i] for tap in taps]}
            for i, features in enumerate(out.pooler_output.split(rows))
        ]


def save(name: str, folder: Path, randomise: Any, **vision: Any) -> Saved:
    family = FAMILIES[name]
    model = family.make({**VISION, **family.vision, **vision}).eval()
    found = [m for m in model.modules() if type(m).__name__ == family.oracle_class]
    (oracle,) = found
    randomise(oracle, 3)
    model.save_pretrained(folder)
    return Saved(name, family, folder, oracle)


@pytest.fixture(scope="module", params=FAMILIES)
def saved(request: Any, tmp_path_factory: Any, randomise: Any) -> Saved:
    return save(request.param, tmp_path_factory.mktemp(request.param), randomise)


@pytest.fixture(scope="module")
def tower(saved: Saved) -> Any:
    tower = load_tower(saved.folder)
    capture(tower, 256, buckets=[(64, 8), (256, 64)])
    return tower


MIXED: list[Grid] = [(1, 2, 2), (3, 4, 2), (1, 12, 10), (1, 2, 10)]
LARGE: list[Grid] = [(1, 16, 16), (1, 2, 30), (1, 30, 2), (1, 16, 2)]  # beyond the table


@pytest.mark.parametrize("grids", [MIXED, LARGE, [(40, 2, 2)], [(5, 6, 8)]], ids=str)
def test_matches_transformers(grids: list[Grid], saved: Saved, tower: Any, make_batch: Any) -> None:
    items = make_batch(tower, grids)
    expected = saved.ask(items)
    replayed = check_replays(tower, items)
    assert worst(replayed, expected) <= ORACLE
    assert worst(tower.encode(items, eager=True), expected) <= ORACLE
    assert [len(out.deepstack) for out in replayed] == [tower.num_deepstack] * len(items)
    for (t, h, w), out in zip(grids, replayed, strict=True):
        assert out.features.shape == (t * h * w // 4, 40)


def test_frames_of_a_video_are_pictures(saved: Saved, tower: Any, make_item: Any) -> None:
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


def test_captured_region_reads_nothing_from_the_device(saved: Saved) -> None:
    config = json.loads((saved.folder / "config.json").read_text())
    entry = tower_entry(saved.family.model_type, "image")
    assert config["model_type"] == saved.family.model_type
    shapes = run_fake(lambda: entry.factory(config), Bucket(64, 8))
    deepstack = {"deepstack_0", "deepstack_1"} if "omni" in saved.name else set()
    assert shapes == dict.fromkeys({"features", *deepstack}, (16, 40))


def test_modalities(saved: Saved) -> None:
    omni = "omni" in saved.name
    assert modalities_of(saved.folder) == (("audio", "image") if omni else ("image",))


# ---- controls: what of the config and of the weights is seen ---------------------------------


def test_every_weight_is_used(saved: Saved, make_batch: Any) -> None:
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
    name: str, key: str, value: Any, other: Any, tmp_path: Path, randomise: Any, make_batch: Any
) -> None:
    checkpoint = save(name, tmp_path, randomise, **{key: value})
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


def test_keys_that_a_published_config_leaves_out(tmp_path: Path, randomise: Any) -> None:
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
        save(name, tmp_path / name, randomise, **defaults)
        edit_vision(tmp_path / name, lambda vision, keys=keys: [vision.pop(k, 0) for k in keys])
        tower = load_tower(tmp_path / name)
        assert {key: getattr(tower.config, key) for key in keys} == defaults, name


# ---- real pictures ---------------------------------------------------------------------------

PROCESSORS = {
    "qwen3_omni": ("Qwen2VLImageProcessorPil", {"patch_size": 16, "num_position_embeddings": 2304}),
    "glm4v": ("Glm4vImageProcessorPil", {"patch_size": 14, "image_size": 336}),
    "glm46v_moe": ("Glm46VImageProcessorPil", {"patch_size": 14, "image_size": 336}),
    "glm_ocr": ("Glm46VImageProcessorPil", {"patch_size": 14}),
    "glm5_next": ("Glm5NextImageProcessorPil", {"patch_size": 14}),
}


@pytest.mark.parametrize("name", PROCESSORS)
def test_real_photographs(
    name: str, tmp_path: Path, randomise: Any, photo: Any, photo2: Any
) -> None:
    """Published patch and table, pixels from transformers' own processor."""
    import transformers

    kind, vision = PROCESSORS[name]
    size = {"shortest_edge": 64 * 64, "longest_edge": 224 * 224 * 2}
    processor = getattr(transformers, kind)(patch_size=vision["patch_size"], size=size)
    pictures = [photo.resize((320, 214)), photo2.resize((112, 240))]
    batch = processor(images=pictures, return_tensors="pt")
    grids = batch["image_grid_thw"]
    rows = batch["pixel_values"].split(grids.prod(1).tolist())
    items = [{"pixel_values": r, "grid_thw": g} for r, g in zip(rows, grids, strict=True)]

    saved = save(name, tmp_path, randomise, **vision)
    tower = load_tower(tmp_path)
    expected = saved.ask(items)
    largest = sum(map(len, rows))
    capture(tower, largest + 32, buckets=[(largest + 32, 3)])
    assert worst(tower.encode(items), expected) <= ORACLE
    assert worst(tower.encode(items, eager=True), expected) <= ORACLE
    assert tower.encoder_stats().replays == {f"{largest + 32}x3": 1}
