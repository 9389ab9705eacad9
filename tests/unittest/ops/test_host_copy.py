# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Integers of the host go to the device in one copy that waits for nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tensorrt_llm_ext.ops.host_copy import copy_from_host


def rows(count: int, start: int = 0) -> np.ndarray:
    return np.arange(start, start + 2 * count, dtype=np.int32).reshape(count, 2)


def test_arrays_lie_end_to_end() -> None:
    arena = torch.full((6, 2), -1, dtype=torch.int32)
    version = arena._version
    copy_from_host([rows(3), rows(1, start=6)], arena[1:5])
    assert arena.tolist() == [[-1, -1], [0, 1], [2, 3], [4, 5], [6, 7], [-1, -1]]
    assert arena._version == version + 1  # as every write, for those that watch the arena


@pytest.mark.parametrize("arrays", [[rows(3)], [rows(3), rows(2)]])
def test_arrays_have_to_fill_the_tensor(arrays: list[np.ndarray]) -> None:
    arena = torch.full((4, 2), -1, dtype=torch.int32)
    with pytest.raises(ValueError, match="wrong shape"):
        copy_from_host(arrays, arena)
    assert (arena == -1).all()


def test_the_device_reads_pinned_memory_that_nobody_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On CUDA, of which there is a double here: a copy from other memory would wait."""
    made: list[bool] = []
    copies: list[tuple[list[int], bool]] = []
    empty = torch.empty

    def spy(*size: Any, pin_memory: bool, **kwargs: Any) -> torch.Tensor:
        made.append(pin_memory)
        return empty(*size, **kwargs)

    def copy(source: torch.Tensor, non_blocking: bool) -> None:
        copies.append((source.flatten().tolist(), non_blocking))

    monkeypatch.setattr(torch, "empty", spy)
    device = SimpleNamespace(shape=(2, 2), dtype=torch.int32, is_cuda=True, copy_=copy)
    copy_from_host([rows(2)], device)  # type: ignore[arg-type]
    assert made == [True]
    assert copies == [([0, 1, 2, 3], True)]
    copy_from_host([rows(2)], torch.zeros(2, 2, dtype=torch.int32))
    assert made == [True, False]
