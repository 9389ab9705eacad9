# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Sound files without what is no sound: tags, whose readers take sizes and packed data on trust."""

from __future__ import annotations

import struct

from .errors import MediaError

_LONGEST_FORMAT = 64
_MAX_CHUNKS = 4096
"""Before the samples, or tags before the first frame: others have a few."""
_BROKEN = "the audio is broken: no WAV file with a format and data"


def plain_wav(content: bytes) -> bytes:
    """A WAV file with nothing but its format and its samples.

    Args:
        content: Starts with RIFF and WAVE.

    Raises:
        MediaError: It has no format, or no data after it.
    """
    form, at = b"", 12
    for _ in range(_MAX_CHUNKS):
        if at + 8 > len(content):
            break
        name, size = content[at : at + 4], int.from_bytes(content[at + 4 : at + 8], "little")
        at += 8
        if name == b"data" and form:
            # Who writes into a pipe cannot know the size, and leaves nothing or the largest number.
            samples = content[at : at + size] if size else content[at:]
            head = struct.pack("<4sI", b"fmt ", len(form)) + form
            head += struct.pack("<4sI", b"data", len(samples))
            whole = struct.pack("<4sI4s", b"RIFF", 4 + len(head) + len(samples), b"WAVE")
            return whole + head + samples
        if name == b"fmt " and size <= _LONGEST_FORMAT:
            form = content[at : at + size]
        at += size + size % 2
    raise MediaError(_BROKEN)


def without_id3(content: bytes) -> bytes:
    """What follows the ID3 tags at the start of a file.

    Args:
        content: May start with tags.

    Raises:
        MediaError: There are too many of them.
    """
    at = count = 0
    while content[at : at + 3] == b"ID3":
        count += 1
        if count > _MAX_CHUNKS:
            raise MediaError(f"the audio has more than {_MAX_CHUNKS:,} tags")
        digits = content[at + 6 : at + 10]  # seven bits each
        size = sum(
            (digit & 0x7F) << shift for digit, shift in zip(digits, (21, 14, 7, 0), strict=False)
        )
        at += 10 + size
    return content[at:]
