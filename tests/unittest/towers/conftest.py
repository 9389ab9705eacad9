# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Transformers' own tower as the oracle, with weights that hide nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tensorrt_llm_ext.llmapi.mm_config import MultimodalConfig
from tensorrt_llm_ext.towers import load_tower

Grid = tuple[int, int, int]
PREFIX = "model.visual."

VISION = {
    "depth": 3,
    "hidden_size": 64,
    "num_heads": 2,
    "intermediate_size": 96,
    "out_hidden_size": 40,
    "patch_size": 4,
    "num_position_embeddings": 49,
    "deepstack_visual_indexes": [0, 1],
}


def randomise(module: nn.Module, seed: int) -> None:
    """Std 0.05 everywhere, biases too, norm weights around 1: at HF's own init, errors hide."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            values = torch.randn(parameter.shape, generator=generator) * 0.05
            around_one = "norm" in name and name.endswith(".weight")
            parameter.copy_(values + 1 if around_one else values)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny tensors: a second thread costs more than it does, and on a busy machine far more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(name="randomise", scope="session")
def _randomise() -> Callable[[nn.Module, int], None]:
    """(module, seed): weights and biases that hide nothing."""
    return randomise


@pytest.fixture
def vision_config() -> dict[str, Any]:
    """Vision config of a tiny tower."""
    return dict(VISION)


class Checkpoint(NamedTuple):
    """A saved tower and the transformers module it was saved from."""

    folder: Path
    oracle: nn.Module


@pytest.fixture(scope="session")
def make_checkpoint(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., Checkpoint]:
    """(seed, dtype, **vision_config) -> a Qwen3-VL folder with the tower alone, cached."""
    from transformers.models.qwen3_vl import Qwen3VLVisionConfig, Qwen3VLVisionModel

    made: dict[str, Checkpoint] = {}

    def make(seed: int = 0, dtype: torch.dtype = torch.float32, **vision: Any) -> Checkpoint:
        key = repr((seed, dtype, sorted(vision.items())))
        if key not in made:
            config = Qwen3VLVisionConfig(**{**VISION, **vision})
            oracle = Qwen3VLVisionModel._from_config(config, attn_implementation="sdpa").eval()
            randomise(oracle, seed)
            folder = tmp_path_factory.mktemp("tower")
            state = oracle.to(dtype).state_dict()
            save_file({PREFIX + k: v for k, v in state.items()}, folder / "model.safetensors")
            saved = {"model_type": "qwen3_vl", "vision_config": json.loads(config.to_json_string())}
            (folder / "config.json").write_text(json.dumps(saved))
            made[key] = Checkpoint(folder, oracle)
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


@pytest.fixture(scope="session")
def ask_oracle() -> Callable[..., list[list[torch.Tensor]]]:
    """(oracle, items) -> per item: features and every deepstack output."""

    def ask(oracle: nn.Module, items: Sequence[dict[str, Any]]) -> list[list[torch.Tensor]]:
        dtype = next(oracle.parameters()).dtype
        pixels = torch.cat([item["pixel_values"] for item in items]).to(dtype)
        grid = torch.tensor([item["grid_thw"] for item in items])
        with torch.no_grad():
            out = oracle(pixels, grid_thw=grid)
        rows = [t * h * w // 4 for t, h, w in grid.tolist()]
        outputs = [out.pooler_output, *(getattr(out, "deepstack_features", None) or [])]
        return [list(parts) for parts in zip(*(o.split(rows) for o in outputs), strict=True)]

    return ask


def relative_error(ours: torch.Tensor, oracle: torch.Tensor) -> float:
    """Relative L2 error, in fp64."""
    assert ours.shape == oracle.shape
    ours, oracle = ours.double(), oracle.double()
    return float((ours - oracle).norm() / oracle.norm())


@pytest.fixture(scope="session")
def worst_error() -> Callable[..., float]:
    """(encode's outputs, the oracle's) -> the largest relative L2 error of any output tensor."""

    def worst(ours: Sequence[Any], oracle: Sequence[Sequence[torch.Tensor]]) -> float:
        errors = []
        for own, expected in zip(ours, oracle, strict=True):
            tensors = [own.features, *own.deepstack]
            errors += [relative_error(a, b) for a, b in zip(tensors, expected, strict=True)]
        return max(errors, default=0.0)

    return worst


@pytest.fixture(scope="session")
def capture() -> Callable[..., Any]:
    """(tower, budget, **entry) -> the tower, captured; its report on top."""

    def run(tower: Any, budget: int = 256, **entry: Any) -> Any:
        tower.setup_attn_metadata(max_num_tokens=budget)
        tower.configure_encoder_cuda_graph(
            MultimodalConfig(encoder_cuda_graph={"image": {"warmup_steps": 1, **entry}})
        )
        report = tower.capture_encoder_cuda_graphs()
        assert report.status == "captured", report.reason
        return report

    return run


@pytest.fixture
def tower(make_checkpoint: Callable[..., Checkpoint]) -> Any:
    """A fresh Qwen3-VL tower, fp32, not captured."""
    return load_tower(make_checkpoint().folder)
