# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The binding in the double of TensorRT-LLM, from the constructor to the end of the process groups.

Not the real engine: what is shown here is that the calls of the interface, as it was read, lead to
captures at the right place and to the same embeddings. One process a variant does everything that
a fixture asks for; the tests look at the record.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from trtllm_doubles import Outcome, Run, builder, drive

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BEFORE, AFTER, OLD = "before_20213", "after_20213", "pre_18524"
VARIANTS = (BEFORE, AFTER, OLD)
FAMILIES = ("qwen3_vl", "qwen3_vl_moe", "glm5_next", "nemotron_h_omni")
KEYS = {"nemotron_h_omni": "vision"}
"""What upstream's model calls its encoder, where it is not ``image``."""
EAGER = {BEFORE: FAMILIES, AFTER: FAMILIES[:1], OLD: FAMILIES[:1]}
"""Families that run without graphs too."""
BUCKETS = [[96, 4], [256, 4]]
OURS = ("tensorrt_llm_ext",)
DIAGNOSIS = "load('tensorrt_llm_ext.trtllm.doctor').diagnose().{}"

Outcomes = Callable[[str], Outcome]
Checkpoint = Callable[[str], Path]


def graphs(family: str, **entry: Any) -> dict[str, Any]:
    key = KEYS.get(family, "image")
    return {"multimodal_config": {"encoder_cuda_graph": {key: entry or {"buckets": BUCKETS}}}}


def plan(models: dict[str, str], variant: str) -> dict[str, dict[str, Any]]:
    """What the process of a variant does, one after the other."""
    qwen = {"model": models["qwen3_vl"], "llm": graphs("qwen3_vl")}
    draft = {"decoding_type": "Draft_Target", "speculative_model": models["qwen3_vl"]}
    automatic = graphs("qwen3_vl", max_batch_size=4, prune_slower_than_eager=False)
    runs: dict[str, dict[str, Any]] = {
        **{f: {"model": models[f], "llm": graphs(f)} for f in FAMILIES},
        **{f"{f}, eager": {"model": models[f]} for f in EAGER[variant]},
        "draft": {**qwen, "llm": {**qwen["llm"], "speculative_config": draft}},
        "by ours": {**qwen, "via": "ours", "llm": automatic},
        "unknown": {**qwen, "via": "ours", "llm": graphs("qwen3_vl")},
    }
    if variant == BEFORE:  # the same elsewhere
        short = {"encoder_max_num_tokens": None, "max_seq_len": 64}
        runs["default budget"] = {**qwen, "llm": {**qwen["llm"], **short}}
        runs["no decoder graphs"] = {**qwen, "llm": {**qwen["llm"], "cuda_graph_config": None}}
    if variant != OLD:
        workers = {**automatic, "tensor_parallel_size": 2}
        runs["workers"] = {**qwen, "via": "ours", "llm": workers, "spawn": True}
    if variant != AFTER:  # the same there
        for name in ("TRTLLM", "FLASHINFER"):
            runs[name] = {**qwen, "env": {"TRTLLM_EXT_VISION_ATTENTION": name}}
    runs["unknown"]["llm"] = {
        "multimodal_config": {"encoder_cuda_graph": {"audio": {"buckets": BUCKETS}}}
    }
    if variant != OLD:  # cannot be switched off there
        config = {**qwen["llm"]["multimodal_config"], "encoder_scheduling_policy": "DISABLED"}
        runs["unscheduled"] = {**qwen, "llm": {"multimodal_config": config}}
    return runs


@pytest.fixture(scope="module")
def models(family_checkpoint: Checkpoint) -> dict[str, str]:
    return {family: str(family_checkpoint(family)) for family in FAMILIES}


