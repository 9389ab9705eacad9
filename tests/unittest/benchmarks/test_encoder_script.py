# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""``benchmarks/encoder.py`` end to end on a CPU, with tiny towers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import encoder
import encoder_page
import pytest
import torch
from encoder_bench import arms, kernels
from encoder_bench.timing import Deadline, Failures
from published_towers import VISION

CPU = ["--device", "cpu", "--tiny", "--quick", "--commit", "0123456"]
IN_FP32 = 5e-6


@pytest.fixture(autouse=True)
def _restored() -> Any:
    before = torch.backends.cudnn.allow_tf32
    yield
    torch.backends.cudnn.allow_tf32 = before


def run(folder: Path, tower: str, *options: str) -> dict[str, Any]:
    assert encoder.main([*CPU, "--out", str(folder), "--towers", tower, *options]) == 0
    return json.loads((folder / f"encoder_{tower}.json").read_text())


@pytest.mark.slow
def test_pictures(tmp_path: Path) -> None:
    options = ("--layouts", "1x64,8x256,mixed16", "--parts", "cases,host,sweep")
    result = run(tmp_path, "qwen3_vl_8b", *options)
    assert [entry["case"] for entry in result["cases"]] == ["1x64", "8x256", "mixed16"]
    for entry in result["cases"]:
        assert "failed" not in entry
        compiled = ["compiled"] if entry["case"] == "8x256" else []
        assert list(entry["arms"]) == [
            "transformers", "packed", *compiled, "eager", "plain", "ours",
        ]  # fmt: skip
        for found in entry["arms"].values():
            assert found["error"] < IN_FP32
            assert found["samples"] >= 3
            assert 0 < found["min_us"] <= found["median_us"]
            assert found["host_us"] > 0
    mixed = result["cases"][-1]["arms"]
    assert set(mixed["ours"]["steps"]) <= {"64x16", "128x16", "192x16", "256x16"}
    assert mixed["eager"]["steps"] == ["eager: requested"] * 2  # 360 tokens, 256 at most a step
    assert result["cases"][1]["compiling"]["compile_seconds"] > 0
    captured = result["capture"]
    assert captured["ours"]["status"] == "captured"
    assert captured["plain"]["entry"]["prune_slower_than_eager"] is False
    assert [(e["items"], e["layout"]) for e in result["host"]] == [
        (n, layout) for n in (1, 8, 16) for layout in ("repeated", "new")
    ]
    assert all(point["ratio"] > 0 and not point["failed"] for point in result["sweep"])
    assert result["targets"] == []  # stated for another machine
    assert [row["case"] for row in result["rows"]] == ["1x64", "8x256", "mixed16"]
    assert "mixed16" in encoder_page.page([result])


@pytest.mark.parametrize("tower", ["qwen3_omni_vision", "glm_4_1v", "radio_h"])
def test_other_towers_compute_what_transformers_computes(tmp_path: Path, tower: str) -> None:
    result = run(tmp_path, tower, "--layouts", "mixed16,video8", "--parts", "cases")
    for entry in result["cases"]:
        assert all(found["error"] < IN_FP32 for found in entry["arms"].values())
        packed = {} if tower != "radio_h" else {"packed": "ValueError: RADIO of transformers"}
        failed = {arm: why[: len(packed.get(arm, ""))] for arm, why in _failed(entry).items()}
        assert failed == packed


