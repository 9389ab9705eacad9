# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Libraries that multiply matrices: chosen for a while, and their workspaces kept."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tensorrt_llm_ext.graphs import matmul_libraries

CPU = torch.device("cpu")


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was chosen, the last one being in force."""
    names = ["mine"]

    def preferred(name: str | None = None) -> str:
        if name is not None:
            names.append(name)
        return names[-1]

    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", preferred)
    return names


def test_a_library_is_chosen_for_a_while(chosen: list[str]) -> None:
    with matmul_libraries.library("cublaslt"):
        assert chosen[-1] == "cublaslt"
    assert chosen[-1] == "mine"
    with pytest.raises(ZeroDivisionError), matmul_libraries.library("default"):
        _ = 1 / 0
    assert chosen[-1] == "mine"


def test_workspaces_of_every_library_are_in_one_pool(
    chosen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two calls, as two captures make: a pool of each time would give the first one's memory back.

    What else is allocated meanwhile does not belong there.
    """
    inside: list[Any] = []
    multiplied: list[tuple[str, Any]] = []
    mm = torch.mm

    class Pool:
        pass

    @contextlib.contextmanager
    def use_mem_pool(pool: Any, device: torch.device) -> Iterator[None]:
        inside.append(pool)
        yield
        inside.pop()

    def multiply(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        multiplied.append((chosen[-1], inside[-1]))
        return mm(a, b, out=out)

    def made(*args: Any, **how: Any) -> torch.Tensor:
        assert not inside
        return zeros(*args, **how)

    zeros = torch.zeros
    monkeypatch.setattr(torch.cuda, "MemPool", Pool)
    monkeypatch.setattr(torch.cuda, "use_mem_pool", use_mem_pool)
    monkeypatch.setattr(torch, "mm", multiply)
    monkeypatch.setattr(torch, "zeros", made)
    matmul_libraries._pool.cache_clear()
    for _ in range(2):
        matmul_libraries.keep_workspaces(CPU)
    matmul_libraries._pool.cache_clear()
    assert [name for name, _ in multiplied] == [*matmul_libraries.LIBRARIES] * 2
    assert len({id(pool) for _, pool in multiplied}) == 1
    assert isinstance(multiplied[0][1], Pool)
    assert chosen[-1] == "mine"
