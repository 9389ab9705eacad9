# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The contract of upstream's names: written from made-up sources, checked on made-up modules."""

from __future__ import annotations

import enum
import hashlib
import json
import re
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel, Field
from trtllm_contract import Snapshot, build_contract, literal, main, render
from trtllm_contract_names import NAMES, Name

from tensorrt_llm_ext.trtllm.contract import (
    check_contract,
    check_files,
    load_contract,
    problems,
    source_of,
)

SOURCE = '''
"""Words that must not be copied."""
SECRET = "text of upstream"
REGISTRY = object()

def plain(a, b=1, *rest, c, d=None, e="x", f=Thing.VALUE, **more):
    """Words that must not be copied."""
    return SECRET

class Base:
    def inherited(self): ...

class Config(Base):
    count: int = Field(default=3, description="words")
    made: list = Field(default_factory=list)
    needed: int = Field(min_length=1)
    short: bool = True
    _private: int = 0

    @classmethod
    def create(cls, /, one, *, two=2): ...
'''


def snapshot(root: Path, folder: str, text: str, **sources: Any) -> Snapshot:
    file = root / folder / "tensorrt_llm" / "a" / "b.py"
    file.parent.mkdir(parents=True)
    file.write_text(text, "utf-8")
    if sources:
        listing = {"tensorrt_llm/a/b.py": sources}
        (root / folder / "SOURCES.json").write_text(json.dumps(listing), "utf-8")
    return Snapshot.read(root / folder)


def name(path: str, kind: str = "function") -> Name:
    return Name("tests", ("a.b",), path, kind)


def seen(contract: dict[str, Any], path: str, commit: str) -> Any:
    (entry,) = (e for e in contract["names"] if e["name"] == path)
    return entry["seen"][commit]["parameters"]


def test_parameters_kinds_and_literal_defaults(tmp_path: Path) -> None:
    names = [name("plain"), name("Config.create"), name("Config", "fields")]
    contract = build_contract([snapshot(tmp_path, "c1", SOURCE)], names)
    assert seen(contract, "plain", "c1") == [
        ["a", "positional_or_keyword", None],
        ["b", "positional_or_keyword", "1"],
        ["rest", "var_positional", None],
        ["c", "keyword_only", None],
        ["d", "keyword_only", "None"],
        ["e", "keyword_only", "'x'"],
        ["f", "keyword_only", "..."],
        ["more", "var_keyword", None],
    ]
    assert seen(contract, "Config.create", "c1") == [
        ["cls", "positional_only", None],
        ["one", "positional_or_keyword", None],
        ["two", "keyword_only", "2"],
    ]
    assert seen(contract, "Config", "c1") == [
        ["count", "field", "3"],
        ["made", "field", "..."],
        ["needed", "field", None],
        ["short", "field", "True"],
    ]


def test_nothing_else_of_the_source_is_written(tmp_path: Path) -> None:
    contract = build_contract([snapshot(tmp_path, "c1", SOURCE)], [name("plain")])
    assert "Words" not in render(contract)
    assert "upstream" not in render(contract)


def test_whole_files_have_a_hash_and_declarations_have_none(tmp_path: Path) -> None:
    whole = snapshot(tmp_path, "c1", SOURCE)
    part = snapshot(tmp_path, "c2", SOURCE, commit="long", extent="declarations", chars=12)
    contract = build_contract([whole, part], [name("plain")])
    path = "tensorrt_llm/a/b.py"
    digest = hashlib.sha256(SOURCE.encode()).hexdigest()
    assert contract["snapshots"]["c1"][path] == {"commit": "c1", "sha256": digest}
    assert contract["snapshots"]["c2"][path] == {
        "commit": "long",
        "sha256": None,
        "extent": "declarations",
        "chars": 12,
    }


