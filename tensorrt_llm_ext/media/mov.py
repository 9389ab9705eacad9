# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""How large the tables are that an MP4 or QuickTime file makes its reader build.

The file can name their length without holding them: a kilobyte can ask for gigabytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from .errors import MediaError

_MAX_BOXES = 2**16
"""Outermost ones. A fragment of a film has about three, and lasts a second or more."""
_ENTRY_BYTES = 64
"""That FFmpeg takes for each entry, rounded up from what was measured."""
# Sample sizes of a track, and of a fragment: type, flags, (size), number of entries.
_TABLES = {b"stsz": 12, b"stz2": 12, b"trun": 8}
_COMPRESSED = b"cmov"
_BROKEN = "the video is broken: its boxes do not fit the file"


def table_bytes(content: bytes) -> int:
    """Memory that a file's tables take when it is opened.

    Outside the media data every place is looked at that could be the head of a table, whether or
    not it is in a box where one belongs: readers differ in what they take for a box.

    Args:
        content: The file.

    Raises:
        MediaError: Its boxes are broken, or compressed.
    """
    entries = 0
    for start, end in _boxes_but_media_data(content):
        if content.find(_COMPRESSED, start, end) >= 0:
            raise MediaError("the video has a compressed header; such are not read")
        for name, offset in _TABLES.items():
            at = content.find(name, start, end)
            while at >= 0:
                entries += int.from_bytes(content[at + offset : at + offset + 4], "big")
                at = content.find(name, at + 1, end)
    return entries * _ENTRY_BYTES


def _boxes_but_media_data(content: bytes) -> Iterator[tuple[int, int]]:
    """Start and end of the boxes of a file, without ``mdat``."""
    at, size, count = 0, len(content), 0
    while at < size:
        count += 1
        if count > _MAX_BOXES:
            raise MediaError(f"the video has more than {_MAX_BOXES:,} boxes")
        length, head = int.from_bytes(content[at : at + 4], "big"), 8
        if length == 1:
            length, head = int.from_bytes(content[at + 8 : at + 16], "big"), 16
        elif length == 0:  # to the end
            length = size - at
        if length < head:
            raise MediaError(_BROKEN)
        if content[at + 4 : at + 8] != b"mdat":
            if at + length > size:  # what is inside could then be of any size too
                raise MediaError(_BROKEN)
            yield at, at + length
        at += length
