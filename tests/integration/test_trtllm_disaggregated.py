# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Encoders in workers of their own (``mm_encoder_only``), and the workers that have none.

In the double of TensorRT-LLM, whose engine makes no KV cache for encoders alone. The transport
between the two is upstream's and not part of it: rows of one run are handed to the next.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from trtllm_doubles import Edit, Outcome, Run, builder, drive

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BEFORE, AFTER, OLD = "before_20213", "after_20213", "pre_18524"
VARIANTS = (BEFORE, AFTER, OLD)
FAMILIES = ("qwen3_vl", "glm5_next")
BUCKETS = [[96, 4], [256, 4]]
OURS = ("tensorrt_llm_ext",)
SIZING = {"kv_sized", "kv_managers_built", "mid_init_release", "dummy_encode"}

Outcomes = Callable[[str], Outcome]


def graphs(**entry: Any) -> dict[str, Any]:
    return {"multimodal_config": {"encoder_cuda_graph": {"image": entry or {"buckets": BUCKETS}}}}


OFF = {"disable_mm_encoder": True}
AUTOMATIC = graphs(max_batch_size=4, prune_slower_than_eager=False)


def plan(models: dict[str, str]) -> dict[str, dict[str, Any]]:
    runs: dict[str, dict[str, Any]] = {}
    for family in FAMILIES:
        model = {"model": models[family]}
        runs |= {
            f"{family}, whole": {**model, "llm": graphs()},
            f"{family}, encoder": {**model, "via": "encoder", "llm": graphs()},
            f"{family}, worker": {**model, "llm": OFF, "rows_of": f"{family}, encoder"},
        }
    qwen = {"model": models["qwen3_vl"]}
    received = {**qwen, "rows_of": "qwen3_vl, encoder"}
    return {
        **runs,
        "encoder, eager": {**qwen, "via": "encoder"},
        "encoder, by ours": {**qwen, "via": "ours", "llm": {"mm_encoder_only": True, **AUTOMATIC}},
        "encoder, two ranks": {
            **qwen,
            "via": "ours",
            "spawn": True,
            "llm": {"mm_encoder_only": True, "tensor_parallel_size": 2, **AUTOMATIC},
        },
        "worker, by ours": {**received, "via": "ours", "llm": OFF},
        "worker, asked": {**received, "via": "ours", "llm": {**OFF, **AUTOMATIC}},
        "worker, asked of upstream": {**received, "llm": {**OFF, **graphs()}},
        "worker, elsewhere": {**received, "env": {"TLLM_MULTIMODAL_DISAGGREGATED": "1"}},
    }


@pytest.fixture(scope="module")
def models(family_checkpoint: Callable[[str], Path]) -> dict[str, str]:
    return {family: str(family_checkpoint(family)) for family in FAMILIES}


