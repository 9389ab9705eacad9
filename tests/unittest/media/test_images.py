# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Cases 34 and 35: pictures that are too large, odd, broken, or no pictures."""

from __future__ import annotations

import io
import struct
import time
import warnings
import zlib

import numpy as np
import psutil
import pytest
from media_files import picture, png_of_zeros, saved
from PIL import Image, ImageOps

from tensorrt_llm_ext.media import MediaDoor, MediaError, MediaLimits, MediaPart

DOOR = MediaDoor(MediaLimits())


def opened(content: bytes, door: MediaDoor = DOOR) -> Image.Image:
    part = MediaPart("image", content)
    door.check([part])
    image = door.open(part)
    assert image.mode == "RGB"
    return image


def refused(content: bytes, match: str, door: MediaDoor = DOOR) -> None:
    with pytest.raises(MediaError, match=match) as caught:
        opened(content, door)
    assert caught.value.status == 400
    assert "0x" not in str(caught.value)
    assert "/" not in str(caught.value)
    assert caught.value.__cause__ is None  # what Pillow said has addresses
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def webp_head(width: int, height: int, kind: bytes) -> bytes:
    """A WEBP that declares a size and holds nothing."""
    if kind == b"VP8X":
        body = bytes(4) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    elif kind == b"VP8L":
        body = b"\x2f" + struct.pack("<I", width - 1 | height - 1 << 14) + bytes(5)
    else:
        body = bytes(3) + b"\x9d\x01\x2a" + struct.pack("<HH", width, height)
    chunk = kind + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk


@pytest.mark.parametrize("side", [8200, 13_000, 14_000])
def test_case_34_bombs_are_refused_by_their_header_alone(side: int) -> None:
    content = png_of_zeros(side, side)
    assert len(content) < 50_000
    process = psutil.Process()
    before, start = process.memory_info().rss, time.monotonic()
    for _ in range(5):
        refused(content, "pixels")
    assert time.monotonic() - start < 10
    assert process.memory_info().rss - before < 20e6


