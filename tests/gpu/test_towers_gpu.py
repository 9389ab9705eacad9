# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Every tower at its published size in bf16, replayed, against transformers (make test-gpu).

Configured by nothing but a batch cap of 8 and a 2048-token budget; no case may run eagerly. With
``TRTLLM_EXT_GPU_RESULTS=FILE`` the errors are written there as a result file.
"""

from __future__ import annotations

import datetime
import json
import os
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from published_towers import (
    AUDIO,
    CUDA,
    VISION,
    PublishedTower,
    ask_audio,
    ask_vision,
    audio_items,
    copy_weights,
    outputs_of,
    randomise,
    relative,
    vision_items,
)

from tensorrt_llm_ext import MultimodalConfig
from tensorrt_llm_ext.graphs.batch import BatchPlan
from tensorrt_llm_ext.graphs.layout import Replay
from tensorrt_llm_ext.towers import load_tower

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

SEEDS = 5
GATE = 1.05  # of our error to transformers'
VISION_CASES = {
    "196 tokens": [(1, 14, 14)],
    "256 tokens": [(1, 16, 16)],
    "400 tokens": [(1, 20, 20)],
    **{f"{n} pictures": [(1, 14, 16)] * n for n in range(2, 9)},
    "unequal pictures": [(1, 14, 14), (1, 20, 20), (1, 8, 30), (1, 2, 2)],
    "3 frame pairs": [(3, 16, 16)],
}
AUDIO_CASES = {
    "1 s": [100],
    "30 s": [3000],
    "short": [61, 7, 99],
    "unequal": [1230, 333, 61],
    "tails": [205, 150, 801],
}
TOWERS = {**VISION, **AUDIO}
RESULTS: list[dict[str, Any]] = []
ERRORS = ("ours", "transformers", "worst_ratio")


@pytest.fixture(autouse=True, scope="module")
def _module() -> Iterator[None]:
    """fp32 means fp32 (transformers embeds patches by a convolution, cuDNN's default is TF32)."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before
    if path := os.environ.get("TRTLLM_EXT_GPU_RESULTS"):
        result = {
            "benchmark": "tower_errors",
            "title": "Error of every encoder in bf16 at published size, replayed (relative L2 "
            "against fp32, median of 5 seeds, worst case and output)",
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "commit": os.environ.get("TRTLLM_EXT_COMMIT", "unknown"),
            "date": datetime.date.today().isoformat(),
            "rows": [worst_of(name) for name in TOWERS if any(r["tower"] == name for r in RESULTS)],
            "cases": RESULTS,
        }
        Path(path).write_text(json.dumps(result, indent=2) + "\n")


def worst_of(name: str) -> dict[str, Any]:
    """A row for README: the case that is worst against transformers."""
    cases = [row for row in RESULTS if row["tower"] == name]
    worst = max(cases, key=lambda row: row["worst_ratio"])
    return {"case": name, "cases": len(cases), **{k: worst[k] for k in ERRORS}}


def cases_of(name: str) -> dict[str, Any]:
    return AUDIO_CASES if name in AUDIO else VISION_CASES


def make_items(tower: Any, published: PublishedTower, case: Any, seed: int) -> list[dict[str, Any]]:
    if published.modality == "audio":
        return audio_items(case, seed)
    return vision_items(tower.config.patch_dim, case, seed, published.model_type == "radio")


@pytest.fixture(scope="module", params=list(TOWERS))
def captured(request: pytest.FixtureRequest) -> Iterator[tuple[str, Any]]:
    """A captured tower; its weights are replaced in place, seed by seed."""
    published = TOWERS[request.param]
    tower = load_tower(
        published.config(), modality=published.modality, device=CUDA, dtype=torch.bfloat16
    )
    entry = {published.modality: {"max_batch_size": 8}}
    tower.configure_encoder_cuda_graph(MultimodalConfig(encoder_cuda_graph=entry))
    tower.setup_attn_metadata(max_num_tokens=2048)
    report = tower.capture_encoder_cuda_graphs()
    print(
        f"{request.param}: {len(report.buckets)} buckets, {report.capture_seconds:.1f} s, "
        f"{report.graph_memory_bytes / 2**20:.0f} MiB"
    )
    yield request.param, tower
    tower.release_encoder_cuda_graphs()
    torch.cuda.empty_cache()


def test_error_against_fp32_is_that_of_transformers_bf16(captured: tuple[str, Any]) -> None:
    """Per case and output: at most 1.05 times transformers' own bf16 error, median of 5 seeds."""
    name, tower = captured
    published = TOWERS[name]
    ask = ask_audio if published.modality == "audio" else ask_vision
    errors: dict[tuple[str, str], list[list[float]]] = {}
    fp32, bf16 = (published.make_oracle(dtype) for dtype in (torch.float32, torch.bfloat16))
    for seed in range(SEEDS):
        randomise(tower, seed)
        for oracle in (fp32, bf16):
            copy_weights(tower, oracle, published.model_type)
        for case, shapes in cases_of(name).items():
            items = make_items(tower, published, shapes, seed)
            with torch.no_grad():
                exact = ask(fp32, items, torch.float32)
                shipped = ask(bf16, items, torch.bfloat16)
            ours = outputs_of(tower.encode(items))
            for arm, outputs in (("ours", ours), ("transformers", shipped)):
                found = [relative(*pair) for pair in zip(outputs, exact, strict=True)]
                errors.setdefault((case, arm), []).append(found)
    assert tower.encoder_stats().eager == {}
    failed = []
    for case in cases_of(name):
        ours, theirs = (
            [statistics.median(column) for column in zip(*errors[case, arm], strict=True)]
            for arm in ("ours", "transformers")
        )
        worst = max(a / b for a, b in zip(ours, theirs, strict=True))
        print(
            f"{name:18} {case:18} ours {max(ours):.3e} transformers {max(theirs):.3e} {worst:.3f}"
        )
        RESULTS.append(
            {
                "tower": name,
                "case": case,
                "ours": f"{max(ours):.3e}",
                "transformers": f"{max(theirs):.3e}",
                "worst_ratio": round(worst, 3),
            }
        )
        if worst > GATE:
            failed.append((case, worst))
    assert not failed


def test_replay_equals_the_eager_run_of_its_bucket_bit_for_bit(captured: tuple[str, Any]) -> None:
    name, tower = captured
    published = TOWERS[name]
    for seed, shapes in enumerate(cases_of(name).values()):
        items = [tower.pack_item(i) for i in make_items(tower, published, shapes, seed)]
        steps = tower.plan([item.segment_lengths for item in items])
        assert all(isinstance(step, Replay) for step in steps)
        prepared = [tower._runner.prepare(step, items) for step in steps]
        batch = BatchPlan.of(tower._adapter, items, prepared, CUDA)
        sinks = [[t.fill_(float("nan")) for t in batch.allocate()] for _ in range(2)]
        for step in prepared:
            tower._runner.replay(step, items, sinks[0])
            tower._runner.replay(step, items, sinks[1], uncaptured=True)
        for replayed, uncaptured in zip(*sinks, strict=True):
            assert torch.isfinite(replayed).all()
            assert torch.equal(replayed, uncaptured)
