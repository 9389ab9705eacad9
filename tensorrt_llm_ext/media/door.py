# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The door that all media of requests come through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..llmapi.media_limits import MediaLimits
from .part import MediaPart


class MediaDoor:
    """Fetches, reads and decodes media within limits. Thread-safe.

    Args:
        limits: What is taken, and from where.
    """

    def __init__(self, limits: MediaLimits) -> None:
        self.limits = limits

    def check(self, parts: Sequence[MediaPart]) -> None:
        """Check a request's parts as far as that is cheap: nothing is fetched, read or decoded.

        Parts that were checked together share the request's limits when they are opened.

        Args:
            parts: All parts of one request.

        Raises:
            MediaError: Too many, too large, or from where nothing is taken.
        """
        raise NotImplementedError

    def open(self, part: MediaPart, *, deadline: float | None = None) -> Any:
        """Fetch or read a part and decode it. Blocks; call it on a worker thread.

        Args:
            part: One that :meth:`check` let pass.
            deadline: Value of ``time.monotonic()`` after which to give up; left out, the limits'
                own times hold alone.

        Returns:
            A picture: PIL image in mode RGB, upright. A video: ``{"frames": [uint8 array [H, W,
            3]] * n, "fps": frames a second or None}``. Sound: ``(float32 array [samples] or
            [samples, channels], samples a second)``.

        Raises:
            MediaError: It cannot be had, read or decoded within the limits.
        """
        raise NotImplementedError
