# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Serve YAML: every example is valid, and a typo in any key is found, by schema and by models."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ValidationError

from tensorrt_llm_ext.llmapi.llm_args import ServeConfig
from tensorrt_llm_ext.llmapi.media_limits import MediaLimits
from tensorrt_llm_ext.llmapi.problems import check_serve_config
from tensorrt_llm_ext.llmapi.yaml_io import load_yaml_file

ROOT = Path(__file__).parents[3]
SCHEMA = ROOT / "schemas" / "trtllm-ext-serve-config.schema.json"
EXAMPLES = sorted((ROOT / "examples" / "serve").glob("*.yaml"))
FIXTURE = Path(__file__).parent / "data" / "every_section.yaml"
VALIDATOR = Draft202012Validator(json.loads(SCHEMA.read_text()))


def check_jsonschema(*paths: Path) -> subprocess.CompletedProcess[str]:
    """The program that editors' users run."""
    command = [sys.executable, "-m", "check_jsonschema", "--schemafile", str(SCHEMA)]
    return subprocess.run([*command, *map(str, paths)], capture_output=True, text=True)


def test_there_are_examples() -> None:
    assert {path.stem for path in EXAMPLES} >= {
        "cpu_laptop",
        "memory_limited",
        "nemotron_vision",
        "qwen3_omni",
        "qwen3_vl",
        "qwen3_vl_buckets",
        "remote_media",
    }


def test_check_jsonschema_accepts_the_examples_and_no_typo(tmp_path: Path) -> None:
    run = check_jsonschema(*EXAMPLES, FIXTURE)
    assert run.returncode == 0, run.stdout + run.stderr
    typo = tmp_path / "typo.yaml"
    typo.write_text(FIXTURE.read_text().replace("warmup_steps", "warmup_step"))
    run = check_jsonschema(typo)
    assert run.returncode == 1
    assert "warmup_step" in run.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_every_example_is_valid_and_says_how_to_run_it(path: Path) -> None:
    checked = check_serve_config(path)
    assert checked.config is not None, checked.problems
    assert checked.config.notices == []
    lines = path.read_text().splitlines()
    prefix = "# yaml-language-server: $schema="
    assert lines[0].startswith(prefix)
    assert (path.parent / lines[0].removeprefix(prefix)).resolve() == SCHEMA
    command = next(line for line in lines if "trtllm-ext serve" in line)
    assert command.endswith(f" --config examples/serve/{path.name}")


def keys_of(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Path of every key, at every depth."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key)
            yield from keys_of(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from keys_of(inner, (*path, index))


VALUES = load_yaml_file(FIXTURE).values
KEYS = list(keys_of(VALUES))


def with_typo(path: tuple[str | int, ...]) -> tuple[dict[str, Any], str]:
    """The fixture's values with one key misspelt: its last letter doubled."""
    values = copy.deepcopy(VALUES)
    owner: Any = values
    for part in path[:-1]:
        owner = owner[part]
    typo = f"{path[-1]}{str(path[-1])[-1]}"
    owner[typo] = owner.pop(path[-1])
    return values, typo


def test_the_fixture_is_valid_and_has_every_section() -> None:
    assert list(VALIDATOR.iter_errors(VALUES)) == []
    config = ServeConfig.model_validate(VALUES)
    sections = {
        name
        for name, field in ServeConfig.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    }
    assert sections == {"kv_cache_config", "multimodal_config", "media_limits"} <= VALUES.keys()
    assert set(MediaLimits.model_fields) == set(VALUES["media_limits"])
    assert set(config.multimodal_config.encoder_cuda_graph or {}) == {"image", "audio"}
    assert max(map(len, KEYS)) == 4


@pytest.mark.parametrize("path", KEYS, ids=lambda path: ".".join(map(str, path)))
def test_a_typo_in_any_key_is_found_by_schema_and_models(
    path: tuple[str | int, ...], tmp_path: Path
) -> None:
    values, typo = with_typo(path)
    assert list(VALIDATOR.iter_errors(values)) != []
    with pytest.raises(ValidationError):
        ServeConfig.model_validate(values)
    file = tmp_path / "typo.yaml"
    file.write_text(yaml.safe_dump(values, sort_keys=False))
    lines = file.read_text().splitlines()
    problem = check_serve_config(file).problems[0]
    assert problem.line is not None
    assert f"{typo}:" in lines[problem.line - 1] or path[0] in (
        "cuda_graph_config",
        "torch_compile_config",
        "telemetry_config",
    )
    assert repr(typo) in problem.message
    assert "\n" not in str(problem)
