# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``_torch/nccl_window_graph.py`` (commit 1f66227d25a5): who owns a pool's windows.

The C++ side is a list: ``released`` and ``bound`` say what was asked of it.
"""

from __future__ import annotations

import contextlib
import operator
import threading
from collections.abc import Iterator
from typing import Any

import torch

from tensorrt_llm import _double

_EAGER_OWNER = -1
_next_pool_owner = 1 << 62
_pool_owners: dict[tuple[int, int], int] = {}
_pool_owners_lock = threading.Lock()
_capture_owner = threading.local()


def _pool_key(pool: Any) -> tuple[int, int]:
    if not isinstance(pool, tuple) or len(pool) != 2:
        raise TypeError(f"Expected a CUDA graph pool handle, got {pool!r}")
    try:
        return operator.index(pool[0]), operator.index(pool[1])
    except TypeError as error:
        raise TypeError(f"Invalid CUDA graph pool handle: {pool!r}") from error


def current_owner() -> int:
    """Double only: the owner that a collective would see now."""
    return getattr(_capture_owner, "value", _EAGER_OWNER)


@contextlib.contextmanager
def nccl_window_graph_owner(pool: Any) -> Iterator[None]:
    global _next_pool_owner
    key = _pool_key(pool)
    with _pool_owners_lock:
        created = key not in _pool_owners
        if created:
            _next_pool_owner += 1
            _pool_owners[key] = _next_pool_owner
        owner = _pool_owners[key]
    previous = current_owner()
    _capture_owner.value = owner
    _double.record("nccl_owner_bound", owner=owner)
    completed = False
    try:
        yield
        completed = True
    finally:
        _capture_owner.value = previous
        if created and not completed:
            abandon_nccl_window_graph_owner(pool)


@contextlib.contextmanager
def nccl_window_graph_capture(
    graph: torch.cuda.CUDAGraph, pool: Any, **capture_kwargs: Any
) -> Iterator[None]:
    with nccl_window_graph_owner(pool), torch.cuda.graph(graph, pool=pool, **capture_kwargs):
        yield


def abandon_nccl_window_graph_owner(pool: Any) -> None:
    with _pool_owners_lock:
        _pool_owners.pop(_pool_key(pool), None)
    _double.record("nccl_owner_abandoned")


def release_nccl_window_graph_owner(pool: Any) -> None:
    key = _pool_key(pool)
    with _pool_owners_lock:
        owner = _pool_owners.pop(key, None)
    if owner is not None:
        _double.record("nccl_owner_released", owner=owner)
