# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: what is read, and every way in which one can be wrong."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tower_oracle import VisionOracle, load_model

from tensorrt_llm_ext.towers import load_tower, modalities_of

from .checks import ORACLE, worst

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
PREFIX = "model.visual."


@pytest.fixture
def folder(make_checkpoint: Any, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(make_checkpoint().folder, tmp_path / "checkpoint"))


@pytest.fixture
def edit(folder: Path) -> Callable[[Callable[[dict[str, Any]], Any]], None]:
    """Changes the weights on disk."""

    def change(how: Callable[[dict[str, Any]], Any]) -> None:
        state = load_file(folder / SINGLE)
        how(state)
        save_file(state, folder / SINGLE)

    return change


def shard(folder: Path, count: int = 3) -> dict[str, str]:
    """Splits the single file; returns the weight map."""
    state = load_file(folder / SINGLE)
    (folder / SINGLE).unlink()
    names = [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
    where = {key: names[i % count] for i, key in enumerate(sorted(state))}
    for name in names:
        save_file({k: state[k] for k, n in where.items() if n == name}, folder / name)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return where


def reindex(folder: Path, weight_map: Any) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def assert_same_weights(a: torch.nn.Module, b: torch.nn.Module) -> None:
    for (name, x), (_, y) in zip(a.named_parameters(), b.named_parameters(), strict=True):
        assert torch.equal(x, y), name


def test_single_file_and_shards(folder: Path) -> None:
    single = load_tower(folder)
    assert not single.training
    assert not any(p.requires_grad for p in single.parameters())
    where = shard(folder)
    assert_same_weights(load_tower(str(folder)), single)
    # What belongs to the rest of the model is none of ours, wherever the index says it is.
    reindex(folder, {**where, "lm_head.weight": where[PREFIX + "merger.norm.bias"]})
    assert_same_weights(load_tower(folder, modality="vision"), single)


def test_links_of_a_hub_cache_are_followed(folder: Path, tmp_path: Path) -> None:
    linked = tmp_path / "snapshot"
    linked.mkdir()
    for file in folder.iterdir():
        (linked / file.name).symlink_to(file)
    assert_same_weights(load_tower(linked), load_tower(folder))


def test_all_wrong_keys_are_in_one_error(folder: Path, edit: Any) -> None:
    def break_it(state: dict[str, Any]) -> None:
        del state[PREFIX + "blocks.1.mlp.linear_fc2.bias"]
        del state[PREFIX + "pos_embed.weight"]
        state[PREFIX + "blocks.3.norm1.weight"] = torch.ones(64)
        state[PREFIX + "merger.norm.weight"] = torch.ones(65)
        state[PREFIX + "patch_embed.proj.weight"] = torch.ones(64, 96)  # as many values, flat

    edit(break_it)
    with pytest.raises(ValueError, match="does not fit Qwen3VLVisionTower") as caught:
        load_tower(folder)
    assert str(folder) in str(caught.value)
    assert set(str(caught.value).split(": ", 1)[1].split("; ")) == {
        "missing model.visual.blocks.1.mlp.linear_fc2.bias",
        "missing model.visual.pos_embed.weight",
        "unexpected model.visual.blocks.3.norm1.weight",
        "model.visual.merger.norm.weight is [65], expected [64]",
        "model.visual.patch_embed.proj.weight is [64, 96], expected [64, 3, 2, 4, 4]",
    }


def test_shards_that_lack_what_the_index_promises(folder: Path) -> None:
    where = shard(folder)
    moved = [PREFIX + "merger.norm.bias", PREFIX + "blocks.0.norm1.bias"]
    others = {key: next(n for n in where.values() if n != where[key]) for key in moved}
    reindex(folder, {**where, **others})
    with pytest.raises(ValueError, match="does not fit") as caught:
        load_tower(folder)
    for key, name in others.items():
        assert f"missing {key} in {name}" in str(caught.value)


def test_a_prefix_that_nothing_has(folder: Path, edit: Any) -> None:
    def rename(state: dict[str, Any]) -> None:
        for key in list(state):
            state[key.replace("model.visual.", "visual.")] = state.pop(key)

    edit(rename)
    with pytest.raises(ValueError, match=r"missing model\.visual\.patch_embed\.proj\.weight"):
        load_tower(folder)


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "/etc/passwd", "a/b.safetensors", "..", 5, ""]
)
def test_index_must_stay_in_its_folder(name: Any, folder: Path) -> None:
    save_file({"x": torch.ones(1)}, folder.parent / "x.safetensors")
    reindex(folder, {**shard(folder), PREFIX + "merger.norm.bias": name})
    with pytest.raises(ValueError, match=re.escape(f"names {name!r}, which is not in the folder")):
        load_tower(folder)


