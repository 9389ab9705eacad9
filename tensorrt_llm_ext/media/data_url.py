# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Data URLs: ``data:image/png;base64,...``."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass

from .errors import MediaError

_LONGEST_HEAD = 128
_PIECE = 2**18
"""Characters; a multiple of four, so that pieces decode on their own."""
_HEAD = re.compile(r"data:(?P<type>[a-z0-9.+-]+/[a-z0-9.+-]+);base64", re.IGNORECASE | re.ASCII)
_TYPES = {
    "image": ("image/png", "image/jpeg", "image/jpg", "image/webp", "image/gif"),
    "video": ("video/mp4", "video/quicktime", "video/webm", "video/x-matroska", "video/jpeg"),
    "audio": (
        *("audio/wav", "audio/x-wav", "audio/wave", "audio/vnd.wave", "audio/mpeg", "audio/mp3"),
        *("audio/flac", "audio/x-flac", "audio/ogg"),
    ),
}
SEQUENCE = "video/jpeg"
"""Frames of a video, one JPEG each, separated by commas."""


@dataclass(frozen=True)
class DataUrl:
    """A data URL whose content is not decoded yet.

    Attributes:
        media_type: In lower case, such as ``"image/png"``.
        text: The whole URL.
        start: Where its base64 text starts.
    """

    media_type: str
    text: str
    start: int

    @property
    def size(self) -> int:
        """Bytes that it holds, at most."""
        return 3 * ((len(self.text) - self.start + 3) // 4)

    @property
    def files(self) -> int:
        """How many files it holds."""
        if self.media_type != SEQUENCE:
            return 1
        return self.text.count(",", self.start) + 1

    def decode(self) -> list[bytes]:
        """The files that it holds.

        Raises:
            MediaError: Something in it is not base64.
        """
        if self.files == 1:
            return [_decode(self.text, self.start, len(self.text))]
        files, start = [], self.start
        while start <= len(self.text):
            end = self.text.find(",", start)
            end = len(self.text) if end < 0 else end
            files.append(_decode(self.text, start, end))
            start = end + 1
        return files


def parse_data_url(text: str, modality: str) -> DataUrl:
    """Read the head of a data URL.

    Args:
        text: The URL.
        modality: What it is to hold.

    Raises:
        MediaError: It has another form, or another type.
    """
    comma = text.find(",", 0, _LONGEST_HEAD)
    head = _HEAD.fullmatch(text[: max(comma, 0)])
    if head is None:
        raise MediaError(
            f"a data URL must be of the form data:{_TYPES[modality][0]};base64,... with plain "
            "base64 after the comma"
        )
    media_type = head["type"].lower()
    if media_type not in _TYPES[modality]:
        raise MediaError(
            f"a data URL of type {media_type} is no {modality} here; allowed: "
            f"{', '.join(_TYPES[modality])}"
        )
    return DataUrl(media_type, text, comma + 1)


def _decode(text: str, start: int, end: int) -> bytes:
    """Bytes of a stretch of base64 text, a piece at a time: each holds up all other threads."""
    pieces = []
    for at in range(start, end, _PIECE):
        piece = text[at : min(at + _PIECE, end)]
        last = at + _PIECE >= end
        try:
            if "=" in piece and not last:
                raise ValueError("padding in the middle")
            pieces.append(base64.b64decode(piece, validate=True))
        except ValueError:  # of base64 too, and of what is not ASCII
            raise MediaError(
                "a data URL is not valid base64: letters, digits, + and / alone, filled up with ="
            ) from None
    return b"".join(pieces)