def _failed(entry: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = entry.get("failed", {})
    return found


@pytest.mark.slow
def test_sound(tmp_path: Path) -> None:
    options = ("--layouts", "1s,3001", "--parts", "cases,host,staging")
    result = run(tmp_path, "qwen3_omni_audio", *options)
    for entry in result["cases"]:
        assert "failed" not in entry
        assert ("compiled" in entry["arms"]) == (entry["case"] == "1s")
        assert all(found["error"] < IN_FP32 for found in entry["arms"].values())
    assert [(e["clips"], e["lengths"]) for e in result["staging"]] == [
        (clips, lengths)
        for clips in ("3000", "6000", "3001", "6001", "4x3001")
        for lengths in ("repeated", "changed")
    ]
    assert all(list(e["arms"]) == ["transformers", "ours"] for e in result["staging"])
    assert len(result["host"]) == 4


@pytest.mark.slow
def test_kernels_come_from_another_process(tmp_path: Path) -> None:
    """And that one is this script, as it would be started on a GPU machine without git."""
    script = Path(encoder.__file__)
    command = [sys.executable, str(script), *CPU, "--out", str(tmp_path), "--towers", "radio_h"]
    command += ["--layouts", "1x64", "--arms", "eager,ours", "--parts", "kernels"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    result = json.loads((tmp_path / "encoder_radio_h.json").read_text())
    assert list(result["kernels"]) == ["1x64"]
    for found in result["kernels"]["1x64"].values():
        assert found["kernel_us"] > 0
        assert found["kernels"] >= len(found["longest"]) > 0
    assert "capture" not in result  # nothing was timed


def test_profiler_is_started_by_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a process that is timed must not profile")

    monkeypatch.setattr(kernels, "profile", refuse)
    asked: list[list[str]] = []
    monkeypatch.setattr(
        encoder, "profile_in_child", lambda script, options, deadline: asked.append(options) or {}
    )
    run(tmp_path, "radio_h", "--layouts", "1x64", "--parts", "cases,kernels")
    assert asked[0][:2] == ["--towers", "radio_h"]


def test_a_child_that_fails_or_hangs_is_reported(tmp_path: Path) -> None:
    broken = tmp_path / "script.py"
    broken.write_text("raise SystemExit('out of luck')")
    found = kernels.profile_in_child(broken, [], Deadline(None))
    assert found == {"failed": "exit code 1: out of luck"}
    broken.write_text("import time; time.sleep(60)")
    found = kernels.profile_in_child(broken, [], Deadline(kernels._EXIT_SECONDS + 1.0))
    assert "not done within" in found["failed"]
    assert kernels.profile_in_child(broken, [], Deadline(0.0)) == {"failed": "no time was left"}


def test_a_failing_arm_does_not_stop_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> Any:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(arms, "compiled_call", fail)
    result = run(tmp_path, "qwen3_vl_8b", "--layouts", "1x256", "--parts", "cases")
    (entry,) = result["cases"]
    assert entry["failed"] == {"compiled": "RuntimeError: no such kernel"}
    assert list(entry["arms"]) == ["transformers", "packed", "eager", "plain", "ours"]


def test_a_plain_tower_that_cannot_be_captured_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_capture = arms.Subject.capture

    def fail(self: arms.Subject, arm: str, *, again: bool = False) -> Any:
        if arm == "plain":
            raise ValueError("no varlen here")
        return plain_capture(self, arm, again=again)

    monkeypatch.setattr(arms.Subject, "capture", fail)
    result = run(tmp_path, "radio_h", "--layouts", "1x64", "--parts", "cases")
    assert result["failed"] == {"plain": "ValueError: no varlen here"}
    assert list(result["cases"][0]["arms"]) == ["transformers", "eager", "ours"]


def test_only_the_plain_arm_has_plain_layers() -> None:
    subject = subject_of("qwen3_vl_8b", "eager", "plain", "ours")
    assert (subject.plain.attention_backend, subject.plain.fused_layers) == ("auto", False)
    assert (subject.ours.attention_backend, subject.ours.fused_layers) == ("auto", None)
    arms.make_plain(subject.plain, torch.device("cuda"))
    assert (subject.plain.attention_backend, subject.plain.fused_layers) == ("varlen", False)
    assert subject.ours is not subject.plain
    assert subject_of("qwen3_vl_8b", "ours").plain is None


@pytest.mark.parametrize("again", [False, True])
def test_the_reported_capture_is_the_second(again: bool) -> None:
    subject = subject_of("radio_h", "ours")
    ladders = [[7.0], [2000.0, 500.0]]  # milliseconds

    def report() -> Any:
        buckets = [SimpleNamespace(capture_ms=ms, kept=True) for ms in ladders.pop(0)]
        return SimpleNamespace(buckets=buckets, status="captured", model_dump=lambda mode: {})

    subject.ours.capture_encoder_cuda_graphs = subject.ours.recapture = report
    found = subject.capture("ours", again=again)
    assert found["captures_seconds"] == (2.5 if again else 0.01)
    assert len(ladders) == 1 - again


def test_nothing_is_compiled_when_little_time_is_left() -> None:
    subject = subject_of("qwen3_vl_8b", "compiled", "ours")
    case = next(case for case in subject.cases() if case.compiled)
    failures = Failures()
    items = subject.items(case.shapes)
    calls, compiling = arms.prepared(
        subject, subject.arms, case, items, failures, Deadline(arms._COMPILE_SECONDS - 1.0)
    )
    assert (list(calls), compiling) == (["ours"], {})
    assert failures == {"compiled": "less than 120 s were left to compile"}


def subject_of(tower: str, *names: str) -> arms.Subject:
    return arms.Subject(VISION[tower], names, torch.device("cpu"), tiny=True)


def test_outputs_that_are_wrong_or_not_finite_are_noticed() -> None:
    exact = [torch.ones(4), torch.ones(2)]
    assert arms.worst_error([torch.ones(4), torch.full((2,), 1.5)], exact) == 0.5
    with pytest.raises(ArithmeticError, match="not finite"):
        arms.worst_error([torch.ones(4), torch.tensor([1.0, float("nan")])], exact)


def test_time_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--out", str(tmp_path), "--time-budget", "1"]
    assert encoder.main([*CPU, *options, "--towers", "radio_h,glm_4_1v"]) == 0
    assert "time is up before glm_4_1v, radio_h" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_time_that_ends_in_between_leaves_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = iter([False, False, True])  # before the tower and before each case
    monkeypatch.setattr(Deadline, "over", lambda self, needed=0.0: next(ended, True))
    options = ("--layouts", "1x64,1x256,8x256", "--arms", "eager,ours", "--parts", "cases")
    result = run(tmp_path, "radio_h", *options)
    assert [entry["case"] for entry in result["cases"]] == ["1x64"]
    assert "time is up before 1x256, 8x256" in capsys.readouterr().out


def test_parts_of_one_commit_stand_together(tmp_path: Path) -> None:
    few = ("--layouts", "1x64", "--arms", "eager,ours")
    run(tmp_path, "radio_h", *few, "--parts", "cases")
    two = ("--layouts", "1x256", "--arms", "eager,ours", "--parts", "cases,sweep")
    both = run(tmp_path, "radio_h", *two)
    assert [entry["case"] for entry in both["cases"]] == ["1x64", "1x256"]
    assert both["sweep"]
    other = run(tmp_path, "radio_h", *few, "--parts", "cases", "--commit", "another")
    assert [entry["case"] for entry in other["cases"]] == ["1x64"]
    assert "sweep" not in other


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--towers", "qwen9"], "qwen9"),
        (["--layouts", "3x3"], "3x3"),
        (["--arms", "eager"], "has to name ours"),
        (["--parts", "cases,lunch"], "lunch"),
    ],
)
def test_unknown_words_are_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        encoder.parse_arguments([*CPU, *options])
    assert message in capsys.readouterr().err


def test_commit_has_to_be_told_where_git_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit):
        encoder.parse_arguments([])
    assert "pass --commit" in capsys.readouterr().err
