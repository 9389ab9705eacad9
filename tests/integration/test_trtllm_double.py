# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The double of TensorRT-LLM itself: its names against the contract, its order, what it refuses.

One process a variant does everything that a fixture asks for; the tests look at the record.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from trtllm_doubles import Edit, Outcome, builder, drive

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BEFORE, AFTER, OLD = "before_20213", "after_20213", "pre_18524"
NEWER, OLDER = "06048c6cee66", "002f3cc3d055"
BUCKETS = {"buckets": [[256, 4]]}
PROBLEMS = (
    "load('tensorrt_llm_ext.trtllm.contract').problems("
    "load('tensorrt_llm_ext.trtllm.contract').check_contract(snapshot={!r}))"
)
POOL = "load('tensorrt_llm._torch.nccl_window_graph').nccl_window_graph_owner({}).__enter__()"


@pytest.fixture(scope="module")
def outcome(
    family_checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Outcome]:
    """(variant) -> what a process with it did, once a variant."""
    models = {f: str(family_checkpoint(f)) for f in ("qwen3_vl", "glm5_next", "nemotron_h_omni")}

    @cache
    def of(variant: str) -> Outcome:
        qwen = {"model": models["qwen3_vl"]}
        graphs = {
            "glm5_next": {"image": BUCKETS},
            "nemotron_h_omni": {"vision": BUCKETS},
        }
        draft = {"decoding_type": "Draft_Target", "speculative_model": models["qwen3_vl"]}
        off = {"multimodal_config": {"encoder_scheduling_policy": "DISABLED"}}
        runs = {
            "qwen": qwen,
            "draft": {**qwen, "llm": {"speculative_config": draft}},
            "unscheduled": {**qwen, "llm": off},
            "unknown": {**qwen, "llm": {"multimodal_config": {"no_such_key": 1}}},
            "bound": {
                **qwen,
                "llm": {
                    "multimodal_config": {
                        "encoder_cuda_graph": {"image": {"max_batch_size": 2}},
                    }
                },
            },
            **{
                family: {
                    "model": models[family],
                    "llm": {"multimodal_config": {"encoder_cuda_graph": entries}},
                }
                for family, entries in graphs.items()
            },
            "held": {**qwen, "hold": 8 << 20},
        }
        values = {
            NEWER: PROBLEMS.format(NEWER),
            OLDER: PROBLEMS.format(OLDER),
            "list pool": POOL.format([1, 2]),
            "text pool": POOL.format(("a", "b")),
            "pool": POOL.format((1, 2)),
        }
        root = tmp_path_factory.mktemp(variant)
        return drive(
            builder.build_double(root / "double", variant),
            root / "out",
            runs,
            values,
            TRTLLM_EXT_DISABLE="1",
        )

    return of


@pytest.mark.parametrize(("variant", "snapshot"), [(BEFORE, NEWER), (OLD, OLDER)])
def test_names_and_signatures_are_those_that_were_read(
    outcome: Callable[[str], Outcome], variant: str, snapshot: str
) -> None:
    assert outcome(variant).values[snapshot] == "()"


def test_only_the_entry_changes_after_the_pull_request(
    outcome: Callable[[str], Outcome],
) -> None:
    problems = eval(outcome(AFTER).values[NEWER])
    assert len(problems) == 1
    assert "MultimodalEncoderCudaGraphConfig: changed" in problems[0]


@pytest.mark.parametrize("variant", [BEFORE, AFTER, OLD])
def test_order_from_the_constructor_to_the_end_of_the_process_groups(
    outcome: Callable[[str], Outcome], variant: str
) -> None:
    run = outcome(variant).runs["qwen"]
    assert run.error == ""
    start = (
        "engine_init",
        "model_built",
        "checkpoint_read",
        "load_weights_begin",
        "upstream_tower_loaded",
        "load_weights_end",
        "item_scheduler",
        "setup_attn_metadata",
        *(("setup_cuda_graphs",) if variant == AFTER else ()),
        "model_capacity",
        "engine_ready",
        "kv_managers_built",
        "dummy_encode",
        "kv_sized",
        "mid_init_release",
        "executor_shutdown",
        "decoder_graphs_released",
        "kv_managers_torn_down",
        "kv_managers_built",
        "decoder_graphs_captured",
        "executor_ready",
        "llm_ready",
        "upstream_eager",
        "executor_shutdown",
        "decoder_graphs_released",
        "engine_cleaned",
        "process_groups_down",
        "llm_down",
    )
    assert run.in_order(*start)


@pytest.mark.parametrize("variant", [BEFORE, AFTER, OLD])
def test_a_draft_engine_walks_the_same_way_before_anything_is_sized(
    outcome: Callable[[str], Outcome], variant: str
) -> None:
    run = outcome(variant).runs["draft"]
    assert run.error == ""
    assert len(run.of("setup_attn_metadata")) == len(run.of("model_capacity")) == 2
    assert run.in_order("engine_ready", "engine_init", "engine_ready", "kv_sized")


