# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The manifest sees every kind of change that a user could notice."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Annotated, Literal

import api_manifest
import click
import pytest
from pydantic import BaseModel, Field


class Inner(BaseModel):
    size: int = 1


class Config(BaseModel):
    required: str = Field(description="x", json_schema_extra={"status": "stable"})
    limited: Annotated[int, Field(ge=1, le=8)] | None = Field(
        None, json_schema_extra={"status": "beta"}
    )
    choice: Literal["eager", "raise"] = "eager"
    buckets: list[tuple[int, int]] = Field(default_factory=list)
    by_name: dict[str, Inner] = {}
    inner: Inner = Inner()


class Engine:
    def __init__(self, model: str, *, device: str = "auto", **kwargs: object) -> None: ...

    def generate(self, inputs: list[str], params: Config | None = None) -> str: ...

    @property
    def report(self) -> str: ...

    @classmethod
    def load(cls, path: Path = Path("here")) -> None: ...

    def _private(self) -> None: ...


def helper(x: int, f: object = print) -> None: ...


def module(**names: object) -> types.ModuleType:
    made = types.ModuleType("toy")
    vars(made).update(names)
    made.__all__ = list(names)
    return made


def test_classes_and_functions() -> None:
    toy = module(Engine=Engine, helper=helper, version="1", Alias=helper)
    out = api_manifest.describe_module(toy, toy.__all__, {})
    assert out == {
        "toy.Engine": {
            "__init__": {
                "model": {"type": "str"},
                "device": {"type": "str", "default": "auto", "kind": "keyword-only"},
                "kwargs": {"type": "object", "kind": "variadic keyword"},
            },
            "generate": {
                "inputs": {"type": "list[str]"},
                "params": {"type": "Config | None", "default": None},
            },
            "load": {"path": {"type": "Path", "default": "here"}},
            "report": "property",
        },
        "toy.helper": "see toy.Alias",
        "toy.Alias": {
            "f": {"type": "object", "default": "<built-in function print>"},
            "x": {"type": "int"},
        },
    }


def test_models() -> None:
    assert api_manifest.describe_model(Config) == {
        "required": {"type": "string", "required": True, "status": "stable"},
        "limited": {
            "type": "integer (maximum 8, minimum 1) | null",
            "default": None,
            "status": "beta",
        },
        "choice": {"type": '"eager" | "raise"', "default": "eager"},
        "buckets": {"type": "array[[integer, integer]]", "default": "list()"},
        "by_name": {"type": "object[Inner]", "default": {}},
        "inner": {"type": "Inner", "default": {"size": 1}},
    }


def test_commands() -> None:
    @click.group()
    @click.option("--verbose/--quiet", "-v", default=False)
    def cli(verbose: bool) -> None: ...

    @cli.command()
    @click.argument("file", nargs=-1)
    @click.option("--backend", type=click.Choice(["torch", "tensorrt_llm"]), default="torch")
    @click.option("--port", type=int, required=True)
    @click.option("--set", "overrides", multiple=True)
    @click.option("--dry_run", is_flag=True)
    def serve(file: str, backend: str, port: int, overrides: str, dry_run: bool) -> None: ...

    assert api_manifest.describe_command(cli, "ext") == {
        "ext": {"--verbose": {"type": "flag", "default": False, "also": ["--quiet", "-v"]}},
        "ext serve": {
            "--backend": {"type": "torch | tensorrt_llm", "default": "torch"},
            "--dry_run": {"type": "flag", "default": False},
            "--port": {"type": "integer", "required": True},
            "--set": {"type": "text", "default": None, "multiple": True},
            "FILE": {"type": "text", "default": None, "multiple": True},
        },
    }


def test_check_fails_when_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "manifest.json"
    monkeypatch.setattr(
        api_manifest, "build_manifest", lambda: {"models": {"A": {"x": {"default": 1}}}}
    )
    assert api_manifest.main(["--check", "--file", str(file)]) == 1  # missing
    assert api_manifest.main(["--file", str(file)]) == 0
    assert api_manifest.main(["--check", "--file", str(file)]) == 0
    file.write_text(file.read_text().replace('"default": 1', '"default": 2'))
    capsys.readouterr()
    assert api_manifest.main(["--check", "--file", str(file)]) == 1
    shown = capsys.readouterr()
    assert '-    "default": 2' in shown.out
    assert '+    "default": 1' in shown.out
    assert "make manifest" in shown.err


def test_defaults_hold_no_addresses() -> None:
    assert api_manifest.to_json([helper, {"k": Path("a") / "b"}]) == [
        "<function helper>",
        {"k": "a/b"},
    ]


def test_manifest_of_the_package() -> None:
    manifest = api_manifest.build_manifest()
    assert json.loads(api_manifest.dump(manifest)) == manifest
    assert "0x" not in api_manifest.dump(manifest)
    assert "text" in manifest["api"]["tensorrt_llm_ext.engine.results.CompletionOutput"]["__init__"]
    assert "model" in manifest["api"]["tensorrt_llm_ext.LLM"]["__init__"]
    models = manifest["models"]
    fields = models["tensorrt_llm_ext.llmapi.mm_config.MultimodalEncoderCudaGraphConfig"]
    assert fields["warmup_steps"]["default"] == 2
    assert fields["warmup_steps"]["status"] == "prototype"
    assert any(name.endswith(".LlmArgs") for name in models)
    assert "--check" in manifest["cli"]["trtllm-ext schema"]
