# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Small towers and their oracles, items of noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tower_oracle import VisionOracle

from tensorrt_llm_ext.towers import load_tower

from .small import VISION, save

Grid = tuple[int, int, int]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny tensors: a second thread costs more than it does, and on a busy machine far more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def vision_config() -> dict[str, Any]:
    """Vision config of a tiny tower."""
    return dict(VISION["qwen3_vl"])


@pytest.fixture(scope="session")
def make_checkpoint(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., VisionOracle]:
    """(seed, dtype, **vision_config) -> a Qwen3-VL with its folder, made once. Read-only."""
    made: dict[str, VisionOracle] = {}

    def make(seed: int = 0, dtype: str = "float32", **vision: Any) -> VisionOracle:
        key = repr((seed, dtype, sorted(vision.items())))
        if key not in made:
            made[key] = save("qwen3_vl", tmp_path_factory.mktemp("tower"), seed, dtype, **vision)
        return made[key]

    return make


@pytest.fixture(scope="session")
def make_item() -> Callable[..., dict[str, Any]]:
    """(tower, (t, h, w), seed) -> an item of noise."""

    def make(tower: Any, grid: Grid, seed: int = 0) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(seed)
        t, h, w = grid
        rows = torch.randn(t * h * w, tower.config.patch_dim, generator=generator)
        return {"pixel_values": rows, "grid_thw": grid}

    return make


@pytest.fixture(scope="session")
def make_batch(make_item: Callable[..., dict[str, Any]]) -> Callable[..., list[dict[str, Any]]]:
    """(tower, grids) -> different noise for each."""
    return lambda tower, grids, seed=0: [
        make_item(tower, grid, 1000 * seed + i) for i, grid in enumerate(grids)
    ]


@pytest.fixture
def tower(make_checkpoint: Callable[..., VisionOracle]) -> Any:
    """A fresh Qwen3-VL tower, fp32, not captured."""
    return load_tower(make_checkpoint().folder)
