# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Plans against captures on a GPU, at budgets that the estimate was not fitted to.

Each capture is the first of a process, as an operator's is: the driver keeps the memory of graphs
that are gone, and a later capture would find it there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from published_towers import CUDA, TOWERS

from tensorrt_llm_ext import MultimodalConfig
from tensorrt_llm_ext.towers.planning import plan_encoder_cuda_graphs

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

TOLERANCE = 0.1


def config_of(name: str, cap: int) -> MultimodalConfig:
    """All buckets stay: what loses to eager is not known to a plan."""
    entry = {"max_batch_size": cap, "prune_slower_than_eager": False}
    return MultimodalConfig.model_validate({"encoder_cuda_graph": {TOWERS[name].modality: entry}})


def capture(name: str, budget: int, cap: int) -> Any:
    tower = TOWERS[name].make_tower(CUDA, torch.bfloat16)
    tower.configure_encoder_cuda_graph(config_of(name, cap))
    tower.setup_attn_metadata(max_num_tokens=budget)
    return tower.capture_encoder_cuda_graphs()


@pytest.mark.parametrize(
    ("name", "budget", "cap"),
    [
        ("qwen3_omni_vision", 8192, 8),
        ("qwen3_vl_2b", 2048, 8),
        ("radio_h", 4096, 32),
        ("qwen3_omni_audio", 832, 64),
    ],
)
def test_capture_takes_what_was_planned(name: str, budget: int, cap: int) -> None:
    plan = plan_encoder_cuda_graphs(
        TOWERS[name].config(), config_of(name, cap), max_num_tokens=budget, dtype=torch.bfloat16
    )
    command = [sys.executable, __file__, name, str(budget), str(cap)]
    path = os.pathsep.join(str(Path(folder).resolve()) for folder in sys.path if folder)
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout.splitlines()[-1])
    taken, planned = report["graph_memory_bytes"], plan.total_bytes
    print(f"{name} {budget}: planned {planned / 2**20:.0f} MiB, taken {taken / 2**20:.0f} MiB")
    assert report["status"] == "captured"
    keys = ("num_tokens", "max_segments", "max_segment_len")
    assert [b.model_dump() for b in plan.towers[0].buckets] == [
        {key: bucket[key] for key in keys} for bucket in report["buckets"]
    ]
    assert plan.towers[0].attention == report["attention"]
    assert taken * (1 - TOLERANCE) <= planned <= taken * (1 + TOLERANCE)


if __name__ == "__main__":
    name, budget, cap = sys.argv[1:]
    print(capture(name, int(budget), int(cap)).model_dump_json())
