# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""RADIO against transformers' RadioModel, which takes dense pictures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from make_tiny_checkpoint import make_tiny_checkpoint
from safetensors.torch import load_file, save_file
from tower_oracle import RadioOracle

from tensorrt_llm_ext import MultimodalConfig
from tensorrt_llm_ext.graphs.buckets import Bucket
from tensorrt_llm_ext.towers import load_tower, modalities_of
from tensorrt_llm_ext.towers.registry import tower_entry

from .checks import ORACLE, capture, check_isolation, check_replays, run_fake, worst

PATCH, SIDE = 4, 8  # pixels; a table of 8 x 8 positions
CONFIG = {"num_hidden_layers": 3, "patch_size": PATCH, "max_img_size": PATCH * SIDE}
PREFIX = "radio_model."


def save(folder: Path, **config: Any) -> RadioOracle:
    return RadioOracle(make_tiny_checkpoint(folder, "radio", vision={**CONFIG, **config}))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: Any) -> RadioOracle:
    return save(tmp_path_factory.mktemp("radio"))


@pytest.fixture(scope="module")
def tower(saved: RadioOracle) -> Any:
    tower = load_tower(saved.folder)
    capture(tower, 256, buckets=[(64, 4), (256, 8)])
    return tower


def picture(rows: int, columns: int, frames: int = 1, seed: int = 0, patch: int = PATCH) -> Any:
    """Pixels 0..1, [frames, 3, rows * patch, columns * patch]."""
    generator = torch.Generator().manual_seed(100 * rows + columns + 10000 * seed)
    return torch.rand(frames, 3, rows * patch, columns * patch, generator=generator)