def test_scheduling_raises_the_budget_and_passes_a_capacity(
    outcome: Callable[[str], Outcome],
) -> None:
    runs = outcome(BEFORE).runs
    scheduled = runs["qwen"].one("item_scheduler")
    assert (scheduled["base"], scheduled["effective"]) == (256, 1024)
    setup = runs["qwen"].one("setup_attn_metadata")
    assert (setup["tokens"], setup["capacity"]) == (1024, {"attention": 256})
    for name in ("unscheduled", "glm5_next", "nemotron_h_omni"):
        assert runs[name].of("item_scheduler") == []
        setup = runs[name].one("setup_attn_metadata")
        assert (setup["tokens"], setup["capacity"]) == (256, None)


def test_after_the_pull_request_graphs_get_the_configured_budget(
    outcome: Callable[[str], Outcome],
) -> None:
    run = outcome(AFTER).runs["qwen"]
    assert run.one("setup_attn_metadata")["tokens"] == 1024
    assert run.one("setup_cuda_graphs")["tokens"] == 256


@pytest.mark.parametrize("family", ["glm5_next", "nemotron_h_omni"])
def test_where_upstream_captures(outcome: Callable[[str], Outcome], family: str) -> None:
    before, after = outcome(BEFORE).runs[family], outcome(AFTER).runs[family]
    assert before.error == after.error == ""
    captured = ("load_weights_begin", "upstream_capture", "load_weights_end")
    assert before.in_order(*captured)
    assert not after.in_order(*captured)
    assert after.in_order("setup_cuda_graphs", "upstream_capture", "model_capacity", "kv_sized")


def test_what_is_held_before_sizing_is_not_given_to_the_cache(
    outcome: Callable[[str], Outcome],
) -> None:
    runs = outcome(BEFORE).runs
    free, held = runs["qwen"].one("kv_sized"), runs["held"].one("kv_sized")
    assert held["used"] - free["used"] >= 8 << 20
    assert held["tokens"] < free["tokens"]


def test_unknown_keys_are_refused_and_new_ones_known_only_after(
    outcome: Callable[[str], Outcome],
) -> None:
    for variant in (BEFORE, AFTER, OLD):
        assert "Extra inputs are not permitted" in outcome(variant).runs["unknown"].error
    assert "Extra inputs are not permitted" in outcome(BEFORE).runs["bound"].error
    after = outcome(AFTER).runs["bound"]
    assert after.error == ""
    assert [event["key"] for event in after.of("upstream_capture")] == [[256, 2], [256, 1]]


def test_without_a_switch_items_are_scheduled_in_the_old_design(
    outcome: Callable[[str], Outcome],
) -> None:
    assert "Extra inputs are not permitted" in outcome(OLD).runs["unscheduled"].error


def test_pools_are_pairs_of_integers(outcome: Callable[[str], Outcome]) -> None:
    values = outcome(BEFORE).values
    assert values["list pool"].startswith("TypeError: Expected a CUDA graph pool handle")
    assert values["text pool"].startswith("TypeError: Invalid CUDA graph pool handle")
    assert values["pool"] == "None"


MINE = """
import os
from tensorrt_llm import _double
from tensorrt_llm._torch.models.modeling_qwen3vl import Qwen3VLModel
from tensorrt_llm._torch.models.modeling_utils import register_auto_model
from tensorrt_llm.inputs.registry import INPUT_PROCESSOR_REGISTRY

@register_auto_model("Qwen3VLForConditionalGeneration")
class Mine(Qwen3VLModel):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        _double.record("mine_built")

# Processors are looked up by the very class.
PROCESSORS = INPUT_PROCESSOR_REGISTRY._input_processors_cls_by_model_type
PROCESSORS[Mine] = PROCESSORS[Qwen3VLModel]
"""


def test_serve_and_an_external_model_in_spawned_workers(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    double = builder.build_double(tmp_path / "double", BEFORE)
    mine = tmp_path / "my_models"
    mine.mkdir()
    (mine / "__init__.py").write_text(MINE, "utf-8")
    options = tmp_path / "options.yaml"
    options.write_text(
        "max_num_tokens: 300\nmax_batch_size: 3\n"
        "multimodal_config: {encoder_cache_max_bytes: 1000000}\n",
        "utf-8",
    )
    log = tmp_path / "log.jsonl"
    done = subprocess.run(
        [
            str(double / "bin" / "trtllm-serve"),
            str(tiny_checkpoint),
            *("--config", str(options), "--custom_module_dirs", str(mine), "--tp_size", "2"),
            *("--max_batch_size", "4", "--set", "encoder_max_num_tokens=128"),
            *("--set", "multimodal_config.encoder_cache_max_bytes=0"),
        ],
        env=builder.double_environment(double, TRTLLM_DOUBLE_LOG=str(log), TRTLLM_EXT_DISABLE="1"),
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert done.returncode == 0, done.stderr
    shown = next(json.loads(line) for line in done.stdout.splitlines() if '"serving"' in line)
    assert shown["multimodal_config"]["encoder_cache_max_bytes"] == 0
    events = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    built = [event for event in events if event["event"] == "mine_built"]
    assert sorted(event["rank"] for event in built) == [0, 1]
    assert len({event["pid"] for event in built}) == 2
    sizes = {event["max_num_tokens"] for event in events if event["event"] == "model_capacity"}
    assert sizes == {300}


def test_an_edit_whose_text_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"mapping\.py does not contain 'no such text'"):
        builder.build_double(tmp_path, BEFORE, [Edit("mapping.py", "no such text", "")])


def test_an_unknown_variant_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="variant 'main' is not known; choose one of before"):
        builder.build_double(tmp_path, "main")