def test_index_of_missing_or_no_files(folder: Path) -> None:
    where = shard(folder)
    reindex(folder, {**where, PREFIX + "merger.norm.bias": "gone.safetensors"})
    with pytest.raises(ValueError, match=r"missing files: \['.*gone\.safetensors'\]"):
        load_tower(folder)
    reindex(folder, {})
    with pytest.raises(ValueError, match="names no weights"):
        load_tower(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "is a JSON list, not an object"),
        ("{}", "has no weight_map"),
        ('{"weight_map": []}', "has no weight_map"),
    ],
)
def test_broken_index(text: str, message: str, folder: Path) -> None:
    (folder / INDEX).write_text(text)
    with pytest.raises(ValueError, match=f"{re.escape(INDEX)} {message}"):
        load_tower(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth", "model.pt"])
def test_pickled_weights_are_refused_with_a_hint(name: str, folder: Path) -> None:
    (folder / SINGLE).rename(folder / name)
    with pytest.raises(ValueError, match=f"neither .*{name}.*: convert them, pickled weights"):
        load_tower(folder)


def test_no_weights_at_all(folder: Path) -> None:
    (folder / SINGLE).unlink()
    with pytest.raises(ValueError, match=r"has neither model\.safetensors nor .*index\.json$"):
        load_tower(folder)


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1\n", None])
@pytest.mark.parametrize("sharded", [False, True])
def test_broken_weights(content: bytes | None, sharded: bool, folder: Path) -> None:
    path = folder / (next(iter(shard(folder).values())) if sharded else SINGLE)
    path.write_bytes(path.read_bytes()[:-10] if content is None else content)
    with pytest.raises(ValueError, match=f"{path.name} is not a whole safetensors file"):
        load_tower(folder)


# ---- config.json -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "does not exist; expected a Hugging Face folder"),
        ("{", "is not JSON"),
        ("\xff\xfe", "is not JSON"),
        ("[1]", "is a JSON list, not an object"),
        ("{}", "has no model_type"),
        ('{"model_type": null}', "has no model_type"),
    ],
)
def test_broken_config(text: str | None, message: str, folder: Path) -> None:
    path = folder / "config.json"
    path.unlink()
    if text is not None:
        path.write_bytes(text.encode("latin-1"))
    for read in (load_tower, modalities_of):
        with pytest.raises(ValueError, match=rf"config\.json {message}"):
            read(folder)


