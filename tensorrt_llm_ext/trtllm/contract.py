# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Whether the installed TensorRT-LLM has the names that we were written against, as we read them.

``contract.json`` holds names, parameters and defaults of upstream's public source at named commits
(``scripts/trtllm_contract.py`` writes it). The check imports and inspects; it calls nothing. Files
that were there whole have a hash too; of the others the declarations were read by eye.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from .probe import Missing, find

CONTRACT = Path(__file__).with_name("contract.json")

Status = Literal["same", "changed", "missing"]
Parameters = tuple[tuple[str, str, str | None], ...]
"""(name, kind, default in source form) each; the default is None where there is none."""


@dataclass(frozen=True)
class Finding:
    """What became of one name.

    Attributes:
        name: ``module:Class.method``.
        use: What the binding needs it for.
        status: ``same`` as at one of the commits read, ``changed``, or ``missing``.
        commits: Snapshots that it equals.
        detail: What differs, or what is not there.
    """

    name: str
    use: str
    status: Status
    commits: tuple[str, ...] = ()
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.status}" + (f" ({self.detail})" if self.detail else "")


def load_contract(path: Path = CONTRACT) -> dict[str, Any]:
    """The contract as written.

    Raises:
        ValueError: The file has another format.
    """
    contract: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if contract.get("format") != 1:
        raise ValueError(f"{path}: format {contract.get('format')!r}, expected 1")
    return contract


def check_contract(
    contract: Mapping[str, Any] | None = None, snapshot: str | None = None
) -> list[Finding]:
    """Compares what is installed with what was read.

    Args:
        contract: Of `load_contract`; the packaged one by default.
        snapshot: Compare with this one only, and only names that it has.

    Returns:
        One finding a name, in the contract's order.
    """
    contract = load_contract() if contract is None else contract
    return [
        _check(entry, seen)
        for entry in contract["names"]
        if (seen := _wanted(entry["seen"], snapshot))
    ]


@dataclass(frozen=True)
class FileFinding:
    """What became of a file that was read.

    Attributes:
        path: Below the folder that holds the package.
        status: ``equal`` to a file that was hashed, ``different``, ``not recorded`` where none was
            hashed (its declarations were read by eye), or ``not there``.
        commits: Snapshots that were compared with; those that it equals, where it does.
    """

    path: str
    status: Literal["equal", "different", "not recorded", "not there"]
    commits: tuple[str, ...] = ()

    def __str__(self) -> str:
        at = ", ".join(self.commits)
        told = {
            "equal": f"hash equal to that of {at}",
            "different": f"hash different from that of {at}",
            "not recorded": f"hash not recorded (of {at}, declarations were read by eye)",
            "not there": f"not in this version (was in {at})",
        }
        return told[self.status]


def check_files(contract: Mapping[str, Any], root: Path) -> list[FileFinding]:
    """Compares files with those that were read.

    Args:
        contract: Of `load_contract`.
        root: The folder that holds the package ``tensorrt_llm``.

    Returns:
        One finding a path, sorted.
    """
    seen: dict[str, dict[str, str | None]] = {}
    for commit, files in contract["snapshots"].items():
        for path, source in files.items():
            seen.setdefault(path, {})[commit] = source["sha256"]
    return [_check_file(path, root / path, seen[path]) for path in sorted(seen)]


def _check_file(path: str, file: Path, hashes: Mapping[str, str | None]) -> FileFinding:
    if not file.is_file():
        return FileFinding(path, "not there", tuple(hashes))
    recorded = {commit: digest for commit, digest in hashes.items() if digest is not None}
    if not recorded:
        return FileFinding(path, "not recorded", tuple(hashes))
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    equal = tuple(commit for commit, digest in recorded.items() if digest == found)
    return FileFinding(path, "equal" if equal else "different", equal or tuple(recorded))


def problems(findings: Iterable[Finding]) -> tuple[str, ...]:
    """What is not as read, one line each."""
    return tuple(str(finding) for finding in findings if finding.status != "same")


def _wanted(seen: Mapping[str, Any], snapshot: str | None) -> Mapping[str, Any]:
    if snapshot is None:
        return seen
    return {snapshot: seen[snapshot]} if snapshot in seen else {}


