# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Qwen3-VL-8B vision tower: transformers as shipped, ours eager, ours replayed.

    python benchmarks/bench_qwen3_vl_encoder.py

bf16, random weights, inputs on the device. A time is the wall clock around one call and the wait
for the device; the arms take turns, call by call, and the median is reported. Error is relative L2
of the merged features against transformers in fp32 with the same weights.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

from tensorrt_llm_ext import MultimodalConfig
from tensorrt_llm_ext.towers import load_tower

QWEN3_VL_8B = {
    "depth": 27,
    "hidden_size": 1152,
    "num_heads": 16,
    "intermediate_size": 4304,
    "out_hidden_size": 4096,
    "deepstack_visual_indexes": [8, 16, 24],
    "num_position_embeddings": 2304,
}
CASES = {
    "1x(16x16)": [(1, 16, 16)],
    "8x(16x16)": [(1, 16, 16)] * 8,
    "1x(64x64)": [(1, 64, 64)],
    "64x(16x16)": [(1, 16, 16)] * 64,
    "video 8x(24x24)": [(8, 24, 24)],
    "mixed 16": [(1, 8 + 2 * i, 40 - 2 * i) for i in range(16)],
}
BUDGET = 16384


def timed_ms(call: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a.float() - b.float()).norm() / b.norm()).item()


def head_commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commit", help="default: git's HEAD")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    args = parser.parse_args()
    commit = args.commit or head_commit()
    device = torch.device("cuda")

    config = {"model_type": "qwen3_vl", "vision_config": QWEN3_VL_8B}
    tower = load_tower(config, device=device, dtype=torch.bfloat16)
    with device:
        oracle = Qwen3VLVisionModel(Qwen3VLVisionConfig(**QWEN3_VL_8B)).eval()
    disk = tower.disk_tensors()
    oracle.load_state_dict(
        {disk[n][0].key: p.detach().view(disk[n][0].shape) for n, p in tower.named_parameters()}
    )
    torch.backends.cudnn.allow_tf32 = False  # the oracle's patch embedding is a convolution
    exact = {}
    generator = torch.Generator().manual_seed(0)
    batches = {}
    for case, grids in CASES.items():
        rows = [torch.randn(t * h * w, 1536, generator=generator) for t, h, w in grids]
        batches[case] = [r.to(device, torch.bfloat16) for r in rows]
        with torch.no_grad():
            grid = torch.tensor(grids, device=device)
            exact[case] = oracle(torch.cat(batches[case]).float(), grid_thw=grid).pooler_output
    frequencies = oracle.rotary_pos_emb.inv_freq.clone()
    shipped = oracle.to(torch.bfloat16)
    shipped.rotary_pos_emb.inv_freq = frequencies  # as after from_pretrained(dtype=bfloat16)

    entry = {"max_batch_size": 64}
    tower.configure_encoder_cuda_graph(MultimodalConfig(encoder_cuda_graph={"image": entry}))
    tower.setup_attn_metadata(max_num_tokens=BUDGET)
    report = tower.capture_encoder_cuda_graphs()

    rows_out = []
    for case, grids in CASES.items():
        grid = torch.tensor(grids, device=device)
        pixels = torch.cat(batches[case])
        items = [
            {"pixel_values": r, "grid_thw": g} for r, g in zip(batches[case], grids, strict=True)
        ]

        def run_transformers(pixels: torch.Tensor = pixels, grid: torch.Tensor = grid) -> Any:
            with torch.no_grad():
                return shipped(pixels, grid_thw=grid).pooler_output

        def run_eager(items: list = items) -> Any:
            return tower.encode(items, eager=True)

        def run_replay(items: list = items) -> Any:
            return tower.encode(items)

        arms = {"transformers": run_transformers, "eager": run_eager, "replay": run_replay}
        times: dict[str, list[float]] = {name: [] for name in arms}
        for round_ in range(args.repeats + 3):
            for name, call in arms.items():
                took = timed_ms(call)
                if round_ >= 3:
                    times[name].append(took)
        before = sum(tower.encoder_stats().eager.values())
        features = torch.cat([out.features for out in run_replay()])
        if sum(tower.encoder_stats().eager.values()) != before:
            raise RuntimeError(f"{case} was not replayed")
        row: dict[str, Any] = {"case": case, "tokens": pixels.shape[0], "items": len(grids)}
        for name, samples in times.items():
            row[f"{name}_ms"] = round(statistics.median(samples), 3)
            row[f"{name}_min_ms"] = round(min(samples), 3)
        row["transformers_error"] = f"{relative(run_transformers(), exact[case]):.2e}"
        row["replay_error"] = f"{relative(features, exact[case]):.2e}"
        rows_out.append(row)
        print(row, flush=True)

    result = {
        "benchmark": "qwen3_vl_encoder",
        "title": "Time of tower.encode, Qwen3-VL-8B vision tower, bf16, inputs on the device",
        "device": torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "commit": commit,
        "date": datetime.date.today().isoformat(),
        "capture": {
            "buckets": len(report.buckets),
            "kept": sum(b.kept for b in report.buckets),
            "seconds": round(report.capture_seconds, 2),
            "graph_memory_mib": round(report.graph_memory_bytes / 2**20, 1),
            "ladder": [b.model_dump() for b in report.buckets],
        },
        "rows": rows_out,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "qwen3_vl_encoder.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
