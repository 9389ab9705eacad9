# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Fixtures and set-up that every test shares."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

# Before anything imports a Hub client: no test may depend on a network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Likewise before kernels are defined: without a GPU they are interpreted.
if not os.path.exists("/dev/nvidiactl"):
    os.environ.setdefault("TRITON_INTERPRET", "1")

import numpy as np
import pytest
import torch
from PIL import Image


def pytest_configure(config: pytest.Config) -> None:
    # One thread: the tensors are tiny, and more only wait for each other on a busy machine.
    torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA GPU")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def _seeds() -> None:
    """Start every test from the same random state, whatever ran before it."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _cache_dir(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What a capture finds out is not kept in the home of whoever runs the tests."""
    os.environ["TRTLLM_EXT_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def family_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """(family) -> folder of a tiny random-weight model of it, made once. Read-only."""
    from make_tiny_checkpoint import make_tiny_checkpoint

    made: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in made:
            folder = tmp_path_factory.mktemp("checkpoint") / f"tiny_{family}"
            made[family] = make_tiny_checkpoint(folder, family)
        return made[family]

    return make


@pytest.fixture(scope="session")
def tiny_checkpoint(family_checkpoint: Callable[[str], Path]) -> Path:
    """Folder of a tiny random-weight Qwen3-VL. Read-only: copy it before changing anything."""
    return family_checkpoint("qwen3_vl")


@pytest.fixture(scope="session")
def photo() -> Image.Image:
    """A real photograph, RGB, 640 x 427 pixels (a temple roof)."""
    return _sample_photo("china.jpg")


@pytest.fixture(scope="session")
def photo2() -> Image.Image:
    """Another real photograph of the same size (a flower)."""
    return _sample_photo("flower.jpg")


def _sample_photo(name: str) -> Image.Image:
    from sklearn.datasets import load_sample_image

    return Image.fromarray(load_sample_image(name))
