# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Towers of transformers under our lifecycle: Qwen2-VL, and Qwen2.5-VL with its two layouts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)

from tensorrt_llm_ext.graphs.buckets import Bucket
from tensorrt_llm_ext.towers import load_tower, modalities_of
from tensorrt_llm_ext.towers.registry import tower_entry
from tensorrt_llm_ext.towers.windows import WindowedLengths, window_layout

from .checks import ORACLE, capture, check_isolation, check_replays, relative_error, run_fake, worst

Grid = tuple[int, int, int]

TEXT = {
    "vocab_size": 64,
    "hidden_size": 40,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
}
VISION: dict[str, dict[str, Any]] = {
    "qwen2_vl": {
        "depth": 3,
        "embed_dim": 64,
        "hidden_size": 40,
        "num_heads": 2,
        "mlp_ratio": 2,
        "patch_size": 4,
    },
    "qwen2_5_vl": {
        "depth": 3,
        "hidden_size": 64,
        "out_hidden_size": 40,
        "num_heads": 2,
        "intermediate_size": 96,
        "patch_size": 4,
        "window_size": 24,  # 3 x 3 merged tokens
        "fullatt_block_indexes": [1],
    },
}


class Saved(NamedTuple):
    model_type: str
    folder: Path
    oracle: nn.Module

    def ask(self, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The unmodified tower's answer to the whole batch, per item."""
        grids = torch.tensor([[int(n) for n in item["grid_thw"]] for item in items])
        pixels = torch.cat([item["pixel_values"] for item in items])
        with torch.no_grad():
            merged = self.oracle(pixels, grid_thw=grids).pooler_output
        rows = (grids.prod(1) // 4).tolist()
        return [{"features": part, "deepstack": []} for part in merged.split(rows)]


def save(model_type: str, folder: Path, randomise: Any, **vision: Any) -> Saved:
    from transformers import AutoConfig, AutoModelForImageTextToText

    kind = type(AutoConfig.for_model(model_type))
    config = kind(text_config=TEXT, vision_config={**VISION[model_type], **vision})
    model = AutoModelForImageTextToText.from_config(config).eval()
    randomise(model.model.visual, 3)
    model.save_pretrained(folder)
    return Saved(model_type, folder, model.model.visual)


@pytest.fixture(scope="module", params=VISION)
def saved(request: Any, tmp_path_factory: Any, randomise: Any) -> Saved:
    return save(request.param, tmp_path_factory.mktemp(request.param), randomise)


@pytest.fixture(scope="module")
def tower(saved: Saved) -> Any:
    tower = load_tower(saved.folder)
    capture(tower, 256, buckets=[(64, 8), (256, 64)])
    return tower


BATCHES: list[list[Grid]] = [
    [(1, 4, 6)],
    [(1, 2, 2)],
    [(1, 2, 2), (3, 4, 2), (1, 12, 10), (1, 2, 10)],
    [(1, 16, 16)],
    [(1, 14, 2), (2, 8, 8), (1, 2, 14)],  # windows cut at every border
    [(5, 6, 8)],
    [(40, 2, 2)],
    [(3, 10, 14)],  # one frame a replay
]


@pytest.mark.parametrize("grids", BATCHES, ids=str)
def test_matches_transformers(grids: list[Grid], saved: Saved, tower: Any, make_batch: Any) -> None:
    items = make_batch(tower, grids)
    expected = saved.ask(items)
    replayed = check_replays(tower, items)
    assert worst(replayed, expected) <= ORACLE
    assert worst(tower.encode(items, eager=True), expected) <= ORACLE
    for (t, h, w), out in zip(grids, replayed, strict=True):
        assert out.features.shape == (t * h * w // 4, tower.out_hidden_size)
    assert tower.out_hidden_size == 40


def test_the_unmodified_tower_is_not_touched(saved: Saved, tower: Any, make_batch: Any) -> None:
    """Ours is another module: the oracle goes on with its own attention."""
    assert saved.oracle.config._attn_implementation == "sdpa"
    items = make_batch(tower, [(1, 4, 6)])
    before = saved.ask(items)
    tower.encode(items)
    assert worst(saved.ask(items), before) == 0.0


def test_batch_mates_change_nothing(tower: Any, make_batch: Any) -> None:
    grids = [(1, 4, 4), (7, 2, 2), (1, 2, 12), (2, 6, 4), (1, 12, 12), (1, 2, 2), (3, 4, 6)]
    check_isolation(tower, make_batch(tower, grids))


def test_frames_of_a_video(saved: Saved, tower: Any, make_item: Any) -> None:
    t, h, w = 4, 6, 8
    video = make_item(tower, (t, h, w))
    frames = [
        {"pixel_values": rows, "grid_thw": (1, h, w)} for rows in video["pixel_values"].split(h * w)
    ]
    (out,) = tower.encode([video])
    alone = torch.cat([f.features for f in tower.encode(frames)])
    assert relative_error(out.features, alone) <= ORACLE
    assert worst(tower.encode([video]), saved.ask([video])) <= ORACLE


def test_captured_region_reads_nothing_from_the_device(saved: Saved) -> None:
    config = json.loads((saved.folder / "config.json").read_text())
    factory = tower_entry(saved.model_type, "image").factory
    assert run_fake(lambda: factory(config), Bucket(64, 8)) == {"features": (16, 40)}
    assert modalities_of(saved.folder) == ("image",)
    # Control: as transformers calls it, it does.
    with FakeTensorMode(allow_non_fake_inputs=True):
        hf = factory(config).hf
        hf.config._attn_implementation = "sdpa"
        grid = torch.tensor([[1, 8, 8]])
        with pytest.raises((DataDependentOutputException, DynamicOutputShapeException)):
            hf(torch.zeros(64, 96), grid_thw=grid)


def test_a_photograph(tmp_path: Path, randomise: Any, photo: Any, photo2: Any) -> None:
    """Published patch and window, pixels from transformers' own processor."""
    from transformers import Qwen2VLImageProcessorPil

    saved = save("qwen2_5_vl", tmp_path, randomise, patch_size=14, window_size=112)
    tower = load_tower(tmp_path)
    size = {"shortest_edge": 64 * 64, "longest_edge": 320 * 320}
    processor = Qwen2VLImageProcessorPil(patch_size=14, size=size)
    batch = processor(images=[photo, photo2.resize((120, 300))], return_tensors="pt")
    grids = batch["image_grid_thw"]
    rows = batch["pixel_values"].split(grids.prod(1).tolist())
    items = [{"pixel_values": r, "grid_thw": g} for r, g in zip(rows, grids, strict=True)]
    capture(tower, 1024, buckets=[(1024, 4)])
    assert worst(check_replays(tower, items), saved.ask(items)) <= ORACLE


# ---- windows ---------------------------------------------------------------------------------


def test_window_layout() -> None:
    distance, sizes = window_layout(2, 3, 2)
    assert (distance + np.arange(6)).tolist() == [0, 1, 3, 4, 2, 5]
    assert sizes == (4, 2)
    assert window_layout(1, 1, 4)[1] == (1,)
    assert window_layout(5, 9, 4)[1] == (16, 16, 4, 4, 4, 1)


@pytest.mark.parametrize("side", [1, 2, 4])
def test_windows_are_transformers(side: int) -> None:
    from transformers.vision_utils import get_vision_window_index

    for height, width in [(1, 1), (3, 5), (8, 4), (4, 9), (7, 7), (1, 13), (13, 1)]:
        grid = torch.tensor([[1, 2 * height, 2 * width]])
        index, offsets = get_vision_window_index(grid, 2, side * 8, 4)
        distance, sizes = window_layout(height, width, side)
        assert (distance + np.arange(height * width)).tolist() == index.tolist()
        assert [4 * n for n in sizes] == offsets.diff().tolist()


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: Any, randomise: Any) -> Any:
    return load_tower(save("qwen2_5_vl", tmp_path_factory.mktemp("w"), randomise).folder)


def test_every_grid_fits_the_slots_of_its_bucket(windowed: Any) -> None:
    """However thin the pictures are: nothing is refused at a replay."""
    adapter, provider = windowed.make_io_adapter(), windowed.make_metadata_provider()
    rng = np.random.default_rng(0)
    shapes = [(1, 1), (1, 2), (2, 1), (1, 4), (1, 16), (4, 4), (2, 2), (3, 3), (1, 5), (7, 2)]
    for bucket in (Bucket(64, 1), Bucket(64, 4), Bucket(256, 8), Bucket(256, 64)):
        metadata = provider.build(bucket, adapter.num_segment_slots(bucket))
        full = adapter.full_layout(bucket)
        provider.refresh_in_place(metadata, full)
        assert sum(full.windows) == sum(full.segments) == bucket.num_tokens
        for _ in range(200):
            segments, windows = (), ()
            for _ in range(bucket.max_segments):
                height, width = shapes[rng.integers(len(shapes))]
                if sum(segments) + 4 * height * width > bucket.num_tokens:
                    break
                segments += (4 * height * width,)
                windows += tuple(4 * n for n in window_layout(height, width, 3)[1])
            padded = adapter.pad(bucket, WindowedLengths(segments, windows))
            assert sum(padded.windows) == sum(padded.segments) == bucket.num_tokens
            assert padded.windows[: len(windows)] == windows
            assert max(padded.windows) <= 36
            provider.refresh_in_place(metadata, padded)


def test_both_layouts_are_refreshed(windowed: Any) -> None:
    adapter, provider = windowed.make_io_adapter(), windowed.make_metadata_provider()
    bucket = Bucket(64, 4)
    metadata = provider.build(bucket, adapter.num_segment_slots(bucket))
    addresses = [getattr(metadata, name).data_ptr() for name in provider.graph_critical_attrs]
    provider.refresh_in_place(metadata, adapter.pad(bucket, WindowedLengths((32,), (20, 12))))
    assert metadata.cu_seqlens.unique().tolist() == [0, 32, 64]
    assert metadata.cu_window_seqlens.unique().tolist() == [0, 20, 32, 64]
    now = [getattr(metadata, name).data_ptr() for name in provider.graph_critical_attrs]
    assert now == addresses
    assert len(set(addresses)) == 2


def test_full_and_windowed_layers_differ(tmp_path: Path, randomise: Any, make_batch: Any) -> None:
    """Control: the layers named in the config attend to the whole frame, the others do not."""
    some = save("qwen2_5_vl", tmp_path / "some", randomise)
    other = save("qwen2_5_vl", tmp_path / "other", randomise, fullatt_block_indexes=[0, 2])
    tower = load_tower(other.folder)
    items = make_batch(tower, [(1, 12, 10)])
    assert worst(tower.encode(items), other.ask(items)) <= ORACLE
    assert worst(tower.encode(items), some.ask(items)) > 1e-3


# ---- weights, precision, imports -------------------------------------------------------------


def test_rope_keeps_its_precision(saved: Saved) -> None:
    """``.to(bfloat16)`` rounds transformers' frequencies; ours come through, also after moves."""
    tower = load_tower(saved.folder, dtype=torch.bfloat16)
    made = dict(saved.oracle.named_buffers())
    assert made
    for _ in range(2):
        buffers = dict(tower.hf.named_buffers())
        assert buffers.keys() == made.keys()
        for name, value in made.items():
            assert buffers[name].dtype == value.dtype
            assert torch.equal(buffers[name], value), name
        assert tower.dtype == torch.bfloat16
        tower.to(torch.float32).to(torch.bfloat16)


def test_random_weights_and_errors(saved: Saved, make_batch: Any) -> None:
    config = json.loads((saved.folder / "config.json").read_text())
    one, two = (load_tower(config, seed=seed) for seed in (0, 1))
    items = make_batch(one, [(1, 4, 6)])
    assert worst(one.encode(items), two.encode(items)) > 0.1
    assert not one.training
    with pytest.raises(ValueError, match=r"^item 0: grid_thw is \(1, 3, 8\): h and w have to be"):
        one.encode([{**items[0], "grid_thw": (1, 3, 8)}])


def test_keys_are_checked(saved: Saved, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    state = load_file(saved.folder / "model.safetensors")
    (tmp_path / "config.json").write_bytes((saved.folder / "config.json").read_bytes())
    name = "visual.blocks.1.norm1.weight"
    save_file({k: v for k, v in state.items() if k != name}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=f"missing {name}"):
        load_tower(tmp_path)


def test_the_newer_prefix(saved: Saved, tmp_path: Path, tower: Any, make_batch: Any) -> None:
    from safetensors.torch import load_file, save_file

    state = load_file(saved.folder / "model.safetensors")
    moved = {("model." + k if k.startswith("visual.") else k): v for k, v in state.items()}
    save_file(moved, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((saved.folder / "config.json").read_bytes())
    items = make_batch(tower, [(1, 4, 6)])
    assert worst(load_tower(tmp_path).encode(items), tower.encode(items, eager=True)) == 0.0


def test_a_scale_of_its_own_is_refused(saved: Saved, make_batch: Any) -> None:
    tower = load_tower(saved.folder)
    tower.hf.blocks[1].attn.scaling *= 2
    with pytest.raises(ValueError, match="is not that of head size 32"):
        tower.encode(make_batch(tower, [(1, 4, 6)]))


def test_transformers_is_imported_with_the_first_tower_only() -> None:
    code = (
        "import sys, tensorrt_llm_ext.towers\n"
        "from tensorrt_llm_ext.towers.registry import registered_modalities\n"
        "assert registered_modalities('qwen2_5_vl') == ('image',)\n"
        "assert 'tensorrt_llm_ext.towers.hf_adapter' in sys.modules\n"
        "assert 'transformers' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
