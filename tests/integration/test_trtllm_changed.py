# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The binding in changed doubles of TensorRT-LLM: the documented fallback, or a clear refusal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trtllm_doubles import Edit, Outcome, Run, builder, drive

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BEFORE, AFTER = "before_20213", "after_20213"
OURS = ("tensorrt_llm_ext",)
DIAGNOSIS = "load('tensorrt_llm_ext.trtllm.doctor').diagnose().{}"


def graphs(**entry: Any) -> dict[str, Any]:
    shapes = entry or {"buckets": [[96, 4], [256, 4]]}
    return {"multimodal_config": {"encoder_cuda_graph": {"image": shapes}}}


def theirs(run: Run) -> list[str]:
    """What upstream's own towers did."""
    return [name for name in run.names if name.startswith("upstream_")]


@pytest.fixture
def models(tiny_checkpoint: Path) -> dict[str, str]:
    return {"qwen3_vl": str(tiny_checkpoint)}


ENGINE = "_torch/pyexecutor/model_engine.py"
MIXIN = "_torch/models/modeling_multimodal_encoder.py"
MULTIMODAL = "_torch/pyexecutor/engine/multimodal.py"
UTILS = "_torch/models/modeling_utils.py"
QWEN = "_torch/models/modeling_qwen3vl.py"
QWEN_MOE = "_torch/models/modeling_qwen3vl_moe.py"
GLM = "_torch/models/modeling_glm5_next_vision.py"
MOVED = (Edit(ENGINE, "_init_model_capacity", "_size_the_model"),)
CHANGED = (
    Edit(
        ENGINE,
        "def _init_model_capacity(self) -> None:",
        "def _init_model_capacity(self, again: bool = False) -> None:",
    ),
)


@pytest.fixture
def mutated(models: dict[str, str], tmp_path: Path) -> Callable[..., Outcome]:
    """(edits) -> what the binding made of a version with them."""

    def of(*edits: Edit, variant: str = BEFORE, **runs: dict[str, Any]) -> Outcome:
        double = builder.build_double(tmp_path / "double", variant, edits)
        values = {name: DIAGNOSIS.format(name) for name in ("healthy", "hook", "refusal")}
        return drive(double, tmp_path / "out", runs, values, OURS, spy=True)

    return of


@pytest.mark.parametrize("edits", [MOVED, CHANGED], ids=["moved", "changed"])
def test_without_the_hook_towers_capture_at_the_last_call(
    mutated: Callable[..., Outcome], models: dict[str, str], edits: tuple[Edit, ...]
) -> None:
    qwen = {"model": models["qwen3_vl"], "llm": graphs()}
    done = mutated(*edits, qwen=qwen)
    assert done.values["hook"][1:].startswith("towers: set_attn_max_seq_len; ")
    assert "_init_model_capacity" in done.values["hook"]
    run = done.runs["qwen"]
    assert run.error == ""
    assert run.in_order("setup_attn_metadata", "our_capture", "kv_sized", "our_replay")
    assert run.in_order("our_release", "process_groups_down")
    assert theirs(run) == []


NO_PLACE = (
    *MOVED,
    *(Edit(f, "set_attn_max_seq_len", "set_longest") for f in (MIXIN, MULTIMODAL, QWEN)),
)
OTHER_ARGUMENTS = (
    Edit(
        UTILS,
        "def register_auto_model(name: str)",
        "def register_auto_model(name: str, replace: bool = True)",
    ),
)
OTHER_ENCODER_ARGUMENTS = (
    Edit(UTILS, "vlm_base_model", "base_model"),
    *(Edit(f, ", vlm_base_model=", ", base_model=") for f in (QWEN, QWEN_MOE, GLM)),
)


@pytest.mark.parametrize(
    ("edits", "reason"),
    [
        (NO_PLACE, "no place to capture"),
        (OTHER_ARGUMENTS, "register_auto_model takes other arguments"),
        (OTHER_ENCODER_ARGUMENTS, "register_vision_encoder takes other arguments"),
    ],
    ids=["no place", "arguments", "arguments of the encoder"],
)
def test_where_it_cannot_work_upstream_stays_as_it_is(
    mutated: Callable[..., Outcome], models: dict[str, str], edits: tuple[Edit, ...], reason: str
) -> None:
    qwen = {"model": models["qwen3_vl"]}
    ours = {**qwen, "via": "ours", "llm": graphs(max_batch_size=2)}
    done = mutated(*edits, qwen=qwen, ours=ours)
    assert done.values["healthy"] == "False"
    assert reason in done.values["refusal"]
    assert done.runs["qwen"].error == ""
    assert "upstream_eager" in theirs(done.runs["qwen"])
    assert done.runs["qwen"].of("our_weights") == []
    assert "backend 'tensorrt_llm' is not available here" in done.runs["ours"].error
    assert reason in done.runs["ours"].error


