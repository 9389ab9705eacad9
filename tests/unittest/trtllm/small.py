# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Towers for tests of the binding, without anything of TensorRT-LLM."""

from __future__ import annotations

from typing import Any

import torch

from tensorrt_llm_ext.towers.loading import load_tower
from tensorrt_llm_ext.trtllm.tower import DeepstackGridHost, GridHost, HostTower

QWEN: dict[str, Any] = {
    "model_type": "qwen3_vl",
    "vision_config": {
        "depth": 2,
        "hidden_size": 32,
        "num_heads": 2,
        "intermediate_size": 48,
        "out_hidden_size": 16,
        "patch_size": 2,
        "num_position_embeddings": 16,
        "deepstack_visual_indexes": [0],
    },
}
PREFIX = "model.visual."
PATCH_DIM = 3 * 2 * 2 * 2
GRAPHS = {"image": {"buckets": [(16, 2), (32, 2)]}}


def host_tower(kind: type[HostTower] = DeepstackGridHost, seed: int = 0) -> Any:
    """A tower with random weights in its host's clothes, metadata set up."""
    host = kind(load_tower(QWEN, seed=seed), (PREFIX,))
    host.setup_attn_metadata(max_num_tokens=64)
    return host


def rows(*grids: tuple[int, int, int], seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Patch rows of items [patches, P] and their grids [items, 3]."""
    generator = torch.Generator().manual_seed(seed)
    count = sum(t * h * w for t, h, w in grids)
    return torch.randn(count, PATCH_DIM, generator=generator), torch.tensor(grids)


class Params:
    """What matters of upstream's ``MultimodalParams``."""

    def __init__(self, multimodal_data: dict[str, Any], multimodal_input: Any = None) -> None:
        self.multimodal_data = multimodal_data
        self.multimodal_input = multimodal_input


def request(**grids: tuple[tuple[int, int, int], ...]) -> Params:
    """A request with pictures and videos."""
    data: dict[str, Any] = {}
    for seed, (modality, shapes) in enumerate(grids.items()):
        pixels, grid = rows(*shapes, seed=seed)
        key = "pixel_values" if modality == "image" else "pixel_values_videos"
        data[modality] = {key: pixels, f"{modality}_grid_thw": grid}
    return Params(data)


__all__ = ["GRAPHS", "PREFIX", "QWEN", "GridHost", "Params", "host_tower", "request", "rows"]
