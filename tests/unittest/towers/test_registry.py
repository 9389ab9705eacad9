# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Adding a tower, looking one up, and what importing the package costs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import tensorrt_llm_ext
from tensorrt_llm_ext.graphs.adapter import EncoderGraphTensorSpec, PackedEncoderGraphIOAdapter
from tensorrt_llm_ext.graphs.layout import EncoderItem
from tensorrt_llm_ext.towers import (
    ItemOutput,
    MultimodalEncoderMixin,
    load_tower,
    modalities_of,
    register_tower,
    registry,
)

from .checks import capture


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    registry.tower_entry("qwen3_vl", "image")  # built-in towers are in before the copy is made
    monkeypatch.setattr(registry, "_TOWERS", dict(registry._TOWERS))


class Doubler(MultimodalEncoderMixin, torch.nn.Module):
    """The least a tower can be."""

    encoder_cuda_graph_modality = "audio"

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.empty(width))

    def make_io_adapter(self) -> PackedEncoderGraphIOAdapter:
        spec = EncoderGraphTensorSpec(tuple(self.scale.shape), self.dtype)
        return PackedEncoderGraphIOAdapter(
            row_specs={"x": spec},
            layout_specs={},
            output_specs={"y": spec},
            build_layout=lambda *_: {},
        )

    def encoder_forward(self, inputs: Any, metadata: Any) -> dict[str, torch.Tensor]:
        return {"y": inputs["x"] * self.scale}

    def pack_item(self, item: Any) -> EncoderItem:
        return EncoderItem((len(item["x"]),), {"x": item["x"]}, None)

    def make_output(self, item: Any, tensors: dict[str, torch.Tensor]) -> ItemOutput:
        return ItemOutput(features=tensors["y"])


def test_a_new_tower_from_registration_to_replay(tmp_path: Path) -> None:
    register_tower("doubler", modality="audio", prefixes=("thinker.ears.", "ears."))(
        lambda config: Doubler(config["width"])
    )
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "doubler", "width": 3}))
    for prefix in ("ears.", "thinker.ears."):
        save_file({prefix + "scale": torch.full((3,), 2.0)}, tmp_path / "model.safetensors")
        assert modalities_of(tmp_path) == ("audio",)
        tower = load_tower(tmp_path, modality="audio")
        x = torch.randn(5, 3)
        assert torch.equal(tower.encode([{"x": x}])[0].features, 2 * x)
    capture(tower, 16, buckets=[(8, 2)])
    assert torch.equal(tower.encode([{"x": x}])[0].features, 2 * x)
    assert tower.encoder_stats().replays == {"8x2": 1}


def test_duplicates_are_refused_whole() -> None:
    with pytest.raises(ValueError, match="'qwen3_vl' has an 'image' tower already"):
        register_tower("brand_new", "qwen3_vl", prefixes=("x.",))(lambda config: None)
    with pytest.raises(ValueError, match="no 'image' tower for model type 'brand_new'"):
        registry.tower_entry("brand_new", "image")
    register_tower("qwen3_vl", modality="audio", prefixes=("x.",))(lambda config: None)
    assert registry.registered_modalities("qwen3_vl") == ("audio", "image")


def test_a_clash_with_a_built_in_tower_shows_at_the_registration() -> None:
    code = (
        "from tensorrt_llm_ext.towers import load_tower, register_tower\n"
        "try:\n"
        "    register_tower('qwen3_vl', prefixes=('x.',))(lambda config: None)\n"
        "except ValueError as error:\n"
        "    print(error)\n"
        "try:\n"
        "    load_tower({'model_type': 'llama'})\n"
        "except ValueError as error:\n"
        "    print(error)\n"
    )
    clash, unknown = run(code).splitlines()
    assert clash == "'qwen3_vl' has an 'image' tower already"
    assert unknown.startswith("no 'image' tower for model type 'llama'. Registered: glm46v (image)")


def test_unknown_models_and_modalities_list_what_there_is() -> None:
    known = r"qwen3_vl \(image\), qwen3_vl_moe \(image\), radio \(image\)"
    for config, modality in (
        ({"model_type": "llama"}, "image"),
        ({"model_type": "qwen3_vl"}, "audio"),
        ({}, "image"),
        ({"model_type": None}, "image"),
    ):
        with pytest.raises(ValueError, match=f"{known}. register_tower adds one"):
            load_tower(config, modality=modality)
    assert registry.registered_modalities("llama") == ()


def test_a_factory_has_to_make_a_tower() -> None:
    register_tower("not_a_tower", prefixes=("x.",))(lambda config: torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match=r"Linear is not an nn\.Module with MultimodalEncoderMixin"):
        load_tower({"model_type": "not_a_tower"})


# ---- imports ---------------------------------------------------------------------------------


def run(code: str) -> str:
    root = str(Path(tensorrt_llm_ext.__file__).parents[1])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr
    return done.stdout


OTHERS = (
    "PIL av click huggingface_hub jinja2 psutil rich safetensors sklearn tokenizers tqdm "
    "transformers triton yaml"
)


def test_towers_need_torch_numpy_and_pydantic_only() -> None:
    """Imported and run, graphs off, where nothing else that we use elsewhere can be imported.

    Looking at sys.modules would not do: torch imports tqdm where there is one.
    """
    code = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({OTHERS!r}.split()))\n"  # None: cannot be imported
        "import torch\n"
        "import tensorrt_llm_ext.towers as towers\n"
        "vision = dict(depth=1, hidden_size=8, num_heads=1, intermediate_size=8,\n"
        "              out_hidden_size=8, patch_size=2)\n"
        "tower = towers.load_tower({'model_type': 'qwen3_vl', 'vision_config': vision})\n"
        "item = {'pixel_values': torch.zeros(4, 24), 'grid_thw': (1, 2, 2)}\n"
        "print(len(tower.encode([item])[0].features))\n"
    )
    assert run(code) == "1\n"
