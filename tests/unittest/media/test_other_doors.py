# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Cases 46, 47, 48, 50 and 53: configuration, checkpoints, templates, and python -O."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoTokenizer

from tensorrt_llm_ext import LLM
from tensorrt_llm_ext.engine.errors import RequestError
from tensorrt_llm_ext.engine.families import family_of
from tensorrt_llm_ext.engine.media_inputs import MediaInputs
from tensorrt_llm_ext.engine.prompts import PromptBuilder
from tensorrt_llm_ext.llmapi.problems import check_serve_config

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).parent
SMALL: dict[str, Any] = {"device": "cpu", "kv_cache_config": {"max_tokens": 64}}

BOMB = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{b}: &{b} [{','.join([f'*{a}'] * 10)}]\n" for a, b in zip("abcdef", "bcdefg", strict=True)
)


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        (b"max_batch_size: 1\nmax_batch_size: 2\n", 2, "duplicate key"),
        (b"model: a\ndevice: !!python/object/apply:os.system [echo]\n", 2, "is not allowed"),
        (b"model: !!python/name:os.system\n", 1, "is not allowed"),
        (BOMB.encode(), 1, "aliases expand to more than"),
        (b"#" * 10_000_000, None, "larger than 256 KiB"),
        (b"model: a\ndevice: \xff\n", 2, "not UTF-8"),
        (b"- model\n", 1, "holds a list; it must hold a mapping"),
        (b"kv_cache_config:\n\tmax_tokens: 1\n", 2, "a tab"),
        (b"trust_remote_code: on\n", 1, "must be true or false"),
        (b"model: a\ntrust_remote_code: off\n", 2, "must be true or false"),
        (b"media_limits:\n  max_redirects: 3\n  allow_private: true\n", 3, "unknown key"),
        (b"media_limits:\n  allowed_media_domains: [127.0.0.1]\n", 2, "must be a host name"),
    ],
    ids=lambda v: str(v)[:30],
)
def test_case_46_yaml_traps_are_errors_with_their_line(
    content: bytes, line: int | None, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "c.yaml").write_bytes(content)
    checked = check_serve_config(tmp_path / "c.yaml")
    assert checked.config is None
    (problem,) = checked.problems
    assert problem.line == line
    assert reason in str(problem)
    assert "\n" not in str(problem)


@pytest.fixture
def folder(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """A checkpoint that may be changed."""
    shutil.copytree(tiny_checkpoint, tmp_path / "model")
    return tmp_path / "model"


def refused(folder: Path, match: str, **options: Any) -> None:
    with pytest.raises(ValueError, match=match):
        LLM(model=folder, **SMALL, **options)


class _Evil:
    """Leaves a folder behind where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.pth"])
def test_case_47_pickled_weights_are_not_read(name: str, folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"weight": _Evil(folder.parent / "ran")}, folder / name)
    refused(folder, f"it has {name}, which can run code when read", trust_remote_code=True)
    assert not (folder.parent / "ran").exists()


@pytest.mark.parametrize(
    "file", ["config.json", "tokenizer_config.json", "preprocessor_config.json"]
)
def test_case_47_code_of_a_checkpoint_does_not_run(file: str, folder: Path) -> None:
    ran = folder.parent / "ran"
    (folder / "evil.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    content = json.loads((folder / file).read_text())
    classes = ("AutoConfig", "AutoTokenizer", "AutoProcessor", "AutoModelForImageTextToText")
    content["auto_map"] = dict.fromkeys(classes, "evil.Evil")
    content["auto_map"]["AutoTokenizer"] = ["evil.Evil", None]
    (folder / file).write_text(json.dumps(content))
    try:
        LLM(model=folder, **SMALL).shutdown()
    except ValueError as error:
        refusal = str(error)
    else:
        refusal = "none: loaded without that code"
    assert "trust_remote_code" in refusal or "without that code" in refusal
    assert not ran.exists()


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "a/../../x", ".."])
def test_case_47_an_index_cannot_point_outside(name: str, folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
    shutil.copy(folder.parent / "outside.safetensors", folder / "one.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(folder, "which is not in the folder")


@pytest.mark.parametrize("part", ["language_model", "visual"])
@pytest.mark.parametrize("fault", ["missing", "shape"])
def test_case_47_weights_that_do_not_fit_are_listed(part: str, fault: str, folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    first, second = [key for key in sorted(weights) if part in key and key.endswith("weight")][:2]
    for key in (first, second):
        if fault == "missing":
            del weights[key]
        else:
            weights[key] = torch.zeros(3)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    listed = r"missing {0}" if fault == "missing" else r"{0} is \[3\], expected \["
    refused(folder, ".*; ".join(listed.format(key) for key in (first, second)))


@pytest.fixture
def builder(folder: Path) -> PromptBuilder:
    return PromptBuilder(
        AutoTokenizer.from_pretrained(folder),
        MediaInputs(folder),
        family_of("qwen3_vl"),
        AutoConfig.from_pretrained(folder),
    )


TURN: dict[str, Any] = {"messages": [{"role": "user", "content": "{{ 7 * 7 }}"}]}


def test_case_48_a_request_brings_no_template(builder: PromptBuilder) -> None:
    with pytest.raises(RequestError, match=r"unknown keys \['chat_template'\]"):
        builder.prepare({**TURN, "chat_template": "{{ messages }}"})
    with pytest.raises(RequestError, match="chat_template, which belong to the engine"):
        builder.prepare({**TURN, "chat_template_kwargs": {"chat_template": "{{ messages }}"}})


def test_case_48_what_a_request_says_is_no_template(builder: PromptBuilder) -> None:
    text = builder.prepare(TURN).text
    assert text is not None
    assert "{{ 7 * 7 }}" in text
    assert "49" not in text


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% for i in range(10000000) %}x{% endfor %}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
    ],
)
def test_case_48_templates_run_in_a_sandbox(builder: PromptBuilder, template: str) -> None:
    builder.tokenizer.chat_template = template
    with pytest.raises(RequestError, match="the chat template cannot render"):
        builder.prepare(TURN)


SAFETY = ("urls", "fetch", "local", "data_urls", "images", "door")


@pytest.mark.slow
def test_case_50_no_check_is_an_assert() -> None:
    """The tests of this folder give the same result where Python drops assert statements."""
    command = [sys.executable, "-O", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-W", "ignore::pytest.PytestConfigWarning", "-k", "case_"]
    command += [str(HERE / f"test_{name}.py") for name in SAFETY]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " passed" in done.stdout


def test_case_53_profiles_are_not_offered() -> None:
    """Were they, their output_dir would have to stay in a folder that the operator chose."""
    for path in (ROOT / "tensorrt_llm_ext").rglob("*.py"):
        assert "start_profile" not in path.read_text(encoding="utf-8"), path