def test_a_checkout_fills_in_hashes_and_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_contract, "__defaults__", ((name("plain"),),))
    root, output = snapshot(tmp_path, "TensorRT-LLM", SOURCE).root, tmp_path / "contract.json"

    def git(*words: str) -> str:
        who = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        command = ["git", "-C", str(root), *who, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    git("add", "-A")
    git("commit", "-q", "-m", "all")
    assert main([str(root), "--output", str(output)]) == 0
    commit, path = git("rev-parse", "HEAD")[:12], "tensorrt_llm/a/b.py"
    source = {"commit": commit, "sha256": hashlib.sha256(SOURCE.encode()).hexdigest()}
    assert load_contract(output)["snapshots"] == {commit: {path: source}}
    (root / path).write_text(SOURCE + "\n# mine\n", "utf-8")
    with pytest.raises(ValueError, match="files differ from HEAD"):
        main([str(root), "--output", str(output)])


def test_a_name_that_no_snapshot_has_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.b:gone is in none of the snapshots"):
        build_contract([snapshot(tmp_path, "c1", SOURCE)], [name("gone")])


def test_the_newest_place_of_a_module_wins_and_the_older_is_found(tmp_path: Path) -> None:
    moved = Name("tests", ("new.place", "a.b"), "plain")
    contract = build_contract([snapshot(tmp_path, "c1", SOURCE)], [moved])
    assert contract["names"][0]["modules"] == ["tensorrt_llm.new.place", "tensorrt_llm.a.b"]


def test_check_finds_a_stale_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtllm_contract.NAMES", (name("plain"),))
    monkeypatch.setattr(build_contract, "__defaults__", ((name("plain"),),))
    root = snapshot(tmp_path, "c1", SOURCE).root
    output = tmp_path / "contract.json"
    assert main([str(root), "--output", str(output)]) == 0
    assert main(["--check", str(root), "--output", str(output)]) == 0
    output.write_text(output.read_text("utf-8").replace("plain", "other"), "utf-8")
    assert main(["--check", str(root), "--output", str(output)]) == 1


def test_the_committed_contract_has_every_name_and_says_where_it_was_read() -> None:
    contract = load_contract()
    assert [(e["name"], e["kind"]) for e in contract["names"]] == [(n.path, n.kind) for n in NAMES]
    assert len(contract["snapshots"]) == 2
    for entry in contract["names"]:
        assert set(entry["seen"]) <= set(contract["snapshots"])
    for files in contract["snapshots"].values():
        assert all(f["sha256"] or f["extent"] == "declarations" for f in files.values())


def test_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "contract.json"
    path.write_text('{"format": 2}', "utf-8")
    with pytest.raises(ValueError, match="format 2, expected 1"):
        load_contract(path)


def test_the_page_says_which_files_have_a_hash() -> None:
    page = (Path(__file__).parents[3] / "docs" / "tensorrt-llm.md").read_text("utf-8")
    section = page[page.index("## What was read") : page.index("## In and out")]
    hashed, by_eye = set(), set()
    for files in load_contract()["snapshots"].values():
        for path, source in files.items():
            (hashed if source["sha256"] else by_eye).add(path)
    for kind, paths in (("hash of the whole file", hashed), ("declarations", by_eye)):
        (row,) = (line for line in section.splitlines() if line.startswith(f"| {kind}"))
        named = re.findall(r"`([\w./]+\.py)`", row)
        assert [f"tensorrt_llm/{path}" for path in named] == sorted(paths), kind


# -- the check -----------------------------------------------------------------------------


def plain(a, b=1, *rest, c, d=None, e="x", f=enum.Enum, **more):
    pass


class Base:
    def inherited(self) -> None: ...


class Config(BaseModel):
    count: int = Field(default=3)
    made: list[int] = Field(default_factory=list)
    needed: int
    short: bool = True

    @classmethod
    def create(cls, one, *, two=2):
        pass


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("tensorrt_llm.a.b")
    module.plain, module.Config, module.REGISTRY = plain, Config, object()  # type: ignore[attr-defined]
    for part in ("tensorrt_llm", "tensorrt_llm.a"):
        monkeypatch.setitem(sys.modules, part, ModuleType(part))
    monkeypatch.setitem(sys.modules, "tensorrt_llm.a.b", module)
    return module


@pytest.fixture
def contract(tmp_path: Path) -> dict[str, Any]:
    older = SOURCE.replace("c, d=None", "d=None")
    names = [
        name("plain"),
        name("Config", "fields"),
        name("Config", "class"),
        name("REGISTRY", "value"),
    ]
    return build_contract(
        [snapshot(tmp_path, "c1", SOURCE), snapshot(tmp_path, "c2", older)], names
    )


def test_what_is_as_read_is_the_same_and_says_as_of_when(
    installed: ModuleType, contract: dict[str, Any]
) -> None:
    findings = check_contract(contract)
    assert [f.status for f in findings] == ["same"] * 4
    assert findings[0].commits == ("c1",)
    assert problems(findings) == ()
    assert problems(check_contract(contract, "c2")) == (
        "tensorrt_llm.a.b:plain: changed ((a, b=1, *rest, c, d=None, e='x', f=..., **more) "
        "instead of (a, b=1, *rest, d=None, e='x', f=..., **more) at c2)",
    )


def test_files_are_told_apart_by_hash(tmp_path: Path) -> None:
    texts = {"same": "1", "newer": "2", "older": "3", "moved": "4", "unread": "5"}

    def recorded(**digests: str | None) -> dict[str, Any]:
        return {
            f"tensorrt_llm/{name}.py": {
                "sha256": digest and hashlib.sha256(digest.encode()).hexdigest()
            }
            for name, digest in digests.items()
        }

    contract = {
        "snapshots": {
            "c1": recorded(same="1", newer="0", older="0", moved="4", unread=None),
            "c2": recorded(same=None, older="3"),
        }
    }
    (tmp_path / "tensorrt_llm").mkdir()
    for stem, text in texts.items():
        if stem != "moved":
            (tmp_path / "tensorrt_llm" / f"{stem}.py").write_text(text)
    found = {f.path[13:-3]: str(f) for f in check_files(contract, tmp_path)}
    assert found == {
        "same": "hash equal to that of c1",
        "newer": "hash different from that of c1",
        "older": "hash equal to that of c2",
        "moved": "not in this version (was in c1)",
        "unread": "hash not recorded (of c1, declarations were read by eye)",
    }


def other(a, b=2, *rest, c, d=None, e="x", f=enum.Enum, **more):
    pass


def test_a_changed_default_a_missing_name_and_a_missing_module_are_told_apart(
    installed: ModuleType, contract: dict[str, Any]
) -> None:
    installed.plain = other  # type: ignore[attr-defined]
    del installed.REGISTRY  # type: ignore[attr-defined]
    by_name = {f.name: f for f in check_contract(contract)}
    assert by_name["tensorrt_llm.a.b:plain"].status == "changed"
    assert "b=2" in by_name["tensorrt_llm.a.b:plain"].detail
    missing = by_name["tensorrt_llm.a.b:REGISTRY"]
    assert (missing.status, missing.detail) == ("missing", "tensorrt_llm.a.b has no REGISTRY")
    contract["names"][0]["modules"] = ["tensorrt_llm.nowhere"]
    assert "nowhere" in check_contract(contract)[0].detail


def test_an_inherited_method_is_not_the_class_own(installed: ModuleType) -> None:
    installed.Derived = type("Derived", (Base,), {})  # type: ignore[attr-defined]
    entry = {
        "name": "Derived.inherited",
        "modules": ["tensorrt_llm.a.b"],
        "kind": "function",
        "use": "tests",
        "seen": {"c1": {"parameters": [["self", "positional_or_keyword", None]]}},
    }
    assert check_contract({"names": [entry]})[0].status == "missing"


def test_fields_of_named_tuples() -> None:
    class Key(NamedTuple):
        tokens: int
        axis: int = 0

    sys.modules["made_up_keys"] = SimpleNamespace(Key=Key)  # type: ignore[assignment]
    entry = {
        "name": "Key",
        "modules": ["made_up_keys"],
        "kind": "fields",
        "use": "tests",
        "seen": {"c1": {"parameters": [["tokens", "field", None], ["axis", "field", "0"]]}},
    }
    try:
        assert check_contract({"names": [entry]})[0].status == "same"
    finally:
        del sys.modules["made_up_keys"]


class Mode(str, enum.Enum):
    FULL = "full"


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("None", None),
        ("-1", -1),
        ("1_000", 1000),
        ("'HF'", "HF"),
        ("()", ()),
        ("[]", []),
        ("Mode.FULL", Mode.FULL),
        ("make()", namedtuple("T", "a")(1)),
    ],
)
def test_a_default_reads_the_same_in_source_and_at_run_time(source: str, value: object) -> None:
    import ast

    assert literal(ast.parse(source, mode="eval").body) == source_of(value)
