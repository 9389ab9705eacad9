# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Ties captures to upstream's communication windows.

Our towers are whole on every rank and communicate nothing; what they call inside a capture may. So
the graphs' pool is bound to an owner as upstream does for its own graphs, and let go with the last.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from ..graphs.backends import PoolOwner
from .probe import NCCL_WINDOWS, find

Pool = tuple[int, int]


class NcclWindowOwner:
    """Upstream's owner of windows, by pool."""

    def __init__(
        self, bind: Callable[[Pool], AbstractContextManager[Any]], let_go: Callable[[Pool], None]
    ) -> None:
        """Takes upstream's functions.

        Args:
            bind: Pool -> what stands around a capture; forgets the pool where it fails.
            let_go: Pool -> nothing, after its last graph.
        """
        self._bind = bind
        self._let_go = let_go

    def binding(self, pool: Pool) -> AbstractContextManager[object]:
        """See ``PoolOwner``."""
        return self._bind(pool)

    def release(self, pool: Pool) -> None:
        """See ``PoolOwner``."""
        self._let_go(pool)


def nccl_window_owner() -> PoolOwner | None:
    """The owner, or None where the installed version has no such windows."""
    bind = find(*(f"{module}:nccl_window_graph_owner" for module in NCCL_WINDOWS))
    let_go = find(*(f"{module}:release_nccl_window_graph_owner" for module in NCCL_WINDOWS))
    return NcclWindowOwner(bind, let_go) if bind and let_go else None