def item_of(pixels: torch.Tensor, patch: int = PATCH) -> dict[str, Any]:
    """Patches in raster order by torch's own ``unfold``, which also puts channels first."""
    frames, _, height, width = pixels.shape
    rows = F.unfold(pixels, patch, stride=patch).transpose(1, 2).flatten(0, 1)
    return {"pixel_values": rows, "grid_thw": (frames, height // patch, width // patch)}


SIZES = {
    "one": [(3, 5)],
    "smallest": [(1, 1)],
    "as the table": [(8, 8)],
    "strips": [(1, 13), (13, 1)],
    "beyond the table": [(10, 14), (3, 9)],
    "several": [(2, 2), (6, 4), (5, 8), (1, 3)],
}


@pytest.mark.parametrize("name", SIZES)
def test_matches_transformers(name: str, saved: RadioOracle, tower: Any) -> None:
    pictures = [picture(*size) for size in SIZES[name]]
    expected = saved.ask(pictures)
    outs = check_replays(tower, [item_of(p) for p in pictures])
    assert worst(outs, expected) <= ORACLE
    assert worst(tower.encode([item_of(p) for p in pictures], eager=True), expected) <= ORACLE
    for (rows, columns), out in zip(SIZES[name], outs, strict=True):
        assert out.features.shape == (rows * columns, 64)
        assert out.summary.shape == (1, 2 * 64)


def test_frames_are_pictures_of_their_own(saved: RadioOracle, tower: Any) -> None:
    clips = [picture(2, 5, frames=3), picture(4, 4), picture(3, 2, frames=9)]
    outs = check_replays(tower, [item_of(c) for c in clips])
    assert worst(outs, saved.ask(clips)) <= ORACLE
    assert [out.summary.shape[0] for out in outs] == [3, 1, 9]


def test_one_segment_per_replay_and_mixed_runs(saved: RadioOracle, tower: Any) -> None:
    """A clip that no bucket holds is cut between frames, wherever the cut falls."""
    clip = picture(6, 8, frames=11)  # 58 rows a frame
    steps = tower.plan([(58,) * 11])
    assert sorted(len(step.segment_lengths) for step in steps) == [3, 4, 4]
    assert worst(check_replays(tower, [item_of(clip)]), saved.ask([clip])) <= ORACLE


def test_rows_are_in_raster_order(saved: RadioOracle, tower: Any) -> None:
    """Merge-block order, as the other vision towers have it, is another picture."""
    pixels = picture(4, 6)
    item = item_of(pixels)
    blocks = torch.arange(24).view(2, 2, 3, 2).transpose(1, 2).flatten()
    assert worst(tower.encode([item]), saved.ask([pixels])) <= ORACLE
    wrong = {**item, "pixel_values": item["pixel_values"][blocks]}
    assert worst(tower.encode([wrong]), saved.ask([pixels])) > 1e-2
    turned = {**item, "grid_thw": (1, 6, 4)}
    assert worst(tower.encode([turned]), saved.ask([pixels])) > 1e-3


def test_batch_mates_change_nothing(tower: Any) -> None:
    sizes = [(4, 4), (1, 1), (2, 7), (6, 5), (8, 8), (3, 3), (1, 9)]
    check_isolation(tower, [item_of(picture(*s, frames=1 + i % 3)) for i, s in enumerate(sizes)])


def test_captured_region_reads_nothing_from_the_device(saved: RadioOracle) -> None:
    config = json.loads((saved.folder / "config.json").read_text())
    factory = tower_entry("radio", "image").factory
    assert run_fake(lambda: factory(config), Bucket(64, 4)) == {"hidden": (64, 64)}
    assert modalities_of(saved.folder) == ("image",)


def test_a_photograph_at_the_published_patch(tmp_path: Path, photo: Any, photo2: Any) -> None:
    saved = save(tmp_path, patch_size=16, max_img_size=512)
    tower = load_tower(tmp_path)
    capture(tower, 512, buckets=[(512, 2)])
    pictures = []
    for image, size in ((photo, (320, 208)), (photo2, (112, 256))):
        pixels = torch.from_numpy(np.array(image.resize(size))).float() / 255
        pictures.append(pixels.permute(2, 0, 1)[None])
    items = [item_of(p, 16) for p in pictures]
    assert worst(check_replays(tower, items), saved.ask(pictures)) <= ORACLE
    assert tower.encoder_stats().eager == {"requested": 1}


@pytest.mark.parametrize(
    "change",
    [
        {"num_cls_tokens": 1, "summary_idxs": [0], "num_registers": 0},
        {"num_cls_tokens": 4, "summary_idxs": [3, 1, 0], "num_registers": 2},
        {"mlp_ratio": 1.5, "layer_norm_eps": 0.1, "hidden_act": "silu"},
        {"norm_mean": [0.1, 0.2, 0.3], "norm_std": [2.0, 1.0, 0.5]},
    ],
    ids=str,
)
def test_keys_of_the_config(change: dict[str, Any], tmp_path: Path) -> None:
    saved = save(tmp_path, **change)
    tower = load_tower(tmp_path)
    clips = [picture(3, 5, frames=2), picture(2, 2)]
    assert worst(tower.encode([item_of(c) for c in clips]), saved.ask(clips)) <= ORACLE


def test_align_corners_is_a_knob(
    saved: RadioOracle, tower: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the remote code of C-RADIOv2-H resamples; the weights were trained without."""
    from transformers.models.radio import modeling_radio

    other = load_tower(saved.folder, config_overrides={"align_corners": True})
    pictures = [picture(3, 5), picture(1, 1), picture(8, 8), picture(9, 12)]
    items = [item_of(p) for p in pictures]
    plain = saved.ask(pictures)

    def resample(x: Any, size: Any, mode: str, align_corners: bool) -> Any:
        assert not align_corners
        return F.interpolate(x, size=size, mode=mode, align_corners=True)

    functional = type("Functional", (), {**vars(F), "interpolate": staticmethod(resample)})
    monkeypatch.setattr(modeling_radio, "F", functional)
    aligned = saved.ask(pictures)
    assert worst(other.encode(items), aligned) <= ORACLE
    assert worst(tower.encode(items), plain) <= ORACLE
    assert worst(tower.encode(items), aligned) > 1e-3
    assert not tower.config.align_corners  # the default


# ---- checkpoint ------------------------------------------------------------------------------


@pytest.fixture
def edit(saved: RadioOracle, tmp_path: Path) -> Callable[..., Path]:
    """Copies the checkpoint with other weights."""

    def change(how: Callable[[dict[str, Any]], Any]) -> Path:
        state = load_file(saved.folder / "model.safetensors")
        how(state)
        save_file(state, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_bytes((saved.folder / "config.json").read_bytes())
        return tmp_path

    return change


def test_layer_scale_on_disk(edit: Any, saved: RadioOracle, tower: Any) -> None:
    """Published checkpoints have none, transformers writes ones; others would be ignored."""
    scale = PREFIX + "model.blocks.{}.layer_scale{}.lambda1"
    keys = load_file(saved.folder / "model.safetensors").keys()
    written = {key for key in keys if "layer_scale" in key}
    assert written == {scale.format(i, j) for i in range(3) for j in (1, 2)}

    without = edit(lambda state: [state.pop(key) for key in written])
    items = [item_of(picture(3, 5))]
    assert worst(load_tower(without).encode(items), tower.encode(items, eager=True)) == 0.0

    def one_off(state: dict[str, Any]) -> None:
        state[scale.format(1, 2)][5] = 0.5

    with pytest.raises(ValueError, match=r"blocks\.1\.layer_scale2\.lambda1 is supported only wh"):
        load_tower(edit(one_off))


def test_keys_without_use(edit: Any, tower: Any) -> None:
    name = PREFIX + "model.patch_generator.video_embedder.weight"
    folder = edit(lambda state: state.update({name: torch.full((64, 96), torch.nan)}))
    assert PREFIX + "summary_idxs" in load_file(folder / "model.safetensors")
    items = [item_of(picture(3, 5))]
    assert worst(load_tower(folder).encode(items), tower.encode(items, eager=True)) == 0.0
    for unknown in ("model.norm.weight", "model.patch_generator.video_embedder.bias"):
        folder = edit(lambda s, unknown=unknown: s.update({PREFIX + unknown: torch.ones(64)}))
        with pytest.raises(ValueError, match=f"unexpected {PREFIX}{unknown}"):
            load_tower(folder)


def test_the_prefix_of_nemotron(edit: Any, tower: Any) -> None:
    def rename(state: dict[str, Any]) -> None:
        for key in list(state):
            state["vision_model." + key] = state.pop(key)
        state["mlp1.0.weight"] = torch.ones(4)

    items = [item_of(picture(3, 5))]
    loaded = load_tower(edit(rename))
    assert worst(loaded.encode(items), tower.encode(items, eager=True)) == 0.0


@pytest.mark.parametrize("change", [{"use_swiglu_ffn": True}, {"qkv_bias": False}], ids=str)
def test_variants_that_are_not_there(change: dict[str, Any], saved: RadioOracle) -> None:
    with pytest.raises(ValueError, match="use_swiglu_ffn or without qkv_bias is not supported"):
        load_tower(saved.folder, config_overrides=change)


@pytest.mark.parametrize(
    "change", [{"summary_idxs": [0, 3]}, {"summary_idxs": [-1]}, {"num_registers": -1}], ids=str
)
def test_configs_that_cannot_work(change: dict[str, Any], saved: RadioOracle) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        load_tower(saved.folder, config_overrides=change)


def test_random_weights_stay_finite(saved: RadioOracle) -> None:
    """Mean and deviation of the pixels are constants of the model, not weights to draw."""
    config = json.loads((saved.folder / "config.json").read_text())
    random = load_tower(config, seed=3)
    assert torch.equal(random.norm_std.flatten(), torch.tensor(config["norm_std"]))
    assert torch.equal(random.norm_mean.flatten(), torch.tensor(config["norm_mean"]))


def test_buckets_have_room_for_learned_tokens(saved: RadioOracle) -> None:
    """A square of 32 patches a side and its 10 learned tokens, but for the alignment."""
    tower = load_tower(saved.folder)
    config = MultimodalConfig(encoder_cuda_graph={"image": {"max_batch_size": 4}})
    tower.configure_encoder_cuda_graph(config, 2048)
    sizes = {bucket.num_tokens for bucket in tower.planned_buckets()}
    assert {64 + 16, 256 + 16, 1024 + 16, 2048} <= sizes
    assert not sizes & {64, 256, 1024}