@pytest.fixture(scope="module")
def outcome(models: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """(variant) -> what a process with it and with the binding did, once a variant."""

    @cache
    def of(variant: str) -> Outcome:
        root = tmp_path_factory.mktemp(variant)
        double = builder.build_double(root / "double", variant)
        values = {name: DIAGNOSIS.format(name) for name in ("healthy", "hook", "contract", "files")}
        return drive(double, root / "out", plan(models, variant), values, OURS, spy=True)

    return of


@pytest.fixture(scope="module")
def upstream(models: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The same requests without the binding: the double's own towers, eagerly."""
    root = tmp_path_factory.mktemp("upstream")
    double = builder.build_double(root / "double", BEFORE)
    runs = {family: {"model": models[family]} for family in FAMILIES}
    return drive(double, root / "out", runs, TRTLLM_EXT_DISABLE="1")


def theirs(run: Run) -> list[str]:
    """What upstream's own towers did."""
    return [name for name in run.names if name in UPSTREAMS]


UPSTREAMS = {"upstream_eager", "upstream_capture", "upstream_replay", "upstream_tower_loaded"}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_captures_before_sizing_and_is_gone_before_the_process_groups(
    outcome: Outcomes, variant: str, family: str
) -> None:
    run = outcome(variant).runs[family]
    assert run.error == ""
    assert run.in_order(
        "engine_init",
        "load_weights_begin",
        "our_weights",
        "load_weights_end",
        "setup_attn_metadata",
        "our_capture",
        "model_capacity",
        "kv_sized",
        "mid_init_release",
        "executor_ready",
        "llm_ready",
        "our_replay",
        "our_release",
        "process_groups_down",
        "llm_down",
    )
    assert len(run.of("our_capture")) == len(run.of("our_release")) == 1
    assert run.one("our_capture")["budget"] == 256  # not what the scheduler makes of it
    assert theirs(run) == []
    assert run.of("setup_cuda_graphs") == []


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_embeddings_are_those_of_upstream(
    outcome: Outcomes, upstream: Outcome, variant: str, family: str
) -> None:
    expected = upstream.runs[family]
    assert expected.error == ""
    assert "upstream_eager" in theirs(expected)
    run = outcome(variant).runs[family]
    torch.testing.assert_close(run.embeddings, expected.embeddings, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("variant", "family"), [(v, f) for v in VARIANTS for f in EAGER[v]])
def test_without_graphs_it_is_the_same_and_the_cache_gets_what_they_left(
    outcome: Outcomes, variant: str, family: str
) -> None:
    runs = outcome(variant).runs
    run = runs[f"{family}, eager"]
    assert run.of("our_replay") == theirs(run) == []
    torch.testing.assert_close(run.embeddings, runs[family].embeddings, rtol=1e-4, atol=1e-5)
    with_graphs, eager = runs[family].one("kv_sized"), runs[f"{family}, eager"].one("kv_sized")
    assert with_graphs["used"] > eager["used"]
    assert with_graphs["tokens"] < eager["tokens"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_draft_model_gets_no_graphs(outcome: Outcomes, variant: str) -> None:
    run = outcome(variant).runs["draft"]
    assert run.error == ""
    assert len(run.of("engine_ready")) == 2
    assert len(run.of("our_capture")) == 1
    assert run.in_order("our_capture", "engine_ready", "engine_init", "engine_ready", "kv_sized")
    assert run.in_order("llm_ready", "our_replay", "our_release", "process_groups_down")


@pytest.mark.parametrize("variant", VARIANTS)
def test_keys_that_upstream_does_not_have_are_carried(outcome: Outcomes, variant: str) -> None:
    run = outcome(variant).runs["by ours"]
    assert run.error == ""
    (tower,) = run.reports["0"]
    assert tower["status"] == "captured"
    assert run.one("our_capture")["budget"] == 256
    assert run.of("our_replay") != []


@pytest.mark.parametrize("variant", [BEFORE, AFTER])
def test_every_spawned_worker_captures_the_same(outcome: Outcomes, variant: str) -> None:
    run, single = (outcome(variant).runs[name] for name in ("workers", "by ours"))
    assert run.error == ""
    assert sorted(run.reports) == ["0", "1"]
    shapes = [
        [(bucket["num_tokens"], bucket["max_segments"]) for bucket in towers[0]["buckets"]]
        for towers in run.reports.values()
    ]
    assert shapes[0] == shapes[1] != []
    assert len({event["pid"] for event in run.of("model_capacity")}) == 2
    assert theirs(run) == []
    torch.testing.assert_close(run.embeddings, single.embeddings, rtol=1e-4, atol=1e-5)
    assert run.tokens == single.tokens


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_encoder_that_the_model_does_not_have_is_refused(
    outcome: Outcomes, variant: str
) -> None:
    run = outcome(variant).runs["unknown"]
    assert "audio" in run.error
    assert "kv_sized" not in run.names


@pytest.mark.parametrize("variant", [BEFORE, AFTER])
def test_without_item_scheduling_it_is_the_same(outcome: Outcomes, variant: str) -> None:
    runs = outcome(variant).runs
    assert runs["unscheduled"].error == ""
    assert runs["unscheduled"].of("item_scheduler") == []
    assert runs["unscheduled"].of("our_replay") != []
    torch.testing.assert_close(
        runs["unscheduled"].embeddings, runs["qwen3_vl"].embeddings, rtol=1e-4, atol=1e-5
    )


def test_the_default_budget_is_the_language_models_before_it_is_cut(outcome: Outcomes) -> None:
    run = outcome(BEFORE).runs["default budget"]
    assert run.error == ""
    assert run.one("our_capture")["budget"] == 512
    assert run.one("model_capacity")["max_num_tokens"] == 4 * 64


def test_encoder_graphs_do_not_need_the_decoders(outcome: Outcomes) -> None:
    runs = outcome(BEFORE).runs
    assert "decoder_graphs_captured" in runs["qwen3_vl"].names
    run = runs["no decoder graphs"]
    assert run.error == ""
    assert "decoder_graphs_captured" not in run.names
    assert run.of("our_replay") != []
    assert run.tokens == runs["qwen3_vl"].tokens


@pytest.mark.parametrize("backend", ["TRTLLM", "FLASHINFER"])
@pytest.mark.parametrize("variant", [BEFORE, OLD])
def test_attention_of_upstream_inside_our_graphs(
    outcome: Outcomes, variant: str, backend: str
) -> None:
    runs = outcome(variant).runs
    run = runs[backend]
    assert run.error == ""
    assert run.in_order("our_capture", "kv_sized", "our_replay")
    torch.testing.assert_close(run.embeddings, runs["qwen3_vl"].embeddings, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_doctor(outcome: Outcomes, variant: str) -> None:
    values = outcome(variant).values
    assert values["healthy"] == "True"
    hook = "setup: setup_mm_encoder_cuda_graphs" if variant == AFTER else "_init_model_capacity"
    assert hook in values["hook"]
    files = eval(values["files"])
    assert files["tensorrt_llm/_torch/nccl_window_graph.py"].startswith("hash different")
    assert files["tensorrt_llm/_torch/models/modeling_utils.py"].startswith("hash not recorded")
    changed = {
        BEFORE: (),
        AFTER: ("MultimodalEncoderCudaGraphConfig",),
        OLD: ("engine.multimodal", "setup_attn_metadata"),
    }[variant]
    problems = eval(values["contract"])
    assert bool(problems) == bool(changed)
    assert all(any(name in problem for name in changed) for problem in problems)


# -- the commands --------------------------------------------------------------------------


def served(double: Path, folder: Path, *command: str) -> tuple[list[dict[str, Any]], str]:
    log = folder / "log.jsonl"
    done = subprocess.run(
        command,
        env=builder.double_environment(double, TRTLLM_DOUBLE_LOG=str(log)),
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in log.read_text("utf-8").splitlines()], done.stdout


def test_both_commands_start_upstream_with_our_towers(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    double = builder.build_double(tmp_path / "double", BEFORE)
    (options := tmp_path / "options.yaml").write_text(
        "max_batch_size: 4\nmax_num_tokens: 512\nmultimodal_config:\n"
        "  encoder_cuda_graph: {image: {buckets: [[256, 4]]}}\n",
        "utf-8",
    )
    model_dir = str(Path(__file__).resolve().parents[2] / "tensorrt_llm_ext")
    plain = [str(double / "bin" / "trtllm-serve"), str(tiny_checkpoint), "--config", str(options)]
    (tmp_path / "a").mkdir()
    events, _ = served(double, tmp_path / "a", *plain, "--custom_module_dirs", model_dir)
    assert {event["event"] for event in events} & UPSTREAMS == set()

    (tmp_path / "b").mkdir()
    options.write_text(options.read_text().replace("buckets: [[256, 4]]", "max_batch_size: 4"))
    ours = [sys.executable, "-m", "tensorrt_llm_ext.cli", "serve", str(tiny_checkpoint)]
    before = set(Path(tempfile.gettempdir()).glob("trtllm-ext-*"))
    events, shown = served(double, tmp_path / "b", *ours, "--config", str(options))
    assert {event["event"] for event in events} & UPSTREAMS == set()
    assert '"serving"' in shown
    assert set(Path(tempfile.gettempdir()).glob("trtllm-ext-*")) == before


@pytest.mark.parametrize(
    ("variant", "key", "carried"),
    [
        (BEFORE, "max_batch_size: 2", False),
        (AFTER, "max_batch_size: 2", True),
        (AFTER, "max_batch_size: 2, max_graph_memory: 64MiB", False),
    ],
)
def test_what_plain_serve_carries_and_says_of_the_rest(
    tiny_checkpoint: Path, tmp_path: Path, variant: str, key: str, carried: bool
) -> None:
    double = builder.build_double(tmp_path / "double", variant)
    (options := tmp_path / "options.yaml").write_text(
        "max_batch_size: 4\nmax_num_tokens: 512\nmultimodal_config:\n"
        f"  encoder_cuda_graph: {{image: {{{key}}}}}\n",
        "utf-8",
    )
    folder = str(Path(__file__).resolve().parents[2] / "tensorrt_llm_ext")
    done = subprocess.run(
        [
            *(str(double / "bin" / "trtllm-serve"), str(tiny_checkpoint)),
            *("--config", str(options), "--custom_module_dirs", folder),
        ],
        env=builder.double_environment(double),
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert (done.returncode == 0) is carried, done.stderr
    if not carried:
        said = done.stderr.splitlines()[-1]
        assert said.startswith(f"Error: {options}: multimodal_config.encoder_cuda_graph.image has ")
        assert "Start `trtllm-ext serve`" in said
        assert "`trtllm-ext expand FILE`" in said
        assert "Traceback" not in done.stderr