def test_a_file_or_nothing_instead_of_a_folder(folder: Path) -> None:
    for wrong in (folder / "config.json", folder / "nowhere"):
        with pytest.raises(ValueError, match="does not exist; expected a Hugging Face folder"):
            load_tower(wrong)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"depth": None}, r"vision_config\.depth: "),
        ({"deepstack_visual_indexes": [1, 1]}, r"\[1, 1\] have to be different blocks in 0\.\.2"),
        ({"deepstack_visual_indexes": [3]}, r"\[3\] have to be different blocks in 0\.\.2"),
        ({"deepstack_visual_indexes": [-1]}, r"\[-1\] have to be different blocks in 0\.\.2"),
        ({"num_position_embeddings": 50}, "50 position embeddings do not form a square table"),
        ({"num_heads": 3}, "width 64 with 3 heads gives head size 21.3333"),
        ({"num_heads": 5}, "width 64 with 5 heads gives head size 12.8"),
        (
            {"num_heads": 32},
            "head size 2; it has to be whole, and a multiple of 4 for two-axis rope",
        ),
        ({"hidden_act": "relu"}, r"'relu' is not supported; allowed: \['gelu', 'gelu_pytorch_tan"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type: Input should be 'axial'"),
        ({"rope_parameters": None, "rope_scaling": {"type": "yarn"}}, "should be 'axial'"),
        ({"rope_parameters": {"rope_theta": "much"}}, r"rope_parameters\.rope_theta: "),
        ({"patch_size": [4, 4]}, r"vision_config\.patch_size: "),
    ],
)
def test_config_that_cannot_work(change: dict[str, Any], message: str, folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["vision_config"].update(change)
    if config["vision_config"]["rope_parameters"] is None:
        del config["vision_config"]["rope_parameters"]
    with pytest.raises(ValueError, match=message):
        load_tower(config)


@pytest.mark.parametrize("vision", [None, [], "x"])
def test_config_without_a_vision_part(vision: Any) -> None:
    with pytest.raises(ValueError, match="qwen3_vl image tower: vision_config: "):
        load_tower({"model_type": "qwen3_vl", "vision_config": vision})
    with pytest.raises(ValueError, match="vision_config: expected an object, found None"):
        load_tower({"model_type": "qwen3_vl"})


def test_config_of_published_checkpoints_and_of_transformers_5(
    make_checkpoint: Any, folder: Path, make_batch: Any
) -> None:
    """Published: vision model_type is the model's, no rope; 5.x: rope_parameters."""
    config = json.loads((folder / "config.json").read_text())
    vision = config["vision_config"]
    assert vision["rope_parameters"]["rope_theta"] == 10000.0
    tower = load_tower(folder)
    items = make_batch(tower, [(1, 6, 8)])
    expected = make_checkpoint().ask(items)
    assert worst(tower.encode(items), expected) <= ORACLE

    original = {**vision, "model_type": "qwen3_vl"}
    del original["rope_parameters"]
    text = {"rope_scaling": {"mrope_interleaved": True, "rope_type": "default"}, "rope_theta": 5e6}
    for extra in ({}, {"rope_scaling": None}, {"rope_scaling": {"rope_type": "default"}}):
        published = {**config, "vision_config": original | extra, "text_config": text}
        (folder / "config.json").write_text(json.dumps(published))
        assert worst(load_tower(folder).encode(items), expected) <= ORACLE


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 50.0},
        {"rope_scaling": {"rope_theta": 50.0, "rope_type": "default"}},
        {"rope_parameters": {"rope_theta": 50.0, "rope_type": "axial"}},
    ],
    ids=str,
)
def test_every_place_of_the_rope_base(rope: dict[str, Any], vision_config: dict[str, Any]) -> None:
    """Whatever place transformers reads it from."""
    from transformers.models.qwen3_vl import Qwen3VLVisionConfig

    theirs = Qwen3VLVisionConfig(**json.loads(json.dumps(rope))).rope_parameters["rope_theta"]
    tower = load_tower({"model_type": "qwen3_vl", "vision_config": vision_config | rope})
    assert tower.config.packed_vit().rope_theta == theirs == 50.0


def test_save_pretrained_of_a_whole_model(tiny_checkpoint: Path, make_batch: Any) -> None:
    """The checkpoint of the examples, against the model that transformers loads from it."""
    assert modalities_of(tiny_checkpoint) == ("image",)
    tower = load_tower(tiny_checkpoint)
    items = make_batch(tower, [(1, 8, 6), (2, 4, 4)])
    assert worst(tower.encode(items), VisionOracle(tiny_checkpoint).ask(items)) <= ORACLE


def test_shards_of_transformers(folder: Path, tmp_path: Path) -> None:
    load_model(folder).save_pretrained(tmp_path / "sharded", max_shard_size="100KB")
    assert (tmp_path / "sharded" / INDEX).exists()
    assert_same_weights(load_tower(tmp_path / "sharded"), load_tower(folder))


# ---- random weights --------------------------------------------------------------------------


def test_random_weights_depend_on_the_seed_alone(vision_config: dict[str, Any]) -> None:
    config = {"model_type": "qwen3_vl", "vision_config": vision_config}
    tower = load_tower(config, seed=3, init_std=0.05)
    torch.manual_seed(99)
    torch.set_default_dtype(torch.bfloat16)
    try:
        again = load_tower(config, seed=3, init_std=0.05)
    finally:
        torch.set_default_dtype(torch.float32)
    assert_same_weights(tower, again)
    half = load_tower(config, seed=3, init_std=0.05, dtype=torch.bfloat16)
    for p, rounded in zip(tower.parameters(), half.parameters(), strict=True):
        assert torch.equal(p.bfloat16(), rounded)
    other = load_tower(config, seed=4, init_std=0.05)
    assert not torch.equal(tower.merger.linear_fc1.weight, other.merger.linear_fc1.weight)
    for name, parameter in tower.named_parameters():
        centre = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        assert abs(float(parameter.mean()) - centre) < 0.04, name
        assert 0.025 < float(parameter.std()) < 0.075, name
