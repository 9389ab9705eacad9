# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Towers of transformers under our lifecycle: Qwen2-VL, and Qwen2.5-VL with its two layouts."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from tower_oracle import VisionOracle

from tensorrt_llm_ext.graphs.buckets import Bucket
from tensorrt_llm_ext.graphs.rehearsal import WarmUps, form_of
from tensorrt_llm_ext.ops.attention import TileAttention
from tensorrt_llm_ext.towers import load_tower
from tensorrt_llm_ext.towers.registry import tower_entry
from tensorrt_llm_ext.towers.windows import (
    WindowedLengths,
    WindowedMetadataProvider,
    window_layout,
)

from .checks import ORACLE, worst
from .small import save


@pytest.fixture(scope="module", params=["qwen2_vl", "qwen2_5_vl"])
def saved(request: Any, tmp_path_factory: Any) -> VisionOracle:
    return save(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def tower(saved: VisionOracle) -> Any:
    return load_tower(saved.folder)


def test_the_unmodified_tower_is_not_touched(
    saved: VisionOracle, tower: Any, make_batch: Any
) -> None:
    """Ours is another module: the oracle goes on with its own attention."""
    assert saved.tower.config._attn_implementation == "sdpa"
    items = make_batch(tower, [(1, 4, 6)])
    before = saved.ask(items)
    tower.encode(items)
    assert worst(saved.ask(items), before) == 0.0


def test_as_transformers_calls_it_a_tower_reads_from_the_device(saved: VisionOracle) -> None:
    """Control of the tests that run every tower's captured region on tensors without values."""
    config = json.loads((saved.folder / "config.json").read_text())
    with FakeTensorMode(allow_non_fake_inputs=True):
        hf = tower_entry(saved.model_type, "image").factory(config).hf
        hf.config._attn_implementation = "sdpa"
        grid = torch.tensor([[1, 8, 8]])
        with pytest.raises((DataDependentOutputException, DynamicOutputShapeException)):
            hf(torch.zeros(64, 96), grid_thw=grid)


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
def windowed(tmp_path_factory: Any) -> Any:
    return load_tower(save("qwen2_5_vl", tmp_path_factory.mktemp("w")).folder)


def test_every_grid_fits_the_slots_of_its_bucket(windowed: Any) -> None:
    """However thin the pictures are: nothing is refused at a replay."""
    adapter, provider = windowed.make_io_adapter(), windowed.make_metadata_provider()
    rng = np.random.default_rng(0)
    shapes = [(1, 1), (1, 2), (2, 1), (1, 4), (1, 16), (4, 4), (2, 2), (3, 3), (1, 5), (7, 2)]
    for bucket in (Bucket(64, 1), Bucket(64, 4), Bucket(256, 8), Bucket(256, 64)):
        metadata = provider.build(bucket, adapter.num_segment_slots(bucket))
        full = adapter.layout_of(bucket, bucket.even_segments)
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


def test_what_runs_before_a_capture_tells_forms_of_windowed_attention_apart() -> None:
    """Else the second of two buckets of a size would compile its attention while it is recorded."""
    provider = WindowedMetadataProvider(TileAttention(), torch.device("cpu"), side=4, unit=4)
    short, tall = (provider.build(Bucket(8192, 4, n), 8) for n in (2048, 8192))
    assert short.segments.attention != tall.segments.attention
    warm_ups = WarmUps(2)
    assert [warm_ups.due(8192, form_of(m), "one") for m in (tall, short, tall)] == [1, 1, 0]


def test_full_and_windowed_layers_differ(tmp_path: Path, make_batch: Any) -> None:
    """Control: the layers named in the config attend to the whole frame, the others do not."""
    some = save("qwen2_5_vl", tmp_path / "some")
    other = save("qwen2_5_vl", tmp_path / "other", fullatt_block_indexes=[0, 2])
    tower = load_tower(other.folder)
    items = make_batch(tower, [(1, 12, 10)])
    assert worst(tower.encode(items), other.ask(items)) <= ORACLE
    assert worst(tower.encode(items), some.ask(items)) > 1e-3


# ---- weights, precision, imports -------------------------------------------------------------


def test_rope_keeps_its_precision(saved: VisionOracle) -> None:
    """``.to(bfloat16)`` rounds transformers' frequencies; ours come through, also after moves."""
    tower = load_tower(saved.folder, dtype=torch.bfloat16)
    made = dict(saved.tower.named_buffers())
    assert made
    for _ in range(2):
        buffers = dict(tower.hf.named_buffers())
        assert buffers.keys() == made.keys()
        for name, value in made.items():
            assert buffers[name].dtype == value.dtype
            assert torch.equal(buffers[name], value), name
        assert tower.dtype == torch.bfloat16
        tower.to(torch.float32).to(torch.bfloat16)


def test_random_weights_and_errors(saved: VisionOracle, make_batch: Any) -> None:
    config = json.loads((saved.folder / "config.json").read_text())
    one, two = (load_tower(config, seed=seed) for seed in (0, 1))
    items = make_batch(one, [(1, 4, 6)])
    assert worst(one.encode(items), two.encode(items)) > 0.1
    assert not one.training
    with pytest.raises(ValueError, match=r"^item 0: grid_thw is \(1, 3, 8\): h and w have to be"):
        one.encode([{**items[0], "grid_thw": (1, 3, 8)}])


def test_keys_are_checked(saved: VisionOracle, tmp_path: Path) -> None:
    name = "visual.blocks.1.norm1.weight"
    state = load_file(saved.folder / "model.safetensors")
    shutil.copy(saved.folder / "config.json", tmp_path)
    save_file({k: v for k, v in state.items() if k != name}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=f"missing {name}"):
        load_tower(tmp_path)


def test_the_newer_prefix(saved: VisionOracle, tmp_path: Path, tower: Any, make_batch: Any) -> None:
    state = load_file(saved.folder / "model.safetensors")
    moved = {("model." + k if k.startswith("visual.") else k): v for k, v in state.items()}
    save_file(moved, tmp_path / "model.safetensors")
    shutil.copy(saved.folder / "config.json", tmp_path)
    items = make_batch(tower, [(1, 4, 6)])
    assert worst(load_tower(tmp_path).encode(items), tower.encode(items)) == 0.0


def test_a_scale_of_its_own_is_refused(saved: VisionOracle, make_batch: Any) -> None:
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
