# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Check that public docstrings state shape and dtype of every tensor they take or return.

    python scripts/check_tensor_docs.py [FILE_OR_FOLDER ...]     # default: tensorrt_llm_ext

Looked at: public functions, methods and constructors, and the fields of public dataclasses, whose
annotation names ``Tensor``. A shape is a bracket such as ``[tokens, hidden]``, or the words
"scalar" or "same shape"; a dtype is a name such as ``float32``, or the word "dtype" ("any dtype").
An ``@override`` without a docstring inherits its base's.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef

_TENSOR = re.compile(r"\b(Tensor|(Long|Int|Float|Half|BFloat16|Bool)Tensor)\b")
_SHAPE = re.compile(r"\[\s*[\w.*][^\[\]]*\]|\[\s*\]|\bscalar\b|\bsame shape\b", re.IGNORECASE)
_DTYPE = re.compile(
    r"\b(dtype|b?float(8|16|32|64)?|[bf]p(16|32|64)|bf16|half|u?int(8|16|32|64)?|integers?|long"
    r"|bool(ean)?)\b",
    re.IGNORECASE,
)
_SECTION = re.compile(
    r"^(Args|Arguments|Attributes|Returns|Yields|Raises|Example|Examples|Note|Notes):$"
)
_ENTRY = re.compile(r"^\*{0,2}(\w+)\s*(\([^)]*\))?:")


class Problem(NamedTuple):
    """One undocumented tensor."""

    path: Path
    line: int
    name: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.name}: {self.message}"


def check_source(source: str, path: Path) -> list[Problem]:
    """Check one module.

    Args:
        source: Its text.
        path: Where it came from, for the messages.

    Returns:
        The problems, in source order.
    """
    problems: list[Problem] = []
    for name, node in _public(ast.parse(source).body, ""):
        if isinstance(node, ast.ClassDef):
            problems += _check_fields(name, node, path)
        else:
            problems += _check_function(name, node, path)
    return problems


def _public(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.ClassDef | FunctionNode]]:
    """Public definitions, methods with their constructor included, in source order."""
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield prefix + node.name, node
            for name, method in _public(node.body, f"{prefix}{node.name}."):
                if name.endswith(".__init__") and isinstance(method, FunctionNode):
                    _borrow_docstring(method, ast.get_docstring(node))
                yield name, method
        elif isinstance(node, FunctionNode) and (
            not node.name.startswith("_") or (prefix and node.name == "__init__")
        ):
            yield prefix + node.name, node


def _borrow_docstring(init: FunctionNode, class_doc: str | None) -> None:
    """A constructor's arguments may be described in the class docstring instead."""
    if class_doc and ast.get_docstring(init) is None:
        init.body.insert(0, ast.Expr(ast.Constant(class_doc)))


def _check_function(name: str, node: FunctionNode, path: Path) -> Iterator[Problem]:
    decorators = {ast.unparse(d).split(".")[-1] for d in node.decorator_list}
    arguments = [
        a
        for a in (
            *node.args.posonlyargs,
            *node.args.args,
            *node.args.kwonlyargs,
            *filter(None, (node.args.vararg, node.args.kwarg)),
        )
        if _is_tensor(a.annotation)
    ]
    returns = _is_tensor(node.returns)
    doc = ast.get_docstring(node)
    if "overload" in decorators or not (arguments or returns):
        return
    if doc is None:
        if "override" not in decorators:
            yield Problem(path, node.lineno, name, "takes or returns tensors, has no docstring")
        return
    sections = parse_sections(doc)
    for argument in arguments:
        text = sections.get("Args", {}).get(argument.arg)
        yield from _check_text(path, argument.lineno, name, f"argument {argument.arg!r}", text)
    if returns:
        is_property = bool(decorators & {"property", "cached_property"})
        found = sections.get("Returns") or sections.get("Yields")
        text = doc if is_property else " ".join(found.values()) if found else None
        yield from _check_text(path, node.lineno, name, "the returned value", text)


def _check_fields(name: str, node: ast.ClassDef, path: Path) -> Iterator[Problem]:
    is_data = any("dataclass" in ast.unparse(d) for d in node.decorator_list) or any(
        ast.unparse(base).split(".")[-1] in ("NamedTuple", "TypedDict") for base in node.bases
    )
    if not is_data:
        return
    sections = parse_sections(ast.get_docstring(node) or "")
    described = {**sections.get("Args", {}), **sections.get("Attributes", {})}
    for field in node.body:
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and not field.target.id.startswith("_")
            and _is_tensor(field.annotation)
        ):
            text = described.get(field.target.id)
            yield from _check_text(path, field.lineno, name, f"field {field.target.id!r}", text)


def _check_text(path: Path, line: int, name: str, what: str, text: str | None) -> Iterator[Problem]:
    if text is None:
        yield Problem(path, line, name, f"{what} is a tensor and is not described")
        return
    missing = [
        kind for kind, pattern in (("shape", _SHAPE), ("dtype", _DTYPE)) if not pattern.search(text)
    ]
    if missing:
        yield Problem(path, line, name, f"{what} is a tensor; state its {' and '.join(missing)}")


def _is_tensor(annotation: ast.expr | None) -> bool:
    if annotation is None:
        return False
    text = ast.unparse(annotation)
    # A function that takes or returns tensors is not a tensor.
    return bool(_TENSOR.search(text)) and "Callable" not in text


def parse_sections(doc: str) -> dict[str, dict[str, str]]:
    """Split a Google docstring into its sections.

    Args:
        doc: Docstring, indentation removed.

    Returns:
        Section to entries (``{"Args": {"x": "..."}}``); text that belongs to no entry has key "".
    """
    sections: dict[str, dict[str, str]] = {}
    section, indent, entry = "", 0, ""
    for line in doc.splitlines():
        stripped = line.strip()
        header = _SECTION.match(stripped)
        if header and not line.startswith(" "):
            section = {"Arguments": "Args"}.get(header[1], header[1])
            sections.setdefault(section, {})
            indent, entry = 0, ""
        elif not stripped or not section:
            continue
        elif not line.startswith(" "):
            section = ""  # plain text ends the section
        else:
            depth = len(line) - len(line.lstrip())
            indent = indent or depth
            match = _ENTRY.match(stripped) if depth == indent else None
            if match and section in ("Args", "Attributes"):
                entry = match[1]
            found = sections[section]
            found[entry] = f"{found.get(entry, '')} {stripped}".strip()
    return sections


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    targets = [Path(a) for a in arguments] or [ROOT / "tensorrt_llm_ext"]
    files = [f for t in targets for f in (sorted(t.rglob("*.py")) if t.is_dir() else [t])]
    problems = [
        problem
        for file in files
        for problem in check_source(file.read_text(encoding="utf-8"), Path(os.path.relpath(file)))
    ]
    for problem in problems:
        print(problem)
    print(f"{len(files)} files, {len(problems)} tensors without shape or dtype")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
