# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""RADIO with Nemotron's pixel shuffle and projector, against transformers and the formulas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import RadioConfig, RadioModel

from tensorrt_llm_ext import MultimodalConfig
from tensorrt_llm_ext.towers import load_tower

WIDTH, HIDDEN, OUT = 64, 48, 40
VISION = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "max_img_size": 512,
}
GRIDS = [(1, 4, 6), (1, 12, 8), (3, 2, 4), (1, 20, 2), (1, 2, 2), (1, 6, 10), (2, 8, 8)]


def random_weights(model: RadioModel) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "layer_scale" not in name:
                shift = 1.0 if "norm" in name and name.endswith("weight") else 0.0
                parameter.copy_(torch.randn_like(parameter) * 0.05 + shift)


class Saved:
    """A checkpoint folder and what it must compute."""

    def __init__(self, folder: Path, *, mtp: bool) -> None:
        self.radio = RadioModel(RadioConfig(**VISION)).eval()
        random_weights(self.radio)
        self.radio.make_preprocessor_external()
        self.norm = torch.randn(4 * WIDTH) * 0.05 + 1
        self.first, self.second = torch.randn(HIDDEN, 4 * WIDTH) * 0.05, torch.randn(OUT, HIDDEN)
        self.final = torch.nn.LayerNorm(WIDTH, eps=1e-6) if mtp else None
        self.radio.save_pretrained(folder)
        from safetensors.torch import load_file

        state = {
            "vision_model." + key: value
            for key, value in load_file(folder / "model.safetensors").items()
        }
        state |= {"mlp1.0.weight": self.norm, "mlp1.1.weight": self.first}
        state |= {"mlp1.3.weight": self.second, "language_model.embed": torch.zeros(3)}
        config = {"model_type": "nemotron_h_omni", "vision_config": VISION}
        config |= {"projector_hidden_size": HIDDEN, "llm_config": {"hidden_size": OUT}}
        if self.final is not None:
            torch.nn.init.normal_(self.final.weight)
            torch.nn.init.normal_(self.final.bias)
            for leaf in ("weight", "bias"):
                key = f"vision_projector.vision_final_layernorm.{leaf}"
                state[key] = getattr(self.final, leaf).detach()
            config["llm_config"]["num_nextn_predict_layers"] = 1
        save_file({k: v.clone() for k, v in state.items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(config))
        self.folder = folder

    @torch.no_grad()
    def ask(self, item: dict[str, Any]) -> torch.Tensor:
        t, h, w = item["grid_thw"]
        frames = item["pixel_values"].view(t, h, w, 3, 16, 16).permute(0, 3, 1, 4, 2, 5)
        features = self.radio(frames.reshape(t, 3, h * 16, w * 16)).features  # [t, h * w, C]
        if self.final is not None:
            features = self.final(features)
        # As published: join neighbours across, then down.
        x = features.view(t, h, w // 2, 2 * WIDTH).transpose(1, 2).contiguous()
        x = x.view(t, w // 2, h // 2, 4 * WIDTH).transpose(1, 2).reshape(t, -1, 4 * WIDTH)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.norm
        return (torch.relu(x @ self.first.T).square() @ self.second.T).flatten(0, 1)


@pytest.fixture(params=[False, True], ids=["plain", "final norm"])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Saved:
    return Saved(tmp_path, mtp=request.param)


def make_items(grids: list[tuple[int, int, int]]) -> list[dict[str, Any]]:
    return [
        {"pixel_values": torch.randn(t * h * w, 768), "grid_thw": (t, h, w)} for t, h, w in grids
    ]


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


def test_matches_transformers_eager_and_replayed(saved: Saved) -> None:
    tower = load_tower(saved.folder)
    items = make_items(GRIDS)
    expected = [saved.ask(item) for item in items]
    tower.setup_attn_metadata(512)
    entry = {"max_batch_size": 8}
    tower.configure_encoder_cuda_graph(MultimodalConfig(encoder_cuda_graph={"image": entry}))
    assert tower.capture_encoder_cuda_graphs().status == "captured"
    for eager in (True, False):
        for tensor in tower._runner._inputs.values():
            if tensor.is_floating_point():
                tensor.fill_(1e30)  # whatever an earlier request left
        outs = tower.encode(items, eager=eager)
        for (t, h, w), out, want in zip(GRIDS, outs, expected, strict=True):
            assert out.features.shape == (t * h * w // 4, OUT)
            assert relative(out.features, want) < 1e-5
    assert set(tower.encoder_stats().eager) == {"requested"}
    alone = [tower.encode([item])[0].features for item in items[::-1]]
    for got, want in zip(alone[::-1], expected, strict=True):
        assert relative(got, want) < 1e-5


def test_order_of_rows_and_blocks_matters(saved: Saved) -> None:
    """Controls: the comparison would see rows or blocks in another order."""
    tower = load_tower(saved.folder)
    (item,) = make_items([(1, 8, 6)])
    want = saved.ask(item)
    swapped = {**item, "pixel_values": item["pixel_values"].flip(0)}
    assert relative(tower.encode([swapped])[0].features, want) > 0.1
    turned = {**item, "grid_thw": (1, 6, 8)}
    assert relative(tower.encode([turned])[0].features, want) > 0.01


def test_odd_grids_and_missing_projector_are_named(saved: Saved) -> None:
    tower = load_tower(saved.folder)
    with pytest.raises(ValueError, match=r"item 0: .*multiples of 2"):
        tower.encode(make_items([(1, 3, 4)]))
    config = json.loads((saved.folder / "config.json").read_text())
    config["projector_hidden_size"] = HIDDEN + 1
    (saved.folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"mlp1\.1\.weight is \[48, 256\], expected \[49, 256\]"):
        load_tower(saved.folder)
    config["downsample_ratio"] = 0.25
    (saved.folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="downsample_ratio"):
        load_tower(saved.folder)
