# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Every tower at its published size in bf16, replayed, against transformers (make test-gpu).

Configured by nothing but a batch cap of 8 and a 2048-token budget; no case may run eagerly. With
``TRTLLM_EXT_GPU_RESULTS=FILE`` the errors are written there as a result file, tower by tower; those
of towers that were not run stay as they are in it, each with the commit that it was measured at.
"""

from __future__ import annotations

import datetime
import itertools
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
    TOWERS,
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
from tensorrt_llm_ext.ops.attention import AttentionBackend

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
COMMIT = os.environ.get("TRTLLM_EXT_COMMIT", "unknown")
ERRORS = ("ours", "transformers", "worst_ratio")
BACKENDS: tuple[AttentionBackend, ...] = ("tiles", "varlen")


@pytest.fixture(autouse=True, scope="module")
def _module() -> Iterator[None]:
    """fp32 means fp32 (transformers embeds patches by a convolution, cuDNN's default is TF32)."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def write_results(cases: list[dict[str, Any]]) -> None:
    """Puts the cases of a tower in place of those that the result file has."""
    if not cases or not (path := os.environ.get("TRTLLM_EXT_GPU_RESULTS")):
        return
    file = Path(path)
    known = json.loads(file.read_text())["cases"] if file.exists() else []
    cases = [c for c in known if c["tower"] != cases[0]["tower"] and "attention" in c] + cases
    cases.sort(key=lambda case: list(TOWERS).index(case["tower"]))
    result = {
        "benchmark": "tower_errors",
        "title": "Error of every encoder in bf16 at published size, replayed (relative L2 "
        "against fp32, median of 5 seeds, worst case and output)",
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "commit": COMMIT,
        "date": datetime.date.today().isoformat(),
        "rows": [
            worst_of(name, backend, cases)
            for name in dict.fromkeys(case["tower"] for case in cases)
            for backend in BACKENDS
        ],
        "cases": cases,
    }
    file.write_text(json.dumps(result, indent=2) + "\n")


def worst_of(name: str, backend: str, cases: list[dict[str, Any]]) -> dict[str, Any]:
    """A row for README: the case that is worst against transformers."""
    cases = [r for r in cases if (r["tower"], r["attention"]) == (name, backend)]
    worst = max(cases, key=lambda row: row["worst_ratio"])
    head = {"case": name, "attention": backend, "cases": len(cases)}
    return {**head, **{k: worst[k] for k in ERRORS}}


def cases_of(name: str) -> dict[str, Any]:
    return AUDIO_CASES if name in AUDIO else VISION_CASES


def make_items(tower: Any, published: PublishedTower, case: Any, seed: int) -> list[dict[str, Any]]:
    if published.modality == "audio":
        return audio_items(case, seed)
    return vision_items(tower.config.patch_dim, case, seed, published.model_type == "radio")


@pytest.fixture(scope="module", params=list(TOWERS))
def captured(request: pytest.FixtureRequest) -> Iterator[tuple[str, dict[str, Any]]]:
    """A captured tower by form of attention; weights are replaced in place, seed by seed."""
    name, towers = request.param, {}
    published = TOWERS[name]
    for backend in BACKENDS:
        tower = published.make_tower(CUDA, torch.bfloat16)
        tower.attention_backend = backend
        entry = {published.modality: {"max_batch_size": 8}}
        tower.configure_encoder_cuda_graph(MultimodalConfig(encoder_cuda_graph=entry))
        tower.setup_attn_metadata(max_num_tokens=2048)
        report = tower.capture_encoder_cuda_graphs()
        assert report.attention == backend
        print(
            f"{name}, {backend}: {len(report.buckets)} buckets, {report.capture_seconds:.1f} s, "
            f"{report.graph_memory_bytes / 2**20:.0f} MiB"
        )
        towers[backend] = tower
    yield name, towers
    for tower in towers.values():
        tower.release_encoder_cuda_graphs()
    torch.cuda.empty_cache()


def same_weights(towers: dict[str, Any]) -> None:
    """Those of the first tower, in place."""
    first, *others = towers.values()
    for other in others:
        for mine, theirs in zip(first.parameters(), other.parameters(), strict=True):
            theirs.data.copy_(mine)


def test_error_against_fp32_is_that_of_transformers_bf16(
    captured: tuple[str, dict[str, Any]],
) -> None:
    """Per case and output: at most 1.05 times transformers' own bf16 error, median of 5 seeds."""
    name, towers = captured
    tower, published = towers[BACKENDS[0]], TOWERS[name]
    ask = ask_audio if published.modality == "audio" else ask_vision
    errors: dict[tuple[str, str], list[list[float]]] = {}
    fp32, bf16 = (published.make_oracle(dtype) for dtype in (torch.float32, torch.bfloat16))
    for seed in range(SEEDS):
        randomise(tower, seed)
        same_weights(towers)
        for oracle in (fp32, bf16):
            copy_weights(tower, oracle, published.model_type)
        for case, shapes in cases_of(name).items():
            items = make_items(tower, published, shapes, seed)
            with torch.no_grad():
                exact = ask(fp32, items, torch.float32)
                shipped = ask(bf16, items, torch.bfloat16)
            ours = {backend: outputs_of(t.encode(items)) for backend, t in towers.items()}
            for arm, outputs in (*ours.items(), ("transformers", shipped)):
                found = [relative(*pair) for pair in zip(outputs, exact, strict=True)]
                errors.setdefault((case, arm), []).append(found)
    assert all(t.encoder_stats().eager == {} for t in towers.values())
    failed, rows = [], []
    for case, backend in itertools.product(cases_of(name), BACKENDS):
        ours, theirs = (
            [statistics.median(column) for column in zip(*errors[case, arm], strict=True)]
            for arm in (backend, "transformers")
        )
        worst = max(a / b for a, b in zip(ours, theirs, strict=True))
        row = {
            "tower": name,
            "attention": backend,
            "case": case,
            "ours": f"{max(ours):.3e}",
            "transformers": f"{max(theirs):.3e}",
            "worst_ratio": round(worst, 3),
            "commit": COMMIT,
        }
        print(*row.values())
        rows.append(row)
        if worst > GATE:
            failed.append((case, backend, worst))
    write_results(rows)
    assert not failed


@pytest.mark.parametrize("backend", BACKENDS)
def test_replay_equals_the_eager_run_of_its_bucket_bit_for_bit(
    captured: tuple[str, dict[str, Any]], backend: str
) -> None:
    name, towers = captured
    tower, published = towers[backend], TOWERS[name]
    for seed, shapes in enumerate(cases_of(name).values()):
        items = [tower.pack_item(i) for i in make_items(tower, published, shapes, seed)]
        steps = tower.plan([item.segment_lengths for item in items])
        assert all(isinstance(step, Replay) for step in steps)
        prepared = [tower._runner.prepare(step, items) for step in steps]
        batch = BatchPlan.of(tower._adapter, items, prepared, CUDA)
        sinks = [[t.fill_(float("nan")) for t in batch.allocate()] for _ in range(2)]
        for step in prepared:
            tower._runner.replay(step, items, lambda blocks=sinks[0]: blocks)
            tower._runner.replay(step, items, lambda blocks=sinks[1]: blocks, uncaptured=True)
        for replayed, uncaptured in zip(*sinks, strict=True):
            assert torch.isfinite(replayed).all()
            assert torch.equal(replayed, uncaptured)
