# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Case 33: what a request may bring, told before anything is fetched or decoded."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from media_files import clip, data_url, film, picture
from PIL import Image

from tensorrt_llm_ext.engine.errors import RequestError
from tensorrt_llm_ext.engine.media_inputs import MediaInputs
from tensorrt_llm_ext.media import MediaDoor, MediaError, MediaLimits, MediaPart
from tensorrt_llm_ext.media import door as module

PNG = picture()
FILES = {"image": PNG, "video": film(frames=10), "audio": clip()[0]}


@pytest.fixture
def nothing_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fetching, reading and decoding are bugs."""

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("this must not be called")

    for name in ("decode_image", "decode_video", "decode_audio", "decode_sequence"):
        monkeypatch.setattr(module, name, fail)
    monkeypatch.setattr(module.LocalFile, "read", fail)
    monkeypatch.setattr(module.Fetcher, "fetch", fail)
    monkeypatch.setattr(module.DataUrl, "decode", fail)


@pytest.mark.usefixtures("nothing_is_opened")
@pytest.mark.parametrize("modality", ["image", "video", "audio"])
def test_case_33_parts_are_counted_by_kind(modality: Any) -> None:
    door = MediaDoor(MediaLimits(**{f"max_{modality}s": 2}))
    parts = [MediaPart(modality, FILES[modality]) for _ in range(3)]
    door.check(parts[:2])
    match = rf"has 3 parts of type {modality}; at most 2 \(media_limits.max_{modality}s\)"
    with pytest.raises(MediaError, match=match) as caught:
        door.check(parts)
    assert caught.value.status == 400
    with pytest.raises(MediaError, match="at most 0"):
        MediaDoor(MediaLimits(**{f"max_{modality}s": 0})).check(parts[:1])


@pytest.mark.usefixtures("nothing_is_opened")
@pytest.mark.parametrize("source", [bytes(3001), data_url("image/png", bytes(3001))])
def test_case_33_bytes_are_counted(source: str | bytes) -> None:
    part = MediaPart("image", source)
    MediaDoor(MediaLimits(max_part_bytes=3003)).check([part])
    with pytest.raises(MediaError, match="the image has more than 3,000 bytes") as caught:
        MediaDoor(MediaLimits(max_part_bytes=3000)).check([part])
    assert caught.value.status == 413
    MediaDoor(MediaLimits(max_request_bytes=6006)).check([part, part])
    with pytest.raises(MediaError, match="more than 6,000 bytes together") as caught:
        MediaDoor(MediaLimits(max_request_bytes=6000)).check([part, part])
    assert caught.value.status == 413


@pytest.mark.usefixtures("nothing_is_opened")
def test_check_names_what_it_does_not_know() -> None:
    door = MediaDoor(MediaLimits())
    for source in ("", "picture.png", "blob:x", "a" * 10_000_000, "javascript:1", "\0"):
        with pytest.raises(MediaError, match="neither a data, http, https or file URL nor an"):
            door.check([MediaPart("image", source)])


def test_errors_are_request_errors() -> None:
    assert issubclass(MediaError, RequestError)
    assert MediaError("x").status == 400


def test_the_limit_is_of_the_request_not_of_the_door() -> None:
    door = MediaDoor(MediaLimits(max_request_bytes=len(PNG), max_decoded_bytes=3 * 32 * 24))
    for _ in range(3):
        part = MediaPart("image", PNG)
        door.check([part])
        door.open(part)
        door.open(MediaPart("image", PNG))  # one that was not checked is checked now


def test_opening_twice_counts_twice() -> None:
    door = MediaDoor(MediaLimits(max_decoded_bytes=3 * 32 * 24))
    part = MediaPart("image", PNG)
    door.check([part])
    door.open(part)
    with pytest.raises(MediaError, match="when decoded"):
        door.open(part)


@pytest.mark.parametrize("modality", FILES)
def test_a_deadline_that_is_over(modality: Any) -> None:
    with pytest.raises(MediaError, match="took too long") as caught:
        MediaDoor(MediaLimits()).open(MediaPart(modality, FILES[modality]), deadline=0.0)
    assert caught.value.status == 408


def test_what_comes_out_is_what_the_engine_takes(tiny_checkpoint: Any) -> None:
    media, door = MediaInputs(tiny_checkpoint), MediaDoor(MediaLimits())
    for modality, source in (
        ("image", PNG),
        ("video", FILES["video"]),
        ("video", data_url("video/jpeg", *[picture("JPEG", (64, 64))] * 3)),
    ):
        item = media.plan(modality, door.open(MediaPart(modality, source)))  # type: ignore[arg-type]
        assert media.load(item)["pixel_values"].shape[0] == item.num_rows


def test_one_door_serves_many_threads() -> None:
    door = MediaDoor(MediaLimits())
    wanted = {m: door.open(MediaPart(m, source)) for m, source in FILES.items()}  # type: ignore[arg-type]
    barrier = threading.Barrier(8)

    def work(index: int) -> None:
        barrier.wait()
        for modality, source in FILES.items():
            part = MediaPart(modality, source)  # type: ignore[arg-type]
            door.check([part])
            got = door.open(part)
            if modality == "image":
                assert got.tobytes() == wanted["image"].tobytes()
            elif modality == "audio":
                assert (got[0] == wanted["audio"][0]).all()
            else:
                assert np.array_equal(got["frames"], wanted["video"]["frames"])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def test_pictures_of_one_request_on_threads_share_one_budget() -> None:
    door = MediaDoor(MediaLimits(max_decoded_bytes=4 * 3 * 32 * 24))
    parts = [MediaPart("image", PNG) for _ in range(8)]
    door.check(parts)

    def attempt(part: MediaPart) -> bool:
        try:
            return isinstance(door.open(part), Image.Image)
        except MediaError:
            return False

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, parts)) == 4


def test_checking_is_cheap() -> None:
    door = MediaDoor(MediaLimits())
    parts = [MediaPart("image", data_url("image/png", bytes(3_000_000))) for _ in range(32)]
    start = time.monotonic()
    door.check(parts)
    assert time.monotonic() - start < 2
