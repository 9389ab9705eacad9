# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Media and prompts, made ready on worker threads."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

import numpy as np

from ..media import MediaDoor, MediaPart

T = TypeVar("T")

_NICENESS = 10


class Intake:
    """Fetches and decodes media, a bounded number and size at a time.

    Args:
        door: Opens media.
        workers: Threads.
        max_decoded_bytes: Decoded media that may lie here before more are decoded.
    """

    def __init__(self, door: MediaDoor, *, workers: int, max_decoded_bytes: int) -> None:
        self._door = door
        self._pool = ThreadPoolExecutor(workers, "intake", _give_way)
        # No more requests at once than threads: all that decode when the room is full overfill it.
        self._slots = asyncio.Semaphore(workers)
        self._max_bytes = max_decoded_bytes
        self._held = 0
        self._room = asyncio.Event()
        self._room.set()

    async def run(self, call: Callable[[], T]) -> T:
        """Run something on a worker thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, copy_context().run, call)

    async def open(self, parts: Sequence[MediaPart], deadline: float) -> DecodedMedia:
        """Check, fetch and decode the media of one request.

        Args:
            parts: All of them.
            deadline: Value of ``time.monotonic()`` after which to give up.

        Returns:
            Modality and content of each; to be released once the engine has read them.

        Raises:
            MediaError: One cannot be used.
        """
        self._door.check(parts)
        if not parts:
            return DecodedMedia([], self._release)
        async with self._slots:
            while self._held >= self._max_bytes:
                self._room.clear()
                await self._room.wait()
            media = DecodedMedia(await self._open_all(parts, deadline), self._release)
            self._held += media.num_bytes
            return media

    async def _open_all(self, parts: Sequence[MediaPart], deadline: float) -> list[tuple[str, Any]]:
        tasks = [
            asyncio.ensure_future(self.run(partial(self._door.open, part, deadline=deadline)))
            for part in parts
        ]
        try:
            contents = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return [(part.modality, content) for part, content in zip(parts, contents, strict=True)]

    def close(self) -> None:
        """Take no more; what runs is not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _release(self, num_bytes: int) -> None:
        self._held -= num_bytes
        if self._held < self._max_bytes:
            self._room.set()


class DecodedMedia:
    """The decoded media of one request.

    Args:
        contents: Modality and content of each.
        release: Told their size when they are released.
    """

    def __init__(self, contents: list[tuple[str, Any]], release: Callable[[int], None]) -> None:
        self.contents = contents
        self.num_bytes = sum(_num_bytes(content) for _, content in contents)
        self._release: Callable[[int], None] | None = release

    def release(self) -> None:
        """They are not needed any more. May be called twice."""
        if self._release is not None:
            self._release(self.num_bytes)
            self._release = None
            self.contents = []


def _give_way() -> None:
    """Let the event loop and the engine go first where there are fewer cores than threads."""
    if sys.platform == "linux":  # elsewhere a priority is the whole process's
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def _num_bytes(content: Any) -> int:
    """Memory of what the media door returned."""
    if isinstance(content, dict):
        return sum(np.asarray(frame).nbytes for frame in content["frames"])
    if isinstance(content, tuple):
        return int(np.asarray(content[0]).nbytes)
    width, height = content.size
    return int(width * height * len(content.getbands()))
