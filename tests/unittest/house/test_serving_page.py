# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""docs/serving.md says what the command and the server have."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
import serve_flags

from tensorrt_llm_ext.graphs.report import (
    EncoderCacheStats,
    EncoderStats,
    KvCacheReport,
    StartupReport,
    TowerReport,
)

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "serving.md"
README = ROOT / "README.md"


def test_the_table_of_flags_is_fresh(tmp_path: Path) -> None:
    assert serve_flags.main(["--check"]) == 0
    stale = tmp_path / "serving.md"
    stale.write_text(PAGE.read_text().replace("| `2048` |", "| `1024` |"))
    assert serve_flags.main(["--check", "--page", str(stale)]) == 1
    assert serve_flags.main(["--page", str(stale)]) == 0
    assert stale.read_text() == PAGE.read_text()


def test_a_flag_without_status_is_noticed() -> None:
    command = click.Command("x", params=[click.Option(["--a"], help="Does a.")])
    with pytest.raises(ValueError, match="--a does not end with its status"):
        serve_flags.table(command)
    command = click.Command("x", params=[click.Option(["--a/--b"], help="A | b. [stable]")])
    assert serve_flags.table(command).splitlines()[-1] == "| `--a`, `--b` |  | stable | A \\| b. |"


def test_the_markers_have_to_be_there() -> None:
    for text in ("", serve_flags.BEGIN, serve_flags.END + serve_flags.BEGIN):
        with pytest.raises(ValueError, match="once each, in order"):
            serve_flags.insert(text, "")


def metric_names() -> set[str]:
    """Every series of the server, histograms by their base name."""
    pytest.importorskip("prometheus_client")
    from tensorrt_llm_ext.serve.engine_thread import Snapshot
    from tensorrt_llm_ext.serve.metrics import Metrics

    kv = KvCacheReport(
        tokens=1,
        tokens_without_graphs=1,
        bytes_per_token=1,
        free_bytes=1,
        reserved_bytes=1,
        explicit=True,
    )
    tower = TowerReport(modality="image", status="captured")
    report = StartupReport(model="m", device="cpu", dtype="float32", towers=[tower], kv_cache=kv)
    stats = EncoderStats(replays={"a": 1}, eager={"b": 1})
    snapshot = Snapshot({"image": stats}, EncoderCacheStats())
    page = Metrics(report, snapshot=lambda: snapshot, running=lambda: 0).render().decode()
    names = re.findall(r"^(trtllm_\w+)", page, flags=re.MULTILINE)
    return {re.sub(r"_(bucket|count|sum)$", "", n) for n in names if not n.endswith("_created")}


def test_the_page_names_every_metric_and_no_other() -> None:
    table = PAGE.read_text().split("## Metrics")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = {f"trtllm_{name}" for row in rows for name in re.findall(r"`(\w+)", row)}
    assert named == metric_names()


def test_the_page_names_every_route() -> None:
    pytest.importorskip("fastapi")
    source = (ROOT / "tensorrt_llm_ext" / "serve" / "app.py").read_text()
    routes = set(re.findall(r'"(/(?:v1/)?[a-z]+(?:/[a-z]+)*)"', source))
    assert {"/health", "/v1/models", "/prometheus/metrics"} <= routes
    page = PAGE.read_text()
    assert [
        route
        for route in sorted(routes)
        if f"`{route}`" not in page.replace("POST ", "").replace("GET ", "")
    ] == []


@pytest.mark.parametrize("path", [PAGE, README], ids=lambda p: p.name)
def test_examples_in_python_are_python(path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        compile(block, path.name, "exec")


@pytest.mark.parametrize("path", [PAGE, README], ids=lambda p: p.name)
def test_files_that_are_named_exist(path: Path) -> None:
    named = set(
        re.findall(r"\b(?:examples|docs|schemas|scripts|benchmarks)/[\w/.-]+\w", path.read_text())
    )
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
