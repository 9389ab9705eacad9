# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""README's rows and the page, from a result file like those of the benchmark."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import render_results
from encoder_bench.results import summary_rows
from encoder_bench.targets import DEVICE, evaluate
from encoder_page import page
from render_results import BEGIN, END

EVIL = "<script>alert('x')</script>"


def arm(median: float, **more: Any) -> dict[str, Any]:
    return {"median_us": median, "min_us": median - 10, "spread": 0.031, "host_us": 55.5, **more}


def case(name: str, items: int, tokens: int, ours: float, **arms: Any) -> dict[str, Any]:
    return {
        "case": name,
        "items": items,
        "tokens": tokens,
        "segments": items,
        "floor_flops_us": 300.0,
        "floor_bytes_us": 267.5,
        "arms": {
            "transformers": arm(17730.0, error=1.35e-2),
            "plain": arm(2850.0, error=1.36e-2),
            "ours": arm(ours, error=1.34e-2, steps=["256x8"]),
            **arms,
        },
    }


@pytest.fixture
def result() -> dict[str, Any]:
    """As the script writes it; the numbers are made up."""
    value: dict[str, Any] = {
        "benchmark": "encoder_qwen3_vl_8b",
        "tower": "qwen3_vl_8b",
        "title": "A tower",
        "device": DEVICE,
        "torch": "2.11.0",
        "transformers": "5.17.0",
        "triton": "3.6.0",
        "commit": "0123456789abcdef",
        "date": "2026-12-01",
        "options": {"tiny": False},
        "arms": {"transformers": "as shipped", "compiled": "c", "plain": "p", "ours": "o"},
        "capture": {
            "ours": {
                "kept": 40,
                "buckets": 48,
                "first_seconds": 21.75,
                "seconds": 9.5,
                "captures_seconds": 2.25,
                "driver_mib": 460.25,
            }
        },
        "cases": [
            case("1x64", 1, 64, 1000.0),
            case("1x256", 1, 256, 1500.0, compiled=arm(1600.0, error=1.3e-2)),
            {**case("8x256", 8, 2048, 4000.0), "failed": {"compiled": f"RuntimeError: {EVIL}"}},
        ],
        "host": [
            {"items": 8, "layout": "new", "arms": {"ours": arm(4100.0, beyond_launch_us=250)}}
        ],
        "kernels": {"1x256": {"ours": {"kernel_us": 1387.5, "kernels": 216}}},
        "sweep": [
            {"tokens": 256, "segments": 1, "items": 1, "ratio": 0.3},
            {"tokens": 512, "segments": 1, "items": 1, "ratio": 1.035},
            {"tokens": 512, "segments": 4, "items": 4, "ratio": 0.5},
        ],
    }
    value["targets"], value["rows"] = evaluate(value), summary_rows(value)
    return value


def test_rows(result: dict[str, Any]) -> None:
    first, second, _ = summary_rows(result)
    assert second == {
        "case": "1x256",
        "tokens": 256,
        "transformers_ms": 17.73,
        "compiled_ms": 1.6,
        "plain_ms": 2.85,
        "ours_ms": 1.5,
        "floor_ms": 0.3,
        "plain_over_ours": "1.90x",
        "transformers_error": "1.35e-02",
        "ours_error": "1.34e-02",
    }
    assert first["compiled_ms"] is None
    assert "eager_ms" not in first  # measured nowhere: no column


def test_table_says_which_targets_are_missed(result: dict[str, Any]) -> None:
    text = render_results.render([result])
    assert "| 1x256 | 256 | 17.73 | 1.60 | 2.85 | 1.50 | 0.30 | 1.90x |" in text
    sentence = text.splitlines()[-1]
    assert re.match(r"Targets: 7 of \d+ met\. Missed: ", sentence)
    assert "8x256: ours against plain captured 0.713x (at least 1.8)" in sentence
    assert "graphs by the driver's count 460.25 MiB (at most 450)" in sentence
    missed, unmeasured = sentence.split("Not measured: ")
    assert "1x256: ours against plain captured" not in missed
    assert "1x4096: ours against plain captured;" in unmeasured


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.links += [value or "" for key, value in attrs if key in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_whole_and_needs_nothing(result: dict[str, Any]) -> None:
    text = page([result])
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert not tags.links
    assert "script" not in tags.seen
    assert "&lt;script&gt;" in text
    charts = re.findall(r"<svg viewBox=\"0 0 560.*?</svg>", text)
    assert len(charts) == 3  # by size, by number, sweep
    for chart in charts:
        ElementTree.fromstring(chart)
    ids = re.findall(r'\bid="([^"]+)"', page([result, result]))
    assert len(ids) == len(set(ids))


def test_page_has_the_numbers(result: dict[str, Any]) -> None:
    text = page([result])
    met, total = sum(t["passed"] is True for t in result["targets"]), len(result["targets"])
    assert f"{total} targets: {met} met, " in text
    for shown in (
        "1,387.5",
        "216",
        "460.2",
        "1.34e-02",
        "3.1%",
        "250.0",
        "21.75",
        "slowest takes 1.035",
    ):
        assert shown in text
    assert "NVIDIA H200" in text
    assert "commit 0123456789<" in text


def test_page_lives_beside_the_results(result: dict[str, Any], tmp_path: Path) -> None:
    readme, folder = tmp_path / "README.md", tmp_path / "results"
    readme.write_text(f"{BEGIN}\n{END}\n")
    folder.mkdir()
    file = folder / "encoder_qwen3_vl_8b.json"
    file.write_text(json.dumps(result))
    arguments = ["--readme", str(readme), "--results", str(folder)]
    assert render_results.main([*arguments, "--check"]) == 1
    assert not (folder / "encoder.html").exists()
    assert render_results.main(arguments) == 0
    assert (folder / "encoder.html").read_text() == page([result])
    assert render_results.main([*arguments, "--check"]) == 0
    (folder / "encoder.html").write_text("typed by hand")
    assert render_results.main([*arguments, "--check"]) == 1
    file.unlink()
    assert render_results.main([*arguments, "--check"]) == 1  # a page of no result
    assert render_results.main(arguments) == 0
    assert not (folder / "encoder.html").exists()
