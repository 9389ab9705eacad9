# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Case 36: data URLs."""

from __future__ import annotations

import threading
import time
import tracemalloc

import pytest
from media_files import data_url, picture

from tensorrt_llm_ext.media import MediaDoor, MediaError, MediaLimits, MediaPart
from tensorrt_llm_ext.media.data_url import parse_data_url

PNG, JPEG = picture("PNG"), picture("JPEG")
DOOR = MediaDoor(MediaLimits())


def refused(source: str, match: str, modality: str = "image", status: int = 400) -> None:
    part = MediaPart(modality, source)  # type: ignore[arg-type]
    with pytest.raises(MediaError, match=match) as caught:
        DOOR.open(part)  # checks what was not checked
    assert caught.value.status == status
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("media_type", ["image/png", "IMAGE/PNG", "image/jpeg"])
def test_case_36_a_picture(media_type: str) -> None:
    part = MediaPart("image", data_url(media_type, PNG))
    DOOR.check([part])
    assert DOOR.open(part).size == (32, 24)


@pytest.mark.parametrize(
    ("source", "match"),
    [
        ("data:", "must be of the form data:image/png;base64"),
        ("data:image/png;base64", "must be of the form"),
        ("data:image/png,AAAA", "must be of the form"),
        ("data:;base64,AAAA", "must be of the form"),
        ("data:image/png;charset=utf-8;base64,AAAA", "must be of the form"),
        ("data:image/png;base64;x," + "A" * 4, "must be of the form"),
        ("data:" + "a" * 10_000_000, "must be of the form"),
        ("data:text/html;base64,PGI+", "type text/html is no image here; allowed: image/png"),
        ("data:image/svg+xml;base64,PHN2Zz4=", r"type image/svg\+xml is no image"),
        ("data:video/mp4;base64,AAAA", "type video/mp4 is no image"),
        ("data:data:image/png;base64,AAAA", "must be of the form"),
        ("data:image/png;base64,data:image/png;base64,AAAA", "not valid base64"),
        ("data:image/png;base64,A", "not valid base64"),
        ("data:image/png;base64,AAA", "not valid base64"),
        ("data:image/png;base64,AA-_", "not valid base64"),
        ("data:image/png;base64,AA AA", "not valid base64"),
        ("data:image/png;base64,AAAA\n", "not valid base64"),
        ("data:image/png;base64,%41AAA", "not valid base64"),
        ("data:image/png;base64,é", "not valid base64"),
        ("data:image/png;base64,AAAA,AAAA", "not valid base64"),
        ("data:image/png;base64,", "broken or of another format"),
        ("data:image/png;base64,AAAA", "broken or of another format"),
    ],
    ids=lambda v: v[:40],
)
def test_case_36_broken_ones(source: str, match: str) -> None:
    refused(source, match)


def test_case_36_a_large_one_is_refused_by_its_length() -> None:
    source = "data:image/png;base64," + "A" * 100_000_000
    tracemalloc.start()
    start = time.monotonic()
    refused(source, "more than 67,108,864 bytes", status=413)
    assert time.monotonic() - start < 2
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


def test_case_36_the_length_that_counts_is_that_of_the_bytes() -> None:
    for door in (
        MediaDoor(MediaLimits(max_part_bytes=3 * -(-len(PNG) // 3))),
        MediaDoor(MediaLimits(max_request_bytes=3 * -(-len(PNG) // 3))),
    ):
        part = MediaPart("image", data_url("image/png", PNG))
        door.check([part])
        assert door.open(part).size == (32, 24)


def test_case_36_large_ones_decode_in_pieces() -> None:
    content = PNG + bytes(range(256)) * 4096
    for end in (2**18 // 4 * 3, 2**18 // 4 * 3 + 1, len(content)):
        (decoded,) = parse_data_url(data_url("image/png", content[:end]), "image").decode()
        assert decoded == content[:end]
    text = data_url("image/png", content)
    middle = text.index(",") + 2**18 - 1
    for wrong in ("=", "\n", "é"):
        refused(text[:middle] + wrong + text[middle + 1 :], "not valid base64")


def test_case_36_decoding_lets_other_threads_run() -> None:
    url = parse_data_url(data_url("image/png", bytes(30_000_000)), "image")
    gaps, last, done = [], time.perf_counter(), threading.Event()
    thread = threading.Thread(target=lambda: (url.decode(), done.set()))
    thread.start()
    while not done.is_set():
        time.sleep(0.001)
        now = time.perf_counter()
        gaps.append(now - last)
        last = now
    thread.join()
    assert len(gaps) > 10  # decoded at once, there would be one of half a second


def test_case_36_image_sequences() -> None:
    part = MediaPart("video", data_url("video/jpeg", *[JPEG] * 5))
    DOOR.check([part])
    film = DOOR.open(part)
    assert [frame.shape for frame in film["frames"]] == [(24, 32, 3)] * 5
    assert film["fps"] is None
    refused(data_url("video/jpeg", JPEG, PNG), "allowed: JPEG", "video")
    refused(data_url("video/jpeg", JPEG, b""), "broken", "video")
    refused(data_url("image/jpeg", JPEG, JPEG), "not valid base64", "image")
    refused(data_url("video/jpeg", JPEG) + ",data:video/jpeg;base64,AAAA", "not valid", "video")


def test_case_36_a_sequence_of_10000_frames_is_refused_before_any_is_decoded() -> None:
    source = data_url("video/jpeg", *[JPEG] * 10_000)
    start = time.monotonic()
    with pytest.raises(MediaError, match="has 10,000 frames; at most 256"):
        DOOR.check([MediaPart("video", source)])
    assert time.monotonic() - start < 2


def test_case_36_frames_of_a_sequence_share_the_requests_memory() -> None:
    size = 3 * 32 * 24
    for allowed, frames in ((5, 5), (4, 5)):
        door = MediaDoor(MediaLimits(max_decoded_bytes=allowed * size))
        part = MediaPart("video", data_url("video/jpeg", *[JPEG] * frames))
        door.check([part])
        if allowed == frames:
            assert len(door.open(part)["frames"]) == frames
        else:
            with pytest.raises(MediaError, match="when decoded"):
                door.open(part)
