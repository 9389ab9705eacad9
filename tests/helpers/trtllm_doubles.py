# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Doubles of TensorRT-LLM for tests: built once a variant, driven in processes of their own."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).resolve().parents[1] / "integration" / "trtllm_double"


def _load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"trtllm_double_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


builder = _load("build")
Edit = builder.Edit


@dataclass
class Run:
    """What one start of a model led to.

    Attributes:
        events: In order, those of worker processes among them.
        tokens: The answer's.
        embeddings: Rows that the encoder gave to the language model.
        error: Of whatever stopped it, with the type's name; "" where nothing did.
        reports: Of tensorrt_llm_ext's LLM: rank -> towers.
    """

    events: list[dict[str, Any]]
    tokens: list[int]
    embeddings: torch.Tensor | None
    error: str
    reports: dict[str, list[dict[str, Any]]]

    def __post_init__(self) -> None:
        self.names = [event["event"] for event in self.events]

    def of(self, name: str) -> list[dict[str, Any]]:
        """Events of a name."""
        return [event for event in self.events if event["event"] == name]

    def one(self, name: str) -> dict[str, Any]:
        """The only event of a name."""
        (event,) = self.of(name)
        return event

    def in_order(self, *names: str) -> bool:
        """Whether events come one after the other, others in between."""
        rest = iter(self.names)
        return all(name in rest for name in names)


@dataclass
class Outcome:
    """What a process did."""

    runs: dict[str, Run]
    values: dict[str, str]
    output: str


def drive(
    double: Path,
    folder: Path,
    runs: Mapping[str, Mapping[str, Any]] | None = None,
    values: Mapping[str, str] | None = None,
    imports: Iterable[str] = (),
    spy: bool = False,
    **environment: str,
) -> Outcome:
    """Starts models in a process that has the double.

    Args:
        double: Folder of ``build_double``.
        folder: For results, made.
        runs: See ``trtllm_double/drive.py``.
        values: Expressions, evaluated after the runs.
        imports: Modules to import first.
        spy: Record what our towers do.
        environment: More variables.
    """
    folder.mkdir(parents=True)
    spec = {"runs": runs or {}, "eval": values or {}, "import": list(imports), "spy": spy}
    done = subprocess.run(
        [sys.executable, str(FOLDER / "drive.py"), json.dumps(spec), str(folder)],
        env=builder.double_environment(double, **environment),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=540,  # a busy machine
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    result = json.loads((folder / "result.json").read_text("utf-8"))
    return Outcome(
        {name: _run(one) for name, one in result["runs"].items()}, result["eval"], output
    )


def _run(one: Mapping[str, Any]) -> Run:
    embeddings = torch.tensor(one["embeddings"]) if "embeddings" in one else None
    return Run(
        one["events"],
        one.get("tokens", []),
        embeddings,
        one.get("error", ""),
        one.get("reports", {}),
    )
