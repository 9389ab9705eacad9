# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""``trtllm-ext doctor``: what was found, what was registered, what was refused and why."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .arrival import DISABLE, disabled, installed, module_dir, register_now
from .attention import OURS
from .attention import VARIABLE as ATTENTION_VARIABLE
from .config import VARIABLE, entry_fields
from .contract import check_contract, check_files, load_contract, problems
from .probe import find


@dataclass(frozen=True)
class Diagnosis:
    """The state of the binding.

    Attributes:
        version: Of TensorRT-LLM; None where it is not installed.
        disabled: The environment switches the binding off.
        active: Upstream builds at least one model with our towers.
        hook: Where capture runs, and why not at the first choice.
        models: Architecture -> what became of it.
        carried: Keys of an ``encoder_cuda_graph`` entry that the version's own models take.
        contract: Names whose signature is not what we were written against.
        files: Path -> whether it is the file that was read.
        settings: Our variables that are set.
        module_dir: For ``--custom_module_dirs``.
        refusal: Why nothing is registered; "" where something is.
    """

    version: str | None
    disabled: bool
    active: bool = False
    hook: str = ""
    models: dict[str, str] = field(default_factory=dict)
    carried: tuple[str, ...] = ()
    contract: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    module_dir: str = ""
    refusal: str = ""

    @property
    def healthy(self) -> bool:
        """Whether the binding does what it can, or is not asked to."""
        return self.version is None or self.disabled or self.active

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "healthy": self.healthy}

    def render(self) -> str:
        """For a terminal."""
        lines = [f"TensorRT-LLM: {self.version or 'not installed'}"]
        if self.disabled:
            lines.append(f"Switched off by {DISABLE}")
        if self.refusal:
            lines.append(f"Nothing registered: {self.refusal}")
        lines += [f"  {name}: {state}" for name, state in self.models.items()]
        if self.hook:
            lines.append(f"Capture: {self.hook}")
        if self.carried:
            lines.append(f"Keys that trtllm-serve takes by itself: {', '.join(self.carried)}")
        lines += [f"Not as expected: {problem}" for problem in self.contract]
        if self.files:
            lines.append("Files, against those that were read when the binding was written:")
            lines += [f"  {path}: {state}" for path, state in self.files.items()]
            lines.append(
                "  (another hash is another version of the file, no fault by itself: what counts "
                "are names and signatures, of which every difference stands above)"
            )
        lines += [f"{name}={value}" for name, value in self.settings.items()]
        lines.append(f"--custom_module_dirs {self.module_dir}")
        return "\n".join(lines)


def diagnose() -> Diagnosis:
    """Looks; imports TensorRT-LLM and registers where it is there."""
    variables = (DISABLE, VARIABLE, ATTENTION_VARIABLE)
    settings = {name: os.environ[name] for name in variables if name in os.environ}
    settings.setdefault(ATTENTION_VARIABLE, OURS)
    common: dict[str, Any] = {"settings": settings, "module_dir": str(module_dir())}
    if not installed():
        return Diagnosis(None, disabled(), refusal="TensorRT-LLM is not installed", **common)
    if disabled():
        return Diagnosis("installed, not imported", True, **common)
    registration, contract = register_now(), load_contract()
    hook = registration.hook
    return Diagnosis(
        version=str(find("tensorrt_llm:__version__") or "unknown"),
        disabled=False,
        active=registration.active,
        hook="" if hook is None else "; ".join((f"{hook.kind}: {hook.name}", *hook.notes)),
        models={
            finding.architecture: ": ".join(filter(None, (finding.status, finding.reason)))
            for finding in registration.findings
        },
        carried=entry_fields(),
        contract=problems(check_contract(contract)),
        files=_files(contract),
        refusal=registration.refusal,
        **common,
    )


def _files(contract: Mapping[str, Any]) -> dict[str, str]:
    place = find("tensorrt_llm:__file__")
    if not isinstance(place, str):
        return {}
    found = check_files(contract, Path(place).resolve().parents[1])
    return {finding.path: str(finding) for finding in found}