def _check(entry: Mapping[str, Any], seen: Mapping[str, Any]) -> Finding:
    modules: list[str] = entry["modules"]
    name = f"{modules[0]}:{entry['name']}"
    found, reason = _resolve(modules, entry["name"])
    if reason:
        return Finding(name, entry["use"], "missing", detail=reason)
    ours = {commit: _parameters(value["parameters"]) for commit, value in seen.items()}
    theirs = _inspect(found, entry["kind"])
    equal = tuple(c for c, parameters in ours.items() if theirs in (None, parameters))
    if theirs is None or equal:
        return Finding(name, entry["use"], "same", equal)
    commit, expected = next(iter(ours.items()))
    detail = f"{_render(theirs)} instead of {_render(expected)} at {commit}"
    return Finding(name, entry["use"], "changed", detail=detail)


def _resolve(modules: list[str], path: str) -> tuple[Any, str]:
    """The value, or why there is none."""
    reasons = []
    for module in modules:
        value = find(module)
        if isinstance(value, Missing):
            reasons.append(value.reason)
            continue
        for attribute in path.split("."):
            # Functions of a class as they are written: no binding, and no look at its bases.
            fields = getattr(value, "model_fields", {})
            if isinstance(value, ModuleType) or not isinstance(value, type):
                value = getattr(value, attribute, _NOTHING)
            elif attribute in value.__dict__:
                value = value.__dict__[attribute]
            elif attribute in fields:
                value = fields[attribute]
            else:
                value = _NOTHING
            if value is _NOTHING:
                reasons.append(f"{module} has no {path}")
                break
        else:
            return value, ""
    return None, "; ".join(reasons)


def _parameters(raw: list[list[str | None]] | None) -> Parameters | None:
    if raw is None:
        return None
    return tuple((str(name), str(kind), default) for name, kind, default in raw)


def _inspect(value: Any, kind: str) -> Parameters | None:
    """Parameters of a function, fields of a class; None where only the name matters."""
    if kind == "fields":
        return _fields(value)
    if kind != "function":
        return None
    function: Any = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
    function = function.fget if isinstance(function, property) else function
    try:
        signature = inspect.signature(inspect.unwrap(function))
    except (TypeError, ValueError):
        return None
    return tuple(
        (
            parameter.name,
            parameter.kind.name.lower(),
            None if parameter.default is parameter.empty else source_of(parameter.default),
        )
        for parameter in signature.parameters.values()
    )


def _fields(cls: Any) -> Parameters:
    """Fields of a pydantic model, dataclass or named tuple, those of the class itself only."""
    names = [name for name in getattr(cls, "__annotations__", {}) if not name.startswith("_")]
    models: Mapping[str, Any] = getattr(cls, "model_fields", {})
    out = []
    for name in names:
        if name in models:
            field = models[name]
            if field.default_factory is not None:
                default: str | None = "..."
            else:
                default = None if field.is_required() else source_of(field.default)
        else:
            defaults: Mapping[str, Any] = getattr(cls, "_field_defaults", cls.__dict__)
            default = source_of(defaults[name]) if name in defaults else None
        out.append((name, "field", default))
    return tuple(out)


def source_of(value: Any) -> str:
    """A default in source form; ``...`` for what has no literal, which equals any such default."""
    if value is None or isinstance(value, (bool, int, float, str)):
        # Members of string enumerations are strings too, and have no literal.
        return repr(value) if type(value) in (type(None), bool, int, float, str) else "..."
    if isinstance(value, (tuple, list)) and not value:
        return repr(value)
    return "..."


def _render(parameters: Parameters | None) -> str:
    marks = {"var_positional": "*", "var_keyword": "**"}
    parts, star = [], False
    for name, kind, default in parameters or ():
        if kind == "keyword_only" and not star:
            star = True
            parts.append("*")
        star = star or kind == "var_positional"
        text = marks.get(kind, "") + name
        parts.append(text if default is None else f"{text}={default}")
    return f"({', '.join(parts)})"


class _Nothing:
    pass


_NOTHING = _Nothing()
