# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Writes ``tensorrt_llm_ext/trtllm/contract.json`` from files of TensorRT-LLM's source.

    python scripts/trtllm_contract.py ROOT [ROOT ...]           # rewrite it
    python scripts/trtllm_contract.py --check ROOT [ROOT ...]   # exit 1 when it is stale

A ROOT is a checkout of upstream without changes, whose commit git knows, or a folder with some of
its files under their paths, named by its commit (``--commit ROOT=COMMIT`` names either otherwise).
Every file that is there whole gets its hash. Files are parsed, never run, and nothing of
them but names, parameters and literal defaults is written. A ROOT may hold a ``SOURCES.json``:
path -> {"commit": ..., "extent": "declarations", "chars": ...}. It says which commit a file was
last read at, and that what lies there is not the whole file but its declarations, copied from a
reader that shows a file and does not hand it over; such a file has no hash.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trtllm_contract_names import NAMES, Name

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "tensorrt_llm_ext" / "trtllm" / "contract.json"
REPOSITORY = "NVIDIA/TensorRT-LLM"

Json = dict[str, Any]


class Snapshot(NamedTuple):
    """A folder with (some) files of one state of upstream."""

    commit: str
    root: Path
    sources: dict[str, Json]

    @classmethod
    def read(cls, root: Path, commit: str | None = None) -> Snapshot:
        """Reads what ``root`` says about its files."""
        listing = root / "SOURCES.json"
        sources = json.loads(listing.read_text("utf-8")) if listing.exists() else {}
        return cls(commit or _head(root) or root.name, root, sources)


def _head(root: Path) -> str | None:
    """The commit that is checked out, None outside of a checkout's root."""
    if not (root / ".git").exists():
        return None
    git = ["git", "-C", str(root)]
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD"], check=False).returncode
    if changed:
        raise ValueError(f"{root}: files differ from HEAD; stash the changes")
    head = subprocess.run(
        [*git, "rev-parse", "--short=12", "HEAD"], check=True, capture_output=True, text=True
    )
    return head.stdout.strip()


def build_contract(snapshots: Sequence[Snapshot], names: Sequence[Name] = NAMES) -> Json:
    """Makes the contract.

    Args:
        snapshots: What was read, the newest first.
        names: What to look for.

    Returns:
        The contract, ready for JSON.

    Raises:
        ValueError: A name is in none of the snapshots.
    """
    trees: dict[tuple[str, str], ast.Module] = {}
    used: dict[str, Json] = {snapshot.commit: {} for snapshot in snapshots}
    out = []
    for name in names:
        seen: Json = {}
        for snapshot in snapshots:
            found = _find(snapshot, name, trees, used[snapshot.commit])
            if found is not None:
                seen[snapshot.commit] = found
        if not seen:
            raise ValueError(f"{name.modules[0]}:{name.path} is in none of the snapshots")
        out.append(
            {
                "name": name.path,
                "modules": [f"tensorrt_llm.{module}" for module in name.modules],
                "kind": name.kind,
                "use": name.use,
                "seen": seen,
            }
        )
    return {
        "format": 1,
        "repository": REPOSITORY,
        "snapshots": {commit: dict(sorted(files.items())) for commit, files in used.items()},
        "names": out,
    }


def _find(
    snapshot: Snapshot, name: Name, trees: dict[tuple[str, str], ast.Module], used: Json
) -> Json | None:
    for module in name.modules:
        path = f"tensorrt_llm/{module.replace('.', '/')}.py"
        file = snapshot.root / path
        if not file.exists():
            continue
        key = (snapshot.commit, path)
        if key not in trees:
            trees[key] = ast.parse(file.read_text("utf-8"))
        node = _lookup(trees[key].body, name.path.split("."))
        if node is not None:
            used[path] = _source(snapshot, path, file)
            return {"parameters": _describe(node, name.kind)}
    return None


def _source(snapshot: Snapshot, path: str, file: Path) -> Json:
    said = snapshot.sources.get(path, {})
    source: Json = {"commit": said.get("commit", snapshot.commit)}
    if said.get("extent", "whole") == "whole":
        source["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    else:
        source |= {"sha256": None, "extent": said["extent"], "chars": said.get("chars")}
    if "note" in said:
        source["note"] = said["note"]
    return source


def _lookup(body: Sequence[ast.stmt], path: Sequence[str]) -> ast.stmt | None:
    for node in body:
        if _declares(node, path[0]):
            if len(path) == 1:
                return node
            if isinstance(node, ast.ClassDef):
                return _lookup(node.body, path[1:])
    return None


def _declares(node: ast.stmt, name: str) -> bool:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return node.name == name
    if isinstance(node, ast.AnnAssign):
        return isinstance(node.target, ast.Name) and node.target.id == name
    if isinstance(node, ast.Assign):
        return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
    return False


def _describe(node: ast.stmt, kind: str) -> list[list[str | None]] | None:
    if kind == "function" and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return list(_parameters(node.args))
    if kind == "fields" and isinstance(node, ast.ClassDef):
        return [
            [field.target.id, "field", _field_default(field.value)]
            for field in node.body
            if isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and not field.target.id.startswith("_")
        ]
    return None


def _parameters(args: ast.arguments) -> Iterator[list[str | None]]:
    positional = [*args.posonlyargs, *args.args]
    missing = len(positional) - len(args.defaults)
    for i, arg in enumerate(positional):
        kind = "positional_only" if i < len(args.posonlyargs) else "positional_or_keyword"
        yield [arg.arg, kind, None if i < missing else literal(args.defaults[i - missing])]
    if args.vararg:
        yield [args.vararg.arg, "var_positional", None]
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        yield [arg.arg, "keyword_only", None if default is None else literal(default)]
    if args.kwarg:
        yield [args.kwarg.arg, "var_keyword", None]


def _field_default(value: ast.expr | None) -> str | None:
    """Default of a field: given, inside a call of ``Field``, or none."""
    if value is None:
        return None
    if isinstance(value, ast.Call):
        given = {keyword.arg: keyword.value for keyword in value.keywords}
        if "default" in given:
            return literal(given["default"])
        if value.args:
            return literal(value.args[0])
        return "..." if "default_factory" in given else None
    return literal(value)


def literal(node: ast.expr) -> str:
    """A default in source form; ``...`` for what is not a plain literal."""
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return "..."
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    return repr(value) if value in ((), []) else "..."


def render(contract: Json) -> str:
    """The file's text: one name a line, so that a change shows as such."""
    lines = ["{", f'"format": {contract["format"]},']
    lines.append(f'"repository": {json.dumps(contract["repository"])},')
    lines.append('"snapshots": ' + json.dumps(contract["snapshots"], indent=1) + ",")
    entries = [json.dumps(entry) for entry in contract["names"]]
    lines += ['"names": [', ",\n".join(entries), "]", "}"]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Write or check the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("roots", nargs="+", type=Path, help="newest first")
    parser.add_argument("--commit", action="append", default=[], metavar="ROOT=COMMIT")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--output", type=Path, default=TARGET)
    args = parser.parse_args(argv)
    named = dict(pair.rsplit("=", 1) for pair in args.commit)
    snapshots = [Snapshot.read(root, named.get(str(root))) for root in args.roots]
    text = render(build_contract(snapshots))
    if not args.check:
        args.output.write_text(text, "utf-8")
        print(f"wrote {args.output}")
        return 0
    if args.output.read_text("utf-8") == text:
        return 0
    print(f"{args.output} is stale: run this script without --check", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
