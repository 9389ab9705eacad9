# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""RADIO with Nemotron's pixel shuffle and projector, against transformers and the formulas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from make_tiny_checkpoint import make_tiny_checkpoint
from safetensors.torch import load_file, save_file
from tower_oracle import RadioOracle

from tensorrt_llm_ext.towers import load_tower

from .checks import ORACLE, capture, check_isolation, check_replays, worst

WIDTH, OUT = 64, 40
GRIDS = [(1, 4, 6), (1, 12, 8), (3, 2, 4), (1, 20, 2), (1, 2, 2), (1, 6, 10), (2, 8, 8)]


class Saved:
    """A checkpoint folder and what it must compute."""

    def __init__(self, folder: Path, layers: int) -> None:
        text = {"hidden_size": OUT, "num_nextn_predict_layers": layers}
        self.folder = make_tiny_checkpoint(folder / "whole", "nemotron_h_omni", text=text)
        self.state = load_file(self.folder / "model.safetensors")
        self.config = json.loads((self.folder / "config.json").read_text())
        self.radio = RadioOracle(self._radio_alone(folder / "radio")).model
        self.radio.make_preprocessor_external()

    def _radio_alone(self, folder: Path) -> Path:
        folder.mkdir()
        prefix = "vision_model."
        state = {k.removeprefix(prefix): v for k, v in self.state.items() if k.startswith(prefix)}
        save_file(state, folder / "model.safetensors")
        config = {**self.config["vision_config"], "architectures": ["RadioModel"]}
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    def change(self, **config: Any) -> None:
        """Other keys in config.json; None takes one away."""
        self.config = {k: v for k, v in {**self.config, **config}.items() if v is not None}
        (self.folder / "config.json").write_text(json.dumps(self.config))

    @torch.no_grad()
    def ask(self, item: dict[str, Any]) -> dict[str, torch.Tensor]:
        t, h, w = item["grid_thw"]
        frames = item["pixel_values"].view(t, h, w, 3, 16, 16).permute(0, 3, 1, 4, 2, 5)
        x = self.radio(frames.reshape(t, 3, h * 16, w * 16)).features  # [t, h * w, C]
        final = "vision_projector.vision_final_layernorm."
        if self.config["llm_config"]["num_nextn_predict_layers"]:
            x = F.layer_norm(
                x, [WIDTH], self.state[final + "weight"], self.state[final + "bias"], 1e-6
            )
        # As published: join neighbours across, then down.
        x = x.view(t, h, w // 2, 2 * WIDTH).transpose(1, 2).contiguous()
        x = x.view(t, w // 2, h // 2, 4 * WIDTH).transpose(1, 2).reshape(t, -1, 4 * WIDTH)
        norm, first, second = (self.state[f"mlp1.{i}.weight"] for i in (0, 1, 3))
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * norm
        return {"features": (torch.relu(x @ first.T).square() @ second.T).flatten(0, 1)}


@pytest.fixture(params=[0, 1], ids=["plain", "final norm"])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Saved:
    return Saved(tmp_path, request.param)


def make_items(grids: list[tuple[int, int, int]]) -> list[dict[str, Any]]:
    return [
        {"pixel_values": torch.randn(t * h * w, 768), "grid_thw": (t, h, w)} for t, h, w in grids
    ]


def test_matches_transformers_eager_and_replayed(saved: Saved) -> None:
    tower = load_tower(saved.folder)
    capture(tower, 512, max_batch_size=8)
    items = make_items(GRIDS)
    outs = check_replays(tower, items)
    assert worst(outs, [saved.ask(item) for item in items]) <= ORACLE
    for (t, h, w), out in zip(GRIDS, outs, strict=True):
        assert out.features.shape == (t * h * w // 4, OUT)
    assert set(tower.encoder_stats().eager) == {"requested"}
    check_isolation(tower, items)


def test_order_of_rows_and_blocks_matters(saved: Saved) -> None:
    """Controls: the comparison would see rows or blocks in another order."""
    tower = load_tower(saved.folder)
    (item,) = make_items([(1, 8, 6)])
    want = [saved.ask(item)]
    swapped = {**item, "pixel_values": item["pixel_values"].flip(0)}
    assert worst(tower.encode([swapped]), want) > 0.1
    turned = {**item, "grid_thw": (1, 6, 8)}
    assert worst(tower.encode([turned]), want) > 0.01


def test_keys_of_other_forms(saved: Saved) -> None:
    """A language model's weights beside, no conditioner, and text_config as transformers has it."""
    items = make_items([(1, 4, 6)])
    want = [saved.ask(items[0])]
    state = {k: v for k, v in saved.state.items() if "input_conditioner" not in k}
    assert len(state) == len(saved.state) - 2
    state["language_model.embed.weight"] = torch.zeros(3)
    save_file(state, saved.folder / "model.safetensors")
    saved.change(text_config=saved.config["llm_config"], llm_config=None)
    assert worst(load_tower(saved.folder).encode(items), want) <= ORACLE


def test_odd_grids_and_missing_projector_are_named(saved: Saved) -> None:
    tower = load_tower(saved.folder)
    with pytest.raises(ValueError, match=r"item 0: .*multiples of 2"):
        tower.encode(make_items([(1, 3, 4)]))
    width = saved.config["projector_hidden_size"]
    saved.change(projector_hidden_size=width + 1)
    with pytest.raises(ValueError, match=r"mlp1\.1\.weight is \[96, 256\], expected \[97, 256\]"):
        load_tower(saved.folder)
    saved.change(downsample_ratio=0.25)
    with pytest.raises(ValueError, match="downsample_ratio"):
        load_tower(saved.folder)
