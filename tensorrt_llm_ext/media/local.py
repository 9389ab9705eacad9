# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Reads files of one folder, and nothing else."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from .errors import MediaError

_FILE_URL = re.compile(r"file://(?:localhost)?(?P<path>/[^?#]*)", re.IGNORECASE | re.ASCII)
_OFF = (
    "this server reads no files; send the bytes as a data URL, or have the operator set "
    "media_limits.allowed_local_media_path"
)
_REFUSED = (
    "the path does not lead to a regular file that can be read in the folder this server takes "
    "media from"
)
# NONBLOCK: opening a FIFO that took the file's place must not hang.
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class LocalFile:
    """A file that a request names.

    Attributes:
        path: Absolute.
        root: The folder that it must be in.
    """

    path: Path
    root: Path

    def read(self, most: int) -> bytes:
        """Read it, if it is a regular file inside the folder.

        Links may lead to it as long as they stay inside. Once the path is resolved, it is walked
        again without following any: what has become a link meanwhile is refused.

        Args:
            most: Bytes that it may have.

        Raises:
            MediaError: It is not there, not a regular file, not inside, or too large.
        """
        try:
            base = self.root.resolve(strict=True)
            parts = self.path.resolve(strict=True).relative_to(base).parts
            return _read_below(base, parts, most)
        except MediaError:
            raise
        except (OSError, ValueError, RuntimeError):  # outside: ValueError; links in a ring: either
            raise MediaError(_REFUSED) from None


def parse_local(source: str, root: Path | None) -> LocalFile:
    """Take a file URL or an absolute path apart; whether it is there is not looked at.

    Args:
        source: ``file:///path`` with percent codes, or the path as it is.
        root: The folder that files are read from; None: there is none.

    Raises:
        MediaError: It is of another form, or no files are read.
    """
    if root is None:
        raise MediaError(_OFF)
    text = source
    if source[:5].lower() == "file:":
        found = _FILE_URL.fullmatch(source)
        if found is None:
            raise MediaError("a file URL must be of the form file:///path")
        text = unquote(found["path"])
    if not text.startswith("/") or text.startswith("//") or "\0" in text:
        raise MediaError("a path must be absolute and plain")
    return LocalFile(Path(text), root)


def _read_below(base: Path, parts: tuple[str, ...], most: int) -> bytes:
    folder = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in parts[:-1]:
            inner = os.open(name, _FLAGS | os.O_DIRECTORY, dir_fd=folder)
            os.close(folder)
            folder = inner
        name = parts[-1] if parts else "."
        # Opening some devices has effects, so look first; and again at what was opened.
        if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise MediaError(_REFUSED)
        descriptor = os.open(name, _FLAGS, dir_fd=folder)
    finally:
        os.close(folder)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise MediaError(_REFUSED)
        content = file.read(most + 1)
    if len(content) > most:
        raise MediaError(f"the file has more than {most:,} bytes; name a smaller one", 413)
    return content
