# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""`trtllm-ext collect-env`: what it says, and what it must not say."""

from __future__ import annotations

import getpass
import json
import platform
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from click.testing import CliRunner

from tensorrt_llm_ext import __version__
from tensorrt_llm_ext.cli import main
from tensorrt_llm_ext.collect_env import collect, driver_version, environment, render


def run(*args: str) -> str:
    result = CliRunner().invoke(main, ["collect-env", *args])
    assert result.exit_code == 0
    return result.stdout


def test_versions_and_backends() -> None:
    facts = json.loads(run("--json"))
    versions = facts["versions"]
    assert versions["tensorrt_llm_ext"] == __version__
    assert versions["python"] == platform.python_version()
    assert versions["torch"] == torch.__version__
    assert versions["transformers"] == transformers.__version__
    assert {"pydantic", "cuda (torch's)", "nvidia driver", "triton"} <= versions.keys()
    assert facts["backends"]["cpu"].startswith("static_buffers")
    assert facts["hosts"]["torch"].startswith("available")
    assert facts["system"]["memory_bytes"] > 0


def test_text_has_the_same_facts() -> None:
    text = run()
    for section in ("versions", "system", "devices", "backends", "hosts", "environment"):
        assert f"{section}:\n" in text
    assert f"  torch: {torch.__version__}\n" in text
    facts = {"devices": [{"device": "cuda:0", "name": "A"}], "environment": {}, "hosts": {"x": "y"}}
    assert render(facts) == (
        "devices:\n  device: cuda:0, name: A\nenvironment:\n  none\nhosts:\n  x: y"
    )


def test_environment_is_ours_and_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {
        "HOME": "/home/somebody",
        "TRTLLM_EXT_CACHE": "/home/somebody/cache",
        "TRTLLM_EXT_API_KEY": "hunter2",
        "TRTLLM_EXT_HUB_token": "hunter2",
        "HF_TOKEN": "hunter2",
        "AWS_SECRET_ACCESS_KEY": "hunter2",
        "CUDA_VISIBLE_DEVICES": "0",
        "HOSTNAME": "box",
        "PATH": "/bin",
    }
    shown = environment(variables)
    assert shown == {
        "TRTLLM_EXT_CACHE": "~/cache",
        "TRTLLM_EXT_API_KEY": "(set, not shown)",
        "TRTLLM_EXT_HUB_token": "(set, not shown)",
        "CUDA_VISIBLE_DEVICES": "0",
    }
    assert environment({"HOME": "/", "TRTLLM_EXT_CACHE": "/a/b"}) == {"TRTLLM_EXT_CACHE": "/a/b"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert "hunter2" not in run() + run("--json")


def test_nothing_names_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "node", lambda: "machine-of-mine")
    monkeypatch.setenv("TRTLLM_EXT_CACHE", str(Path.home() / "x"))
    said = run("--json")
    assert "machine-of-mine" not in said
    assert platform.uname().node not in said
    assert f"/{getpass.getuser()}/" not in said


def test_driver_version(tmp_path: Path) -> None:
    path = tmp_path / "version"
    assert driver_version(path) is None
    path.write_text("NVRM version: NVIDIA UNIX Open Kernel Module  570.124.06  Release Build\n")
    assert driver_version(path) == "570.124.06"
    path.write_text("nothing of the kind\n")
    assert driver_version(path) is None


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    card = SimpleNamespace(name="Some GPU", major=9, minor=0, total_memory=80 << 30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: card)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (70 << 30, 80 << 30))
    facts = collect()
    assert facts["devices"] == [
        {
            "device": "cuda:0",
            "name": "Some GPU",
            "capability": "9.0",
            "memory_bytes": 80 << 30,
            "free_bytes": 70 << 30,
        }
    ]
    assert facts["backends"]["cuda"] == "cuda_graph, tiles attention in bfloat16"
