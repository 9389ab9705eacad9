# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Memory caps, pruning and stream order on a GPU (make test-gpu)."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from published_towers import CUDA, OMNI_AUDIO, OMNI_VISION

from tensorrt_llm_ext import MultimodalConfig
from tensorrt_llm_ext.graphs.backends import CudaGraphBackend
from tensorrt_llm_ext.towers import load_tower, setup_mm_encoder_cuda_graphs

pytestmark = pytest.mark.gpu

MODEL = {
    "model_type": "qwen3_omni_moe_thinker",
    "vision_config": {**OMNI_VISION, "depth": 6, "deepstack_visual_indexes": [2]},
    "audio_config": {**OMNI_AUDIO, "encoder_layers": 4},
}
MIB = 1 << 20


def make_tower(modality: str = "image") -> Any:
    tower = load_tower(MODEL, modality=modality, device=CUDA, dtype=torch.bfloat16)
    tower.setup_attn_metadata(max_num_tokens=8192)
    return tower


def capture(tower: Any, **entry: Any) -> Any:
    graphs = {"image": {"max_batch_size": 8, **entry}}
    tower.configure_encoder_cuda_graph(MultimodalConfig(encoder_cuda_graph=graphs))
    return tower.capture_encoder_cuda_graphs()


def test_memory_cap_keeps_fewer_buckets_and_gives_the_rest_back() -> None:
    full = make_tower()
    everything = capture(full)
    full.release_encoder_cuda_graphs()
    del full
    gc.collect()
    cap = everything.graph_memory_bytes // 2
    tower = make_tower()
    backend = CudaGraphBackend(CUDA)
    before = backend.memory_in_use()
    report = capture(tower, max_graph_memory=cap)
    assert report.status == "captured"
    assert report.graph_memory_bytes <= cap
    assert backend.memory_in_use() - before <= cap + 32 * MIB
    kept = [b.num_tokens for b in report.buckets if b.kept]
    dropped = [b for b in report.buckets if "max_graph_memory" in b.reason]
    assert kept
    assert dropped
    assert max(kept) < min(b.num_tokens for b in dropped)


def test_library_memory_of_a_first_run_is_not_the_graphs() -> None:
    """The second capture in a process reports what the first did."""
    sizes = []
    gc.collect()  # the towers of the test before
    for _ in range(2):
        tower = make_tower()
        # Nothing that the first one finds out spares the second a capture.
        sizes.append(capture(tower, search_seconds=0).graph_memory_bytes)
        tower.release_encoder_cuda_graphs()
        del tower
        gc.collect()
    assert abs(sizes[0] - sizes[1]) < 48 * MIB, sizes


def test_two_towers_share_a_pool_unless_one_is_capped() -> None:
    graphs = {"image": {"max_batch_size": 8}, "audio": {"max_batch_size": 8}}
    towers = {m: make_tower(m) for m in ("image", "audio")}
    setup_mm_encoder_cuda_graphs(towers, MultimodalConfig(encoder_cuda_graph=graphs))
    assert towers["image"]._pool == towers["audio"]._pool
    graphs["audio"]["max_graph_memory"] = 512 * MIB
    capped = {m: make_tower(m) for m in ("image", "audio")}
    reports = setup_mm_encoder_cuda_graphs(capped, MultimodalConfig(encoder_cuda_graph=graphs))
    assert [r.status for r in reports] == ["captured", "captured"]
    assert capped["image"]._pool != capped["audio"]._pool
    assert reports[1].graph_memory_bytes <= 512 * MIB


def test_eager_runs_of_two_streams_are_kept_apart() -> None:
    tower = make_tower()
    grids = [(1, 40, 40), (1, 20, 30)]
    batches = [
        [{"pixel_values": torch.randn(h * w, 1536, device=CUDA).bfloat16(), "grid_thw": (1, h, w)}]
        for _, h, w in grids
    ]
    expected = [tower.encode(batch)[0].features.clone() for batch in batches]
    streams = [torch.cuda.Stream() for _ in grids]
    torch.cuda.synchronize()
    for _ in range(20):
        got = []
        for stream, batch in zip(streams, batches, strict=True):
            with torch.cuda.stream(stream):
                got.append(tower.encode(batch)[0].features)
        torch.cuda.synchronize()
        for features, want in zip(got, expected, strict=True):
            assert torch.equal(features, want)