def test_after_the_pull_request_a_set_up_without_a_model_is_refused(
    mutated: Callable[..., Outcome],
) -> None:
    edits = (
        Edit(MULTIMODAL, "    model: nn.Module, multimodal_config", "    llm, multimodal_config"),
        Edit(MULTIMODAL, "{})\n    encoders = [m", "{})\n    model = llm\n    encoders = [m"),
    )
    done = mutated(*edits, variant=AFTER)
    assert "has no parameter 'model'" in done.values["refusal"]
    assert done.values["healthy"] == "False"


def test_an_encoder_at_another_place_stays_with_a_warning(
    mutated: Callable[..., Outcome], models: dict[str, str]
) -> None:
    qwen = {"model": models["qwen3_vl"]}
    done = mutated(Edit(QWEN, "self.visual", "self.vision_tower"), qwen=qwen)
    run = done.runs["qwen"]
    assert run.error == ""
    assert "upstream_eager" in theirs(run)
    assert "upstream's encoder stays" in done.output


@pytest.mark.parametrize(
    "edit",
    [
        Edit("__init__.py", "from .llmapi.llm import LLM\n", "{}from .llmapi.llm import LLM\n"),
        Edit("llmapi/__init__.py", "from .llm import LLM\n", "{}from .llm import LLM\n"),
        Edit(UTILS, "MODEL_CLASS_MAPPING: dict", "{}MODEL_CLASS_MAPPING: dict"),
        Edit(QWEN, "class Qwen3VLInputProcessorBase", "{}class Qwen3VLInputProcessorBase"),
    ],
    ids=["package", "below", "what is needed", "a model"],
)
def test_an_import_in_the_middle_of_upstreams_registers_when_that_is_over(
    models: dict[str, str], tmp_path: Path, edit: Edit
) -> None:
    edit = edit._replace(new=edit.new.format("import tensorrt_llm_ext\n\n"))
    double = builder.build_double(tmp_path / "double", BEFORE, [edit])
    qwen = {"model": models["qwen3_vl"], "llm": graphs()}
    values = {"active": "load('tensorrt_llm_ext.trtllm.registration')._done.active"}
    done = drive(double, tmp_path / "out", {"qwen": qwen}, values)
    assert done.runs["qwen"].error == ""
    assert done.values["active"] == "True"
    assert theirs(done.runs["qwen"]) == []


def test_a_model_whose_module_cannot_be_imported_is_refused_alone(tmp_path: Path) -> None:
    edit = Edit(GLM, "class Glm5NextVisionModel(", "raise OSError('no driver')\n\nclass Glm(")
    double = builder.build_double(tmp_path / "double", BEFORE, [edit])
    done = drive(double, tmp_path / "out", values={"models": DIAGNOSIS.format("models")})
    found = eval(done.values["models"])
    assert found["Glm5NextForConditionalGeneration"].startswith("refused: not found: ")
    assert "OSError: no driver" in found["Glm5NextForConditionalGeneration"]
    assert found["Qwen3VLForConditionalGeneration"] == "registered"


def test_an_unknown_argument_of_the_metadata_is_named(
    mutated: Callable[..., Outcome], models: dict[str, str]
) -> None:
    edit = Edit(
        MULTIMODAL,
        'setup_kwargs: dict[str, Any] = {"max_num_tokens": encoder_max_num_tokens}',
        'setup_kwargs: dict[str, Any] = {"max_num_tokens": encoder_max_num_tokens, "pages": 1}',
    )
    run = mutated(edit, qwen={"model": models["qwen3_vl"]}).runs["qwen"]
    assert "TypeError: setup_attn_metadata was called with [] and" in run.error
    assert "see trtllm-ext doctor" in run.error
