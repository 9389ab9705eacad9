# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Plans against captures on a GPU, at budgets that the estimate was not fitted to."""

from __future__ import annotations

import gc

import pytest
import torch
from published_towers import AUDIO, CUDA, VISION

from tensorrt_llm_ext import MultimodalConfig
from tensorrt_llm_ext.towers import load_tower
from tensorrt_llm_ext.towers.planning import plan_encoder_cuda_graphs

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

TOLERANCE = 0.25


@pytest.mark.parametrize(
    ("name", "budget", "cap"),
    [
        ("qwen3_vl_2b", 4096, 8),
        ("qwen3_omni_vision", 8192, 8),
        ("radio_h", 4096, 32),
        ("qwen3_omni_audio", 832, 64),
    ],
)
def test_capture_takes_what_was_planned(name: str, budget: int, cap: int) -> None:
    published = {**VISION, **AUDIO}[name]
    # All buckets stay: what loses to eager is not known to a plan.
    entry = {"max_batch_size": cap, "prune_slower_than_eager": False}
    config = MultimodalConfig.model_validate({"encoder_cuda_graph": {published.modality: entry}})
    plan = plan_encoder_cuda_graphs(
        published.config(), config, max_num_tokens=budget, dtype=torch.bfloat16
    )
    tower = load_tower(
        published.config(), modality=published.modality, device=CUDA, dtype=torch.bfloat16
    )
    tower.configure_encoder_cuda_graph(config)
    tower.setup_attn_metadata(max_num_tokens=budget)
    gc.collect()
    report = tower.capture_encoder_cuda_graphs()
    taken, planned = report.graph_memory_bytes, plan.total_bytes
    tower.release_encoder_cuda_graphs()
    print(f"{name} {budget}: planned {planned / 2**20:.0f} MiB, taken {taken / 2**20:.0f} MiB")
    assert report.status == "captured"
    assert [b.model_dump() for b in plan.towers[0].buckets] == [
        b.model_dump(include={"num_tokens", "max_segments", "max_segment_len"})
        for b in report.buckets
    ]
    assert plan.towers[0].attention == report.attention
    assert taken * (1 - TOLERANCE) <= planned <= taken * (1 + TOLERANCE)
