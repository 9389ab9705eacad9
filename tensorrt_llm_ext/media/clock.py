# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""How much time is left."""

from __future__ import annotations

import time


class Clock:
    """Runs out after a number of seconds.

    Args:
        seconds: How many.
        deadline: Value of ``time.monotonic()`` at which it runs out if that is sooner.
    """

    def __init__(self, seconds: float, deadline: float | None = None) -> None:
        own = time.monotonic() + seconds
        self._end = own if deadline is None else min(own, deadline)

    def left(self) -> float:
        """Seconds that are left.

        Raises:
            TimeoutError: None.
        """
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left
