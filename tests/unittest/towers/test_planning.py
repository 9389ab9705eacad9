# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Plans from a checkpoint's config.json, for every family of towers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from published_towers import QWEN3_VL_8B

from tensorrt_llm_ext import MultimodalConfig
from tensorrt_llm_ext.graphs.plan import TowerPlan
from tensorrt_llm_ext.towers import load_tower, modalities_of, setup_mm_encoder_cuda_graphs
from tensorrt_llm_ext.towers.loading import tower_without_weights
from tensorrt_llm_ext.towers.planning import plan_encoder_cuda_graphs, stored_dtype


def graphs(*modalities: str) -> MultimodalConfig:
    entries = {modality: {"buckets": [[104, 4]]} for modality in modalities}
    return MultimodalConfig.model_validate({"encoder_cuda_graph": entries})


@pytest.mark.parametrize("family", ["qwen3_vl", "glm_ocr", "qwen3_omni"])
def test_static_bytes_are_those_of_a_capture(
    family: str, family_checkpoint: Callable[[str], Path]
) -> None:
    folder = family_checkpoint(family)
    config = graphs(*modalities_of(folder))
    plan = plan_encoder_cuda_graphs(
        folder, config, max_num_tokens=104, device="cpu", dtype=torch.float32
    )
    towers = {m: load_tower(folder, modality=m) for m in modalities_of(folder)}
    for tower in towers.values():
        tower.setup_attn_metadata(max_num_tokens=104)
    reports = setup_mm_encoder_cuda_graphs(towers, config)
    assert [(t.modality, t.total_bytes) for t in plan.towers] == [
        (r.modality, r.graph_memory_bytes) for r in reports
    ]
    assert plan.total_bytes == sum(r.graph_memory_bytes for r in reports)


@pytest.mark.parametrize("family", ["qwen3_vl", "glm_ocr", "qwen3_omni"])
def test_cuda_is_planned_without_cuda_and_weights(
    family: str, family_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    shutil.copy(family_checkpoint(family) / "config.json", tmp_path)
    modalities = modalities_of(tmp_path)
    plan = plan_encoder_cuda_graphs(
        tmp_path, graphs(*modalities), max_num_tokens=104, dtype=torch.bfloat16
    )
    assert (plan.model, plan.device, plan.dtype) == (str(tmp_path), "cuda", "bfloat16")
    assert [t.modality for t in plan.towers] == list(modalities)
    assert all(t.attention == "tiles" for t in plan.towers)
    assert plan.towers[0].pool_bytes > 0
    assert plan.total_bytes == sum(t.total_bytes for t in plan.towers)


def test_only_what_is_configured(family_checkpoint: Callable[[str], Path]) -> None:
    folder = family_checkpoint("qwen3_omni")
    plan = plan_encoder_cuda_graphs(folder, graphs("audio"), max_num_tokens=104, device="cpu")
    assert [t.modality for t in plan.towers] == ["audio"]
    nothing = plan_encoder_cuda_graphs(folder, MultimodalConfig(), max_num_tokens=104)
    assert (nothing.towers, nothing.total_bytes) == ([], 0)


def test_no_such_encoder(tiny_checkpoint: Path) -> None:
    with pytest.raises(ValueError, match=r"entry for 'audio', .* it has \['image'\]"):
        plan_encoder_cuda_graphs(tiny_checkpoint, graphs("audio"), max_num_tokens=104)
    unknown = {"model_type": "bert"}
    with pytest.raises(ValueError, match="it has none"):
        plan_encoder_cuda_graphs(unknown, graphs("image"), max_num_tokens=104)


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        ({}, torch.bfloat16),
        ({"dtype": "float16"}, torch.float16),
        ({"torch_dtype": "float32"}, torch.float32),
        ({"text_config": {"dtype": "float32"}}, torch.float32),
        ({"thinker_config": {"torch_dtype": "float16"}}, torch.float16),
        ({"thinker_config": {"text_config": {"dtype": "float32"}}}, torch.float32),
        ({"dtype": "float16", "text_config": {"dtype": "float32"}}, torch.float16),
        ({"dtype": "int8", "thinker_config": None}, torch.bfloat16),
        ({"text_config": {"dtype": "float16"}, "thinker_config": 3}, torch.float16),
    ],
)
def test_stored_dtype(config: dict, dtype: torch.dtype) -> None:
    assert stored_dtype(config) is dtype


def test_plan_takes_the_stored_dtype(tiny_checkpoint: Path) -> None:
    config = json.loads((tiny_checkpoint / "config.json").read_text())
    plan = plan_encoder_cuda_graphs(
        {**config, "dtype": "float16"}, graphs("image"), max_num_tokens=104
    )
    assert (plan.model, plan.dtype) == ("qwen3_vl", "float16")


def test_tower_without_weights(tiny_checkpoint: Path) -> None:
    tower = tower_without_weights(tiny_checkpoint, "vision", torch.float16)
    loaded = load_tower(tiny_checkpoint)
    assert {p.device.type for p in tower.parameters()} == {"meta"}
    assert {p.dtype for p in tower.parameters()} == {torch.float16}
    assert not tower.training
    assert not any(p.requires_grad for p in tower.parameters())
    assert {n: p.shape for n, p in tower.named_parameters()} == {
        n: p.shape for n, p in loaded.named_parameters()
    }
    with pytest.raises(ValueError, match="no 'audio' tower"):
        tower_without_weights(tiny_checkpoint, "audio")


def published_plan(tokens: int, **entry: Any) -> TowerPlan:
    """Of Qwen3-VL-8B's vision tower at its published size."""
    config = {"model_type": "qwen3_vl", "vision_config": QWEN3_VL_8B}
    image = MultimodalConfig.model_validate({"encoder_cuda_graph": {"image": entry}})
    return plan_encoder_cuda_graphs(config, image, max_num_tokens=tokens).towers[0]


def test_what_a_published_tower_takes_beside_its_arenas() -> None:
    """Residual, queries, keys and values, half of the normed rows; taps are let go at once.

    C = 1152 in bf16; rope's tables are 36 cosines and sines in fp32.
    """
    tokens, width = 16384, 1152 * 2
    tower = published_plan(tokens, buckets=[[tokens, 64]])
    expected = tokens * (width * 9 // 2 + 2 * 36 * 4)
    assert expected <= tower.activation_bytes <= 1.001 * expected


@pytest.mark.parametrize("tokens", [1024, 1088])
def test_a_plan_knows_what_few_tokens_take(tokens: int) -> None:
    """All four mergers at once: joined rows, hidden ones and outputs of 256 rows each."""
    tower = published_plan(tokens, max_batch_size=8)
    together = 4 * 256 * (2 * 4 * 1152 + 4096) * 2
    assert together < tower.activation_bytes < 1.3 * together
    assert tower.pool_bytes >= tower.activation_bytes
