# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Memory that is free: what a container leaves of it, and what the driver says."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from tensorrt_llm_ext.graphs import memory

from .fakes import CPU


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, 700),
        ({"memory.max": "1000", "memory.current": "400"}, 600),
        ({"memory.max": "1000\n", "memory.current": "200\n"}, 700),  # the host has no more
        ({"memory.max": "1000", "memory.current": "1001"}, 0),
        ({"memory.max": "max", "memory.current": "400"}, 700),
        ({"memory.max": "1000"}, 700),
        ({"memory.current": "400"}, 700),
    ],
)
def test_free_memory_of_a_host(files, free, monkeypatch, tmp_path: Path):
    for name, text in files.items():
        (tmp_path / name).write_text(text, "ascii")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=700))
    assert memory.free_memory(CPU) == free


def test_free_memory_of_a_gpu_is_what_is_left_when_all_is_done_and_given_back(monkeypatch):
    device, calls = torch.device("cuda"), []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda of: calls.append(f"synchronize {of}"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("empty"))
    monkeypatch.setattr(
        torch.cuda, "mem_get_info", lambda of: calls.append(f"ask {of}") or (300, 900)
    )
    assert memory.free_memory(device) == 300
    assert calls == ["synchronize cuda", "empty", "ask cuda"]
