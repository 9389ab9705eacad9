# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Case 45: what keeps a server from starting is one line, before weights are loaded."""

from __future__ import annotations

import logging
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tensorrt_llm_ext.cli import main
from tensorrt_llm_ext.engine import engine as engine_module

AUDIO = "multimodal_config.encoder_cuda_graph.audio.max_batch_size=4"


@pytest.fixture(autouse=True)
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Models whose weights were touched."""
    seen: list[str] = []

    def load_tower(folder: Path, **options: Any) -> None:
        seen.append(str(folder))
        raise ValueError("weights were to be loaded")

    monkeypatch.setattr(engine_module, "load_tower", load_tower)
    monkeypatch.delenv("TRTLLM_EXT_API_KEY", raising=False)
    return seen


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    """The server sets up logging for its process; this one goes on."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that something listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def error(*arguments: object) -> str:
    """The one line that a start ends with."""
    result = CliRunner().invoke(main, ["serve", "--device", "cpu", *map(str, arguments)])
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit)
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def test_case_45_port_taken(tiny_checkpoint: Path, taken: int, loaded: list[str]) -> None:
    said = error(tiny_checkpoint, "--host", "127.0.0.1", "--port", taken)
    assert f"127.0.0.1:{taken}" in said
    assert loaded == []


def test_case_45_bad_yaml(tiny_checkpoint: Path, tmp_path: Path, loaded: list[str]) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text("max_batch_size: 8\n\tmax_seq_len: 1\n")
    assert f"{path}:2: a tab" in error(tiny_checkpoint, "--config", path, "--port", 0)
    path.write_text("max_batchsize: 8\n")
    assert "did you mean 'max_batch_size'?" in error(tiny_checkpoint, "--config", path)
    assert loaded == []


def test_case_45_missing_or_unusable_model(tmp_path: Path, loaded: list[str]) -> None:
    assert "is not a folder" in error(tmp_path / "none", "--port", 0)
    assert "has no config.json" in error(tmp_path, "--port", 0)
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_vl"}')
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert "pytorch_model.bin, which can run code" in error(tmp_path, "--port", 0)
    assert loaded == []


def test_case_45_what_the_model_or_the_machine_lacks(
    tiny_checkpoint: Path, loaded: list[str]
) -> None:
    said = error(tiny_checkpoint, "--port", 0, "--set", AUDIO)
    assert "entry for 'audio', but the model has no such encoder; it has ['image']" in said
    assert "99" in error(tiny_checkpoint, "--port", 0, "--device", "cuda:99")
    assert loaded == []


def test_case_45_tokenizers_that_cannot_be_used(
    tiny_checkpoint: Path, tmp_path: Path, loaded: list[str]
) -> None:
    none = tmp_path / "none"
    for given in (none, "Qwen/Qwen3-VL-2B-Instruct"):  # no folder, and nothing is downloaded
        said = error(tiny_checkpoint, "--port", 0, "--tokenizer", given)
        assert f"tokenizer '{given}' is not a folder" in said
    folder = tmp_path / "tiny"
    shutil.copytree(tiny_checkpoint, folder)
    file = folder / "tokenizer.json"
    whole = file.read_text()
    file.unlink()
    assert f"{folder} has no vocabulary" in error(folder, "--port", 0)
    for text in ("{", "{}"):
        file.write_text(text)
        said = error(folder, "--port", 0)
        assert f"the tokenizer in {folder} cannot be loaded: " in said
    file.write_text(whole)
    (folder / "tokenizer_config.json").write_text("[]")
    said = error(folder, "--port", 0)  # a list has no keys, as versions of transformers say it
    assert "cannot be loaded: TypeError" in said or "cannot be loaded: AttributeError" in said
    assert loaded == []


def test_an_error_while_loading_is_a_line_too(tiny_checkpoint: Path, loaded: list[str]) -> None:
    assert error(tiny_checkpoint, "--port", 0) == "error: weights were to be loaded"
    assert loaded == [str(tiny_checkpoint)]
