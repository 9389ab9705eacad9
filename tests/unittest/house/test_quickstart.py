# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The quick start replays the picture, and its exit code tells the truth."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import quickstart
from PIL import Image


@pytest.fixture
def command(tiny_checkpoint: Path, photo: Image.Image, tmp_path: Path, monkeypatch) -> Any:
    """Set the command line: the tiny checkpoint and a real picture of 80 rows."""
    photo.resize((160, 128)).save(tmp_path / "small.png")
    arguments = ["--model", str(tiny_checkpoint), "--image", str(tmp_path / "small.png")]
    limits = ["--encoder_max_num_tokens", "128", "--device", "cpu", "--max_tokens", "6"]
    monkeypatch.setattr(sys, "argv", ["quickstart.py", *arguments, *limits])


@pytest.mark.usefixtures("command")
def test_same_tokens_with_and_without_graphs(capsys: pytest.CaptureFixture[str]) -> None:
    sys.argv.append("--require_replay")
    assert quickstart.main() == 0
    out = capsys.readouterr().out
    assert "nothing was accelerated" in out
    assert "1 picture of 80 rows and 48 of padding; replays {'128x8': 1}, eager none" in out
    assert "Without encoder graphs: the same 6 tokens." in out


@pytest.mark.usefixtures("command")
@pytest.mark.parametrize(("flags", "code"), [([], 0), (["--require_replay"], 1)])
def test_nothing_replayed_fails_where_that_is_asked_for(
    flags: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The picture has 80 rows, the largest graph 64."""
    sys.argv += ["--encoder_max_num_tokens", "64", *flags]
    assert quickstart.main() == code
    out = capsys.readouterr().out
    assert "replays none, eager {'too_many_tokens': 1}" in out
    assert ("No graph was replayed" in out) == bool(code)
    assert ("eager because of too_many_tokens" in out) == bool(code)


@pytest.mark.usefixtures("command")
def test_other_tokens_fail(monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Wrong(quickstart.LLM):
        def generate(self, *args: Any) -> Any:
            result = super().generate(*args)
            if not self.encoder_stats()["image"].replays:
                result.outputs[0].token_ids[-1] += 1
            return result

    monkeypatch.setattr(quickstart, "LLM", Wrong)
    assert quickstart.main() == 1
    assert "the answer is another one" in capsys.readouterr().out
