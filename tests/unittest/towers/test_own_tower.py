# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The example of docs/bring-your-own-tower.md: what the page shows, and that it holds."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from tensorrt_llm_ext.graphs import Bucket
from tensorrt_llm_ext.towers import ItemOutput, load_tower

from .checks import ORACLE, capture, check_isolation, check_replays, run_fake, worst

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "own_tower.py"
PAGE = ROOT / "docs" / "bring-your-own-tower.md"
CONFIG = {"model_type": "my_audio_model", "output_dim": 24}


@pytest.fixture(scope="module")
def tower() -> Any:
    importlib.import_module("own_tower")
    tower = load_tower(CONFIG, modality="audio", init_std=0.2)
    capture(tower, 64 * 8, max_batch_size=8)
    return tower


@torch.no_grad()
def alone(tower: Any, frames: torch.Tensor) -> ItemOutput:
    """The clip by itself: no mask, no padding but that of the last four rows."""
    x = tower.embed(frames)
    q, k, v = tower.qkv(x).chunk(3, dim=-1)
    x = x + torch.softmax(q @ k.T / 32**0.5, dim=-1) @ v
    x = F.pad(x, (0, 0, 0, -len(x) % 4))
    return ItemOutput(features=tower.down(x.reshape(-1, 128)))


def clips(*lengths: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [{"frames": torch.randn(n, 16, generator=generator)} for n in lengths]


def test_page_shows_the_file() -> None:
    shown = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)[0]
    assert shown == EXAMPLE.read_text("utf-8")
    assert len(shown.splitlines()) <= 60


def test_only_public_names() -> None:
    """Every import is one of the ``__all__`` of a public package."""
    for node in ast.walk(ast.parse(EXAMPLE.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tensorrt_llm_ext"):
            assert node.module in (
                "tensorrt_llm_ext",
                "tensorrt_llm_ext.graphs",
                "tensorrt_llm_ext.towers",
            )
            public = importlib.import_module(node.module).__all__
            assert {alias.name for alias in node.names} <= set(public)
        if isinstance(node, ast.Attribute):
            assert not node.attr.startswith("_") or node.attr == "__init__"


def test_it_runs_as_the_page_says() -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, EXAMPLE], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("torch.Size([13, 24])") == 3


@pytest.mark.parametrize("lengths", [(50,), (1,), (64, 63, 4, 5), (30,) * 8, (7, 64) * 9])
def test_each_clip_is_what_it_is_alone(lengths: tuple[int, ...], tower: Any) -> None:
    items = clips(*lengths)
    expected = [alone(tower, item["frames"]) for item in items]
    assert worst(check_replays(tower, items), expected) <= ORACLE
    assert worst(tower.encode(items, eager=True), expected) <= ORACLE


def test_batch_mates_change_nothing(tower: Any) -> None:
    check_isolation(tower, clips(64, 1, 33, 50, 4, 17, 63))


def test_captured_region_reads_nothing_from_the_device() -> None:
    own = importlib.import_module("own_tower")
    assert run_fake(lambda: own.ClipTower(CONFIG), Bucket(128, 2)) == {"features": (32, 24)}


def test_buckets_are_whole_clips(tower: Any) -> None:
    labels = [bucket.label for bucket in tower.planned_buckets()]
    assert labels == [f"{64 * n}x{n}" for n in range(1, 9)]


@pytest.mark.parametrize("frames", [torch.zeros(65, 16), torch.zeros(0, 16), torch.zeros(9, 15)])
def test_malformed_items(frames: torch.Tensor, tower: Any) -> None:
    with pytest.raises(ValueError, match=r"^item 1: frames is .*; expected \[1\.\.64, 16\]"):
        tower.encode([*clips(5), {"frames": frames}])


def test_weights_from_a_checkpoint(tower: Any, tmp_path: Path) -> None:
    state = {f"encoder.{name}": value for name, value in tower.state_dict().items()}
    save_file(state, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "my_audio_model", "output_dim": 24}')
    loaded = load_tower(tmp_path, modality="audio")
    items = clips(50, 7)
    assert worst(loaded.encode(items), tower.encode(items, eager=True)) == 0.0
