# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Pictures: four formats, their size known before a pixel is decoded, upright RGB afterwards."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
from PIL import Image

from .budget import Budget
from .errors import MediaError

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
_MAX_SCANS = 64
"""Of a JPEG. Each may cost as much as the first; encoders write about ten."""
_START_OF_SCAN = b"\xff\xda"
# What Pillow raises for a broken file: unreadable (OSError, EOFError), broken (SyntaxError, of its
# PNG reader), absurd values (ValueError), a warning where those are made errors, or too large.
_BROKEN = (
    *(OSError, EOFError, SyntaxError, ValueError, Warning),
    Image.DecompressionBombError,
)
# And for broken EXIF, of which only the orientation is read.
_BROKEN_EXIF = (*_BROKEN, TypeError, LookupError, AttributeError, struct.error)
_ORIENTATION = 0x0112
_TURNS: dict[Any, Image.Transpose] = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What puts a picture upright, by its EXIF orientation; 1 is upright."""


def image_size(content: bytes, most_pixels: int, formats: tuple[str, ...] = FORMATS) -> int:
    """Check a picture by its header.

    Args:
        content: The file.
        most_pixels: Pixels that it may have.
        formats: What it may be, out of :data:`FORMATS`.

    Returns:
        Its pixels.

    Raises:
        MediaError: It is of another format, too large, or broken.
    """
    # Pillow makes room for the canvas of a WEBP as it opens it.
    _check_pixels(_webp_canvas(content), most_pixels)
    with _open(content, formats, most_pixels) as image:
        _check_pixels(image.size, most_pixels)
        scans = content.count(_START_OF_SCAN) if image.format in ("JPEG", "MPO") else 0
        if scans > _MAX_SCANS:
            raise MediaError(f"a JPEG has {scans:,} scans; at most {_MAX_SCANS} are decoded")
        return image.size[0] * image.size[1]


def decode_image(
    content: bytes, most_pixels: int, budget: Budget, formats: tuple[str, ...] = FORMATS
) -> Image.Image:
    """Decode a picture. Of an animation the first frame is taken.

    Args:
        content: The file.
        most_pixels: Pixels that it may have; checked on the header alone.
        budget: What its request may still take.
        formats: What it may be, out of :data:`FORMATS`.

    Returns:
        The picture in mode RGB, turned as its EXIF says. Alpha is dropped, as transformers'
        processors drop it; of 16 bits the upper 8 are kept.

    Raises:
        MediaError: It is of another format, too large, or broken.
    """
    budget.take_decoded(3 * image_size(content, most_pixels, formats))
    with _open(content, formats, most_pixels) as image:
        try:
            image.load()
            return _to_rgb(_upright(image))
        except _BROKEN:
            raise MediaError("a picture cannot be decoded; the file is broken or cut off") from None


def _open(content: bytes, formats: tuple[str, ...], most_pixels: int) -> Image.Image:
    try:
        return Image.open(io.BytesIO(content), formats=formats)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise MediaError(f"a picture has more than {most_pixels:,} pixels; shrink it") from None
    except _BROKEN:
        raise MediaError(
            f"a picture is broken or of another format; allowed: {', '.join(formats)}"
        ) from None


def _check_pixels(size: tuple[int, int], most: int) -> None:
    width, height = size
    if width * height > most:
        raise MediaError(f"a picture is {width} by {height} pixels; at most {most:,} are decoded")


def _webp_canvas(content: bytes) -> tuple[int, int]:
    """Width and height that a WEBP declares in its first chunk; 0 for anything else."""
    head = content[:30]
    if head[:4] != b"RIFF" or head[8:12] != b"WEBP" or len(head) < 30:
        return 0, 0
    kind = head[12:16]
    if kind == b"VP8X":
        return int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    width, height = (int.from_bytes(head[at : at + 2], "little") & 0x3FFF for at in (26, 28))
    return width, height


def _upright(image: Image.Image) -> Image.Image:
    """Turn it as its EXIF says; one whose EXIF cannot be read stays as it is."""
    try:
        turn = _TURNS.get(image.getexif().get(_ORIENTATION))
    except _BROKEN_EXIF:
        return image
    return image if turn is None else image.transpose(turn)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16 bits of grey, which Pillow would clip
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # else Pillow warns
    return image.convert("RGB")
