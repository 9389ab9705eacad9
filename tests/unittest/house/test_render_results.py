# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""README's tables come from the result files and from nowhere else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import render_results
from render_results import BEGIN, END

RESULT = {
    "benchmark": "encode",
    "device": "NVIDIA H200",
    "torch": "2.13.0",
    "transformers": "5.17.0",
    "commit": "0123456789abcdef",
    "date": "2026-12-01",
    "rows": [
        {"case": "1x(16x16)", "transformers_ms": 17.25, "replay_ms": 3.2999, "tokens": 256},
        {"case": "1x(64x64)", "transformers_ms": None, "replay_ms": 24},
    ],
}


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "README.md").write_text(f"# Title\n\n{BEGIN}\nold\n{END}\n\nEnd.\n")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "encode.json").write_text(json.dumps(RESULT))
    return ["--readme", str(tmp_path / "README.md"), "--results", str(tmp_path / "results")]


def test_table(files: list[str], tmp_path: Path) -> None:
    assert render_results.main(files) == 0
    assert (tmp_path / "README.md").read_text() == (
        f"# Title\n\n{BEGIN}\n\n"
        "**encode**: NVIDIA H200, torch 2.13.0, transformers 5.17.0, commit 0123456789, 2026-12-01"
        "\n\n| case | transformers (ms) | replay (ms) | tokens |\n| --- | ---: | ---: | ---: |\n"
        "| 1x(16x16) | 17.25 | 3.30 | 256 |\n| 1x(64x64) | - | 24.00 | - |\n\n"
        f"{END}\n\nEnd.\n"
    )


def test_check(files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert render_results.main([*files, "--check"]) == 1
    assert (tmp_path / "README.md").read_text().splitlines()[3] == "old"
    assert render_results.main(files) == 0
    assert render_results.main([*files, "--check"]) == 0
    text = (tmp_path / "README.md").read_text()
    (tmp_path / "README.md").write_text(text.replace("17.25", "1.25"))  # typed by hand
    capsys.readouterr()
    assert render_results.main([*files, "--check"]) == 1
    assert "+| 1x(16x16) | 17.25" in capsys.readouterr().out


def test_no_results() -> None:
    assert "No measurements" in render_results.render([])


@pytest.mark.parametrize("change", [{"device": ...}, {"rows": []}, {"rows": [{"replay_ms": 1}]}])
def test_malformed_results_are_named(tmp_path: Path, change: dict) -> None:
    result = {key: value for key, value in {**RESULT, **change}.items() if value is not ...}
    (tmp_path / "broken.json").write_text(json.dumps(result))
    with pytest.raises(ValueError, match=r"broken\.json"):
        render_results.load_results(tmp_path)


@pytest.mark.parametrize(
    "text", ["none", BEGIN, END, END + BEGIN, BEGIN + END + END, BEGIN + BEGIN + END]
)
def test_markers_must_be_there_once_and_in_order(text: str) -> None:
    with pytest.raises(ValueError, match="once each"):
        render_results.insert(text, "table")
