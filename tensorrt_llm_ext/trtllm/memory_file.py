# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Files without a place on disk, which other processes of the machine can open by a path.

They end with the process that holds them, however it ends: nothing is left to remove. A process
that this one becomes (``exec``) holds them on. Linux only, as TensorRT-LLM is.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import BaseModel, ConfigDict


class MemoryFile(BaseModel):
    """How to find such a file.

    Attributes:
        path: ``/proc/PID/fd/N`` of the process that holds it.
        name: What the file is called there, unlike any other's.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str
    name: str

    @property
    def is_here(self) -> bool:
        """Whether the path leads to it: on another machine, or later, it is another's or none."""
        try:
            return os.readlink(self.path) == self.name
        except OSError:
            return False

    def append(self, text: str) -> bool:
        """Adds text, whole, also where several processes do.

        Args:
            text: With its own line ends.

        Returns:
            False where the file is not here.
        """
        if not self.is_here:
            return False
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, text.encode())
        finally:
            os.close(file)
        return True


def memory_file(purpose: str, text: str = "") -> tuple[int, MemoryFile]:
    """Makes a file, which a process that this one becomes holds too.

    Args:
        purpose: For its name.
        text: What is in it.

    Returns:
        The descriptor that holds it, and how to find it.
    """
    descriptor = os.memfd_create(f"trtllm-ext-{purpose}-{secrets.token_hex(8)}", 0)
    os.write(descriptor, text.encode())
    path = f"/proc/{os.getpid()}/fd/{descriptor}"
    return descriptor, MemoryFile(path=path, name=os.readlink(path))


@contextmanager
def held_memory_file(purpose: str) -> Iterator[MemoryFile]:
    """An empty file, there until the block ends.

    Args:
        purpose: For its name.
    """
    descriptor, file = memory_file(purpose)
    try:
        yield file
    finally:
        os.close(descriptor)