@pytest.mark.parametrize("kind", [b"VP8X", b"VP8L", b"VP8 "])
def test_case_34_webp_bombs_make_no_canvas(kind: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_canvas(*_: object, **__: object) -> None:
        raise RuntimeError("Pillow has begun")

    monkeypatch.setattr(Image, "open", no_canvas)
    refused(webp_head(16_383, 16_383, kind), "16383 by 16383 pixels; at most 64,000,000")


def test_case_34_the_cap_is_exact_and_under_pillows_warning() -> None:
    assert MediaLimits().max_image_pixels < Image.MAX_IMAGE_PIXELS * 0.8
    assert MediaLimits(max_image_pixels=80_000_000).max_image_pixels < Image.MAX_IMAGE_PIXELS
    for form in ("PNG", "JPEG", "WEBP", "GIF"):
        content = picture(form, (40, 25))
        opened(content, MediaDoor(MediaLimits(max_image_pixels=1000)))
        refused(content, "40 by 25", MediaDoor(MediaLimits(max_image_pixels=999)))


def test_case_34_pillows_guard_is_left_alone() -> None:
    before = Image.MAX_IMAGE_PIXELS
    opened(picture())
    refused(png_of_zeros(14_000, 14_000), "pixels")
    assert Image.MAX_IMAGE_PIXELS == before == 1024**3 // 4 // 3


def test_case_34_pictures_of_a_request_share_its_memory() -> None:
    door = MediaDoor(MediaLimits(max_decoded_bytes=2 * 3 * 32 * 24))
    parts = [MediaPart("image", picture()) for _ in range(3)]
    door.check(parts)
    door.open(parts[2])
    door.open(parts[0])
    with pytest.raises(MediaError, match="take more than 4,608 bytes when decoded"):
        door.open(parts[1])


def test_case_34_scans_of_a_jpeg_are_counted() -> None:
    content = picture("JPEG", progressive=True)
    assert 5 < content.count(b"\xff\xda") < 64
    opened(content)
    start = content.index(b"\xff\xda")
    scan = content[start : content.index(b"\xff", start + 2)]
    refused(content[:start] + scan * 65 + content[start:], r"a JPEG has 7\d scans; at most 64")


def test_case_34_packed_text_does_not_unpack() -> None:
    bomb = zlib.compress(bytes(50_000_000))
    body = b"comment\0\0" + bomb
    chunk = struct.pack(">I", len(body)) + b"zTXt" + body
    chunk += struct.pack(">I", zlib.crc32(b"zTXt" + body))
    content = picture()
    process = psutil.Process()
    before = process.memory_info().rss
    refused(content[:33] + chunk + content[33:], "broken")
    assert process.memory_info().rss - before < 20e6


@pytest.mark.parametrize("size", [(1, 1), (1, 10_000), (10_000, 1)])
@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF"])
def test_case_35_extreme_shapes(form: str, size: tuple[int, int]) -> None:
    assert opened(picture(form, size)).size == size


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"])
def test_case_35_modes_become_what_transformers_would_see(mode: str) -> None:
    form = "JPEG" if mode == "CMYK" else "PNG"
    image = Image.open(io.BytesIO(picture("PNG", (32, 24))))
    if mode == "I;16":
        values = np.arange(768, dtype=np.uint16).reshape(24, 32) * 85
        content, wanted = saved(Image.fromarray(values), form), values >> 8
        assert (np.asarray(opened(content)) == wanted[:, :, None]).all()
        return
    content = saved(image.convert(mode), form)
    wanted = Image.open(io.BytesIO(content)).convert("RGB")
    assert (np.asarray(opened(content)) == np.asarray(wanted)).all()


def test_case_35_a_palette_with_alpha_gives_no_warning() -> None:
    image = Image.open(io.BytesIO(picture())).convert("P")
    content = saved(image, "PNG", transparency=bytes(range(256)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = Image.open(io.BytesIO(content)).convert("RGB")
    assert (np.asarray(opened(content)) == np.asarray(wanted)).all()  # warnings are errors here


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_case_35_pictures_are_turned_as_their_exif_says(form: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = picture(form, exif=exif)
    turned = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
    image = opened(content)
    assert image.size == ((32, 24) if orientation < 5 else (24, 32))
    assert (np.asarray(image) == np.asarray(turned)).all()


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's, of what it finds broken
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_case_35_a_picture_with_broken_exif_is_still_a_picture(form: str) -> None:
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "words"
    content = picture(form, exif=exif)
    start = content.index(b"II*\0" if b"II*\0" in content else b"MM\0*")
    kinds = 0
    for at in range(start, start + 40):
        for value in (0, 1, 7, 255):
            damaged = bytearray(content)
            damaged[at] = value
            if form == "PNG":  # whose chunks have a checksum
                body = damaged.index(b"eXIf")
                size = int.from_bytes(damaged[body - 4 : body], "big")
                checksum = zlib.crc32(damaged[body : body + 4 + size])
                damaged[body + 4 + size : body + 8 + size] = checksum.to_bytes(4, "big")
            kinds += opened(bytes(damaged)).size == (32, 24)
    assert kinds  # some were no orientation any more


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG"])
def test_case_35_of_an_animation_the_first_frame_is_taken(form: str) -> None:
    frames = [Image.new("RGB", (32, 24), color) for color in ("#ff0000", "#00ff00", "#0000ff")]
    options = {"lossless": True} if form == "WEBP" else {}
    content = saved(frames[0], form, save_all=True, append_images=frames[1:], **options)
    assert Image.open(io.BytesIO(content)).n_frames == 3
    assert opened(content).getpixel((5, 5)) == (255, 0, 0)


def test_case_35_a_second_picture_in_a_jpeg_is_ignored() -> None:
    first = Image.new("RGB", (32, 24), "#ff0000")
    content = saved(first, "MPO", save_all=True, append_images=[Image.new("RGB", (9, 9))])
    assert opened(content).size == (32, 24)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF"])
def test_case_35_truncated_files(form: str) -> None:
    content = picture(form, (64, 48))
    for end in (0, 1, 4, 12, 20, 33, len(content) // 2, len(content) * 3 // 4):
        refused(content[:end], "broken")


@pytest.mark.parametrize(
    "form", ["TIFF", "BMP", "ICO", "PPM", "TGA", "JPEG2000", "PDF", "EPS", "AVIF"]
)
def test_case_35_other_formats_are_refused_whatever_they_are_called(form: str) -> None:
    if form not in Image.SAVE and not Image.init() and form not in Image.SAVE:
        pytest.skip(f"this Pillow writes no {form}")
    refused(picture(form), "of another format; allowed: PNG, JPEG, WEBP, GIF")


@pytest.mark.parametrize(
    "content",
    [
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"%PDF-1.7\n",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        struct.pack("<IHHHHHH", 128, 0xAF11, 1, 9, 9, 8, 3) + bytes(112),  # FLI
        b"\x89PNG\r\n\x1a\n<svg/>",
        b"GIF89a",
        b"RIFF\x04\0\0\0WEBP",
        b"\xff\xd8\xff",
        b"push graphic-context\nviewbox 0 0 640 480\n",
    ],
    ids=lambda c: repr(c[:12]),
)
def test_case_35_what_is_no_picture(content: bytes) -> None:
    refused(content, "broken or of another format")
