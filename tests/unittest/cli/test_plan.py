# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""`trtllm-ext plan`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tensorrt_llm_ext.cli import main

CONFIG = """\
encoder_max_num_tokens: 256
dtype: bfloat16
multimodal_config:
  encoder_cuda_graph:
    image:
      max_batch_size: 4
"""
ENTRY = "multimodal_config.encoder_cuda_graph.image"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "serve.yaml"
    path.write_text(CONFIG)
    return path


def run(*args: object) -> Result:
    return CliRunner().invoke(main, ["plan", *map(str, args)])


def tokens(result: Result) -> list[int]:
    (tower,) = json.loads(result.stdout)["towers"]
    return [b["num_tokens"] for b in tower["buckets"]]


def test_text(config: Path, tiny_checkpoint: Path) -> None:
    result = run(config, "--model", tiny_checkpoint)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"{tiny_checkpoint} on cuda, bfloat16\n")
    assert "Encoder 'image': 4 buckets, tiles attention" in result.stdout
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["256", "4", "any"] in rows  # tiles bake no longest segment


def test_json_is_all_of_stdout(config: Path, tiny_checkpoint: Path) -> None:
    result = run(config, "--model", tiny_checkpoint, "--json")
    plan = json.loads(result.stdout)
    assert plan["total_bytes"] == plan["towers"][0]["total_bytes"] > 0
    assert tokens(result) == [64, 128, 192, 256]


def test_set_and_model_of_the_file(config: Path, tiny_checkpoint: Path) -> None:
    config.write_text(CONFIG + f"model: {tiny_checkpoint}\n")
    result = run(config, "--set", f"{ENTRY}.max_num_tokens=128", "--json")
    assert result.exit_code == 0
    assert tokens(result) == [64, 128]
    result = run(config, "--set", "encoder_max_num_tokens=64", "--json")
    assert tokens(result) == [64]
    assert "replaced by 64 (--set)" in result.stderr


@pytest.mark.parametrize(
    ("device", "option", "attention"),
    [
        ("auto", None, "tiles"),
        ("cuda:1", None, "tiles"),
        ("cpu", None, "block_mask"),
        ("cpu", "cuda", "tiles"),
        ("auto", "cpu", "block_mask"),
    ],
)
def test_device(
    config: Path, tiny_checkpoint: Path, device: str, option: str | None, attention: str
) -> None:
    config.write_text(CONFIG + f'device: "{device}"\n')
    options = ["--device", option] if option else []
    result = run(config, "--model", tiny_checkpoint, "--json", *options)
    assert json.loads(result.stdout)["towers"][0]["attention"] == attention


def test_dtype_of_the_checkpoint(config: Path, tiny_checkpoint: Path) -> None:
    config.write_text(CONFIG.replace("bfloat16", "auto"))
    stored = json.loads((tiny_checkpoint / "config.json").read_text())["dtype"]
    result = run(config, "--model", tiny_checkpoint, "--json")
    assert json.loads(result.stdout)["dtype"] == stored != "bfloat16"


def test_nothing_configured(tmp_path: Path, tiny_checkpoint: Path) -> None:
    path = tmp_path / "off.yaml"
    path.write_text("max_batch_size: 8\n")
    result = run(path, "--model", tiny_checkpoint)
    assert result.exit_code == 0
    assert "nothing is captured or reserved" in result.stdout


def test_errors_are_lines(config: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    def fails(*args: object) -> str:
        result = run(*args)
        assert (result.exit_code, result.stdout) == (1, "")
        assert isinstance(result.exception, SystemExit)
        return result.stderr

    assert "names no model: give --model DIR" in fails(config)
    assert "does not exist" in fails(config, "--model", tmp_path / "none")
    said = fails(config, "--model", tiny_checkpoint, "--set", f"{ENTRY}.max_batch_size=0")
    assert f"error: --set: {ENTRY}.max_batch_size" in said
    audio = "multimodal_config.encoder_cuda_graph.audio.max_batch_size=4"
    said = fails(config, "--model", tiny_checkpoint, "--set", audio)
    assert "it has ['image']" in said
