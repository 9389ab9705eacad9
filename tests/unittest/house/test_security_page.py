# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Every test that SECURITY.md points at exists, and every promise points at one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(tests/[^`]+\.py)::(\w+)`", PAGE)


def functions_of(path: Path) -> set[str]:
    """Names of the functions of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_test_named_exists() -> None:
    assert len(NAMED) > 30
    missing = [
        f"{file}::{test}"
        for file, test in NAMED
        if not (ROOT / file).is_file() or test not in functions_of(ROOT / file)
    ]
    assert missing == []


def test_no_test_is_named_in_another_way() -> None:
    assert PAGE.count("::") == len(NAMED)


def test_every_promise_names_a_test() -> None:
    for section in PAGE.split("\n## ")[2:]:
        for promise in re.split(r"\n(?:- |\n)", section)[1:]:
            if promise.startswith(("Not promised", "All media come")):
                continue
            assert not promise.strip() or "::" in promise, promise


def test_every_case_of_the_door_is_tested() -> None:
    names = {n for path in (ROOT / "tests/unittest/media").glob("*.py") for n in functions_of(path)}
    tested = {int(m[1]) for name in names if (m := re.match(r"test_case_(\d+)_", name))}
    assert tested == {*range(33, 40), 46, 47, 48, 50, 53}