@pytest.fixture(scope="module")
def outcome(models: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """(variant) -> what a process with it and with the binding did, once a variant."""

    @cache
    def of(variant: str) -> Outcome:
        root = tmp_path_factory.mktemp(variant)
        double = builder.build_double(root / "double", variant)
        return drive(double, root / "out", plan(models), imports=OURS, spy=True)

    return of


def theirs(run: Run) -> list[str]:
    """What upstream's own towers did."""
    return [name for name in run.names if name.startswith("upstream_")]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_encoders_alone_are_captured_and_nothing_is_sized(
    outcome: Outcomes, variant: str, family: str
) -> None:
    runs = outcome(variant).runs
    run = runs[f"{family}, encoder"]
    assert run.error == ""
    assert run.in_order(
        "engine_init",
        "load_weights_begin",
        "our_weights",
        "load_weights_end",
        "setup_attn_metadata",
        "our_capture",
        "model_capacity",
        "executor_ready",
        "llm_ready",
        "our_replay",
        "our_release",
        "process_groups_down",
        "llm_down",
    )
    assert len(run.of("our_capture")) == len(run.of("our_release")) == 1
    assert run.one("our_capture")["budget"] == 256
    assert SIZING & set(run.names) == set()
    assert theirs(run) == []
    whole = runs[f"{family}, whole"]
    torch.testing.assert_close(run.embeddings, whole.embeddings, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_worker_without_encoder_has_no_tower_and_answers_the_same(
    outcome: Outcomes, variant: str, family: str
) -> None:
    runs = outcome(variant).runs
    run = runs[f"{family}, worker"]
    assert run.error == ""
    assert [name for name in run.names if name.startswith("our_")] == theirs(run) == []
    assert run.in_order("engine_ready", "kv_sized", "executor_ready", "llm_down")
    assert "upstream's encoder stays" not in outcome(variant).output
    whole = runs[f"{family}, whole"]
    assert run.tokens == whole.tokens != []
    assert run.one("kv_sized")["used"] < whole.one("kv_sized")["used"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_encoders_alone_without_graphs(outcome: Outcomes, variant: str) -> None:
    runs = outcome(variant).runs
    run = runs["encoder, eager"]
    assert run.error == ""
    assert run.of("our_replay") == theirs(run) == []
    graphed = runs["qwen3_vl, encoder"]
    torch.testing.assert_close(run.embeddings, graphed.embeddings, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_encoders_alone_by_our_class(outcome: Outcomes, variant: str) -> None:
    runs = outcome(variant).runs
    for name, ranks in (("encoder, by ours", ["0"]), ("encoder, two ranks", ["0", "1"])):
        run = runs[name]
        assert run.error == ""
        assert sorted(run.reports) == ranks
        assert [towers[0]["status"] for towers in run.reports.values()] == ["captured"] * len(ranks)
        assert theirs(run) == []
        graphed = runs["qwen3_vl, encoder"]
        torch.testing.assert_close(run.embeddings, graphed.embeddings, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["worker, by ours", "worker, elsewhere"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_worker_without_encoder_starts_however_it_is_told(
    outcome: Outcomes, variant: str, name: str
) -> None:
    run = outcome(variant).runs[name]
    assert run.error == ""
    assert run.tokens == outcome(variant).runs["qwen3_vl, whole"].tokens
    assert [name for name in run.names if name.startswith("our_")] == []


@pytest.mark.parametrize("variant", VARIANTS)
def test_graphs_of_an_encoder_that_is_off_are_an_error_before_anything_starts(
    outcome: Outcomes, variant: str
) -> None:
    run = outcome(variant).runs["worker, asked"]
    assert "entries for image and disable_mm_encoder is set" in run.error
    assert "mm_encoder_only" in run.error
    assert run.names == []


@pytest.mark.parametrize("variant", VARIANTS)
def test_asked_of_upstream_it_is_upstreams_to_say(outcome: Outcomes, variant: str) -> None:
    run = outcome(variant).runs["worker, asked of upstream"]
    warned = "entries for image and disable_mm_encoder is set" in outcome(variant).output
    if variant == AFTER:
        assert "no local encoder captures graphs for ['image']" in run.error
    else:
        assert run.error == ""
        assert warned


def test_upstreams_encoder_server_as_the_page_starts_it(
    models: dict[str, str], tmp_path: Path
) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "tensorrt-llm.md"
    found = re.search(r'python -c "(.*)" mm_embedding_serve MODEL --config FILE', page.read_text())
    assert found is not None
    (options := tmp_path / "encoder.yaml").write_text(json.dumps(graphs()), "utf-8")
    log = tmp_path / "log.jsonl"
    double = builder.build_double(tmp_path / "double", BEFORE)
    done = subprocess.run(
        [
            *(sys.executable, "-c", found[1], "mm_embedding_serve", models["qwen3_vl"]),
            *("--config", str(options), "--max_num_tokens", "256"),
        ],
        env=builder.double_environment(double, TRTLLM_DOUBLE_LOG=str(log)),
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert done.returncode == 0, done.stderr
    assert '"rows": 4' in done.stdout
    events = [json.loads(line)["event"] for line in log.read_text("utf-8").splitlines()]
    assert "executor_ready" in events
    assert SIZING & set(events) == set()
    assert [name for name in events if name.startswith("upstream_")] == []


def test_upstreams_own_wrapper_of_glm_lacks_what_its_engine_asks_for(
    models: dict[str, str], tmp_path: Path
) -> None:
    """As read. Ours has it: see the first test."""
    double = builder.build_double(tmp_path / "double", BEFORE)
    runs = {f: {"model": models[f], "via": "encoder"} for f in FAMILIES}
    done = drive(double, tmp_path / "out", runs, TRTLLM_EXT_DISABLE="1").runs
    assert "no attribute 'config'" in done["glm5_next"].error
    assert done["qwen3_vl"].error == ""
    assert "upstream_eager" in theirs(done["qwen3_vl"])


def test_an_encoder_at_another_place_stays_with_a_warning(
    models: dict[str, str], tmp_path: Path
) -> None:
    edit = Edit("_torch/models/modeling_qwen3vl.py", "self.visual", "self.vision_tower")
    double = builder.build_double(tmp_path / "double", BEFORE, [edit])
    runs = {"qwen": {"model": models["qwen3_vl"], "via": "encoder"}}
    done = drive(double, tmp_path / "out", runs, imports=OURS)
    assert done.runs["qwen"].error == ""
    assert "upstream_eager" in theirs(done.runs["qwen"])
    assert "upstream's encoder stays" in done.output
