# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Whatever comes in: a picture, a video, a clip, or a MediaError; and memory stays flat."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from media_files import clip, data_url, film, picture
from PIL import Image

from tensorrt_llm_ext.media import MediaDoor, MediaError, MediaLimits, MediaPart
from tensorrt_llm_ext.media.urls import parse_url

EXIF = Image.Exif()
EXIF[0x0112], EXIF[0x010E], EXIF[0x011A], EXIF[0x0132] = 6, "words", 72.5, "2026:01:01 00:00:00"
EXIF.get_ifd(0x8769)[0x9003] = "2026:01:01 00:00:00"
EXIF.get_ifd(0x8825)[0x0002] = (1.5, 2.5, 3.5)

LIMITS = MediaLimits(max_decoded_bytes=2**24, decode_timeout=5.0)
DOOR = MediaDoor(LIMITS)
SEEDS = {
    "image": [
        *(picture("PNG"), picture("PNG", mode="P"), picture("JPEG"), picture("WEBP")),
        *(picture("JPEG", progressive=True), picture("GIF"), picture("WEBP", lossless=True)),
        *(picture(form, (8, 8), exif=EXIF) for form in ("JPEG", "PNG", "WEBP")),
    ],
    "video": [
        *(film(frames=3), film("matroska", frames=3), film("webm", "libvpx", frames=3)),
        *(film("webm", "libvpx-vp9", frames=3), film(codec="mpeg4", frames=3)),
    ],
    "audio": [
        *(clip(seconds=0.1)[0], clip("flac", "flac", seconds=0.1)[0]),
        *(clip("mp3", "libmp3lame", seconds=0.1)[0], clip("wav", "pcm_f32le", seconds=0.1)[0]),
        clip("ogg", "libopus", rate=48000, seconds=0.1)[0],
    ],
}
SETTINGS = settings(
    max_examples=250,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@st.composite
def damaged(draw: st.DrawFn, modality: str) -> bytes:
    """A file with bytes overwritten, mostly in its head, removed, or added."""
    content = bytearray(draw(st.sampled_from(SEEDS[modality])))
    for _ in range(draw(st.integers(0, 4))):
        head = draw(st.booleans())
        at = draw(st.integers(0, min(len(content), 200 if head else len(content)) - 1))
        new = draw(
            st.binary(min_size=1, max_size=8)
            | st.sampled_from([b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff", b"\x80\0\0\0"])
        )
        if draw(st.integers(0, 5)) == 0:
            content[at:at] = new
        else:
            content[at : at + len(new)] = new
    return bytes(content[: draw(st.integers(1, len(content)))] if draw(st.booleans()) else content)


def attempt(modality: Any, source: str | bytes) -> None:
    """Open it; anything but a MediaError fails the test."""
    part, status, message = MediaPart(modality, source), 400, ""
    try:
        DOOR.check([part])
        DOOR.open(part)
    except MediaError as error:
        status, message = error.status, str(error)
    assert status in (400, 408, 413)
    assert "0x" not in message
    assert len(message) < 400


@pytest.mark.parametrize("modality", SEEDS)
def test_damaged_files(modality: str) -> None:
    for content in SEEDS[modality]:
        attempt(modality, content)
    process = psutil.Process()
    before = process.memory_info().rss
    slowest = 0.0

    @SETTINGS
    @given(damaged(modality) | st.binary(max_size=200))
    def check(content: bytes) -> None:
        nonlocal slowest
        start = time.monotonic()
        attempt(modality, content)
        slowest = max(slowest, time.monotonic() - start)

    check()
    assert process.memory_info().rss - before < 150e6
    assert slowest < 30


TOKENS = [
    *("data:", "image/png", "video/jpeg", ";base64", ",", "AAAA", "=", "/", "//", "http:"),
    *("https:", "file:", "media.example.com", "127.0.0.1", "@", "\\", ":", "80", "?", "#"),
    *("%00", "..", "[", "]"),
    *("::1", ".", " ", "\n", "\0", "é", "\ud800", data_url("image/png", SEEDS["image"][0])),
]  # fmt: skip
ANY_SOURCE = st.lists(st.sampled_from(TOKENS), max_size=8).map("".join) | st.text(max_size=60)


@SETTINGS
@given(st.sampled_from(["image", "video", "audio"]), ANY_SOURCE)
def test_any_source(modality: str, source: str) -> None:
    tracemalloc.start()
    attempt(modality, source)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5_000_000


@SETTINGS
@given(ANY_SOURCE)
def test_any_url_is_refused_or_to_the_listed_host(text: str) -> None:
    limits = MediaLimits(allowed_media_domains=["media.example.com"])
    try:
        url = parse_url(text, limits)
    except MediaError:
        return
    assert (url.host, url.port in (80, 443)) == ("media.example.com", True)
    assert url.target.startswith("/")
    assert url.target.isascii()
    assert url.target.isprintable()


def test_memory_is_flat_over_many_requests() -> None:
    process = psutil.Process()
    sizes = []
    for _ in range(6):
        for _ in range(20):
            for modality, contents in SEEDS.items():
                for content in contents:
                    attempt(modality, content)
                    attempt(modality, content[: len(content) // 2])
        sizes.append(process.memory_info().rss)
    assert sizes[-1] - sizes[1] < 20e6, sizes
