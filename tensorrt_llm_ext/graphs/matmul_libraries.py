# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The libraries that multiply matrices on CUDA, and the workspaces that graphs have of them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import torch

LIBRARIES = ("default", "cublaslt")
"""The usual one first."""


@contextlib.contextmanager
def library(name: str) -> Iterator[None]:
    """Has a library multiply.

    Args:
        name: One of ``LIBRARIES``.
    """
    before = torch.backends.cuda.preferred_blas_library()
    torch.backends.cuda.preferred_blas_library(name)
    try:
        yield
    finally:
        torch.backends.cuda.preferred_blas_library(before)


def keep_workspaces(device: torch.device) -> None:
    """Has the current stream's workspaces in memory that nobody else can get or has a part of.

    Graphs know them by address, and torch gives them back whenever somebody asks: its compiler does
    around graphs of its own. The memory would then be somebody else's, or unmapped.

    Args:
        device: Of the stream.
    """
    one = torch.zeros(16, 16, dtype=torch.float32, device=device)
    two = torch.empty_like(one)
    with torch.cuda.use_mem_pool(_pool(device), device):
        for name in LIBRARIES:  # those that there are already stay where they are
            with library(name):
                torch.mm(one, one, out=two)


@functools.lru_cache
def _pool(device: torch.device) -> torch.cuda.MemPool:
    """One for the process; what is given back to it goes nowhere else."""
    return torch.cuda.MemPool()
