# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Videos: what is kept of them, and cases 33 and 36 of what is refused."""

from __future__ import annotations

import io
import struct
import time
import tracemalloc
from typing import Any

import av
import numpy as np
import psutil
import pytest
from media_files import film, picture, with_boxes

from tensorrt_llm_ext.media import MediaDoor, MediaError, MediaLimits, MediaPart, video
from tensorrt_llm_ext.media.budget import Budget
from tensorrt_llm_ext.media.clock import Clock
from tensorrt_llm_ext.media.containers import open_container
from tensorrt_llm_ext.media.mov import table_bytes

DOOR = MediaDoor(MediaLimits())


def opened(content: bytes, **limits: Any) -> dict[str, Any]:
    door = MediaDoor(MediaLimits(**limits))
    part = MediaPart("video", content)
    door.check([part])
    made: dict[str, Any] = door.open(part)
    assert all(frame.dtype == np.uint8 for frame in made["frames"])
    return made


def refused(content: bytes, match: str, status: int = 400, **limits: Any) -> None:
    with pytest.raises(MediaError, match=match) as caught:
        opened(content, **limits)
    assert caught.value.status == status
    assert "0x" not in str(caught.value)


def greys(made: dict[str, Any]) -> list[int]:
    """Mean grey of each frame."""
    return [round(float(frame.mean())) for frame in made["frames"]]


@pytest.mark.parametrize(
    ("form", "codec"),
    [
        *(("mp4", "libx264"), ("mov", "libx264"), ("matroska", "libx264"), ("mp4", "mpeg4")),
        *(("webm", "libvpx"), ("webm", "libvpx-vp9"), ("mp4", "libvpx-vp9")),
    ],
)
def test_frames_are_kept_at_an_even_pace(form: str, codec: str) -> None:
    made = opened(film(form, codec))  # 50 frames in 2 seconds
    assert [frame.shape for frame in made["frames"]] == [(48, 64, 3)] * 4
    assert greys(made) == pytest.approx([0, 65, 125, 190], abs=4)  # frames 0, 13, 25, 38
    assert made["fps"] == pytest.approx(3 / (38 / 25))


def test_no_more_frames_than_there_are() -> None:
    made = opened(film(frames=3, rate=1), video_fps=30.0)
    assert greys(made) == pytest.approx([0, 5, 10], abs=3)
    assert made["fps"] == pytest.approx(1.0)
    assert opened(film(frames=1))["fps"] == pytest.approx(2.0)


def test_a_long_video_is_sampled_more_sparsely() -> None:
    made = opened(film(), video_fps=25.0, max_video_frames=5)
    assert greys(made) == pytest.approx([0, 50, 100, 150, 200], abs=4)
    assert made["fps"] == pytest.approx(2.5)


def test_a_video_whose_header_is_silent_is_thinned_while_it_is_decoded() -> None:
    whole = film("matroska", frames=40)
    place = whole.index(b"\x44\x89\x88")  # the element Duration, 8 bytes
    silent = whole[: place + 3] + bytes(8) + whole[place + 11 :]
    made = opened(silent, video_fps=25.0, max_video_frames=8)
    assert 5 <= len(made["frames"]) <= 8
    assert greys(made) == pytest.approx([40 * i for i in range(len(made["frames"]))], abs=4)
    assert made["fps"] == pytest.approx(25 / 8)
    refused(silent, "when decoded", max_decoded_bytes=3 * 3 * 64 * 48)


@pytest.mark.parametrize("quarters", [0, 1, 2, 3])
def test_videos_are_turned_as_the_file_says(quarters: int) -> None:
    cos, sin = [(1, 0), (0, 1), (-1, 0), (0, -1)][quarters]
    matrix = struct.pack(">9i", cos << 16, sin << 16, 0, -sin << 16, cos << 16, 0, 0, 0, 1 << 30)

    def turn(name: bytes, body: bytes) -> bytes:
        return body[:40] + matrix + body[76:] if name == b"tkhd" else body

    (frame,) = opened(with_boxes(film(frames=1), turn))["frames"]
    assert frame.shape == ((48, 64, 3) if quarters % 2 == 0 else (64, 48, 3))


def test_turned_the_right_way(tmp_path: Any) -> None:
    """A matrix that turns clockwise, as phones write it for a video held upright."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as out:
        stream = out.add_stream("libx264", rate=1)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        values = np.zeros((48, 64, 3), np.uint8)
        values[:24] = 255  # white on top
        out.mux(stream.encode(av.VideoFrame.from_ndarray(values, format="rgb24")))
        out.mux(stream.encode(None))
    matrix = struct.pack(">9i", 0, 1 << 16, 0, -1 << 16, 0, 0, 0, 0, 1 << 30)
    content = with_boxes(
        file.getvalue(), lambda n, b: b[:40] + matrix + b[76:] if n == b"tkhd" else b
    )
    (frame,) = opened(content)["frames"]
    assert frame[:, 40:].mean() > 200  # on the right
    assert frame[:, :24].mean() < 50


def test_case_33_seconds() -> None:
    opened(film(), max_video_seconds=2.1)
    refused(film(), "longer than 1.9 seconds", max_video_seconds=1.9)


def test_case_33_the_header_is_enough_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video, "_frames", None)  # nothing is decoded
    refused(film(), "longer than 1.9 seconds", max_video_seconds=1.9)
    refused(film(), "more than 49 frames", max_video_source_frames=49)


def test_case_33_seconds_are_counted_again_while_decoding() -> None:
    whole = film("matroska")
    place = whole.index(b"\x44\x89\x88")
    lying = whole[: place + 3] + struct.pack(">d", 100.0) + whole[place + 11 :]  # 0.1 seconds
    opened(lying)
    refused(lying, "longer than 1.5 seconds", max_video_seconds=1.5)


@pytest.mark.parametrize("form", ["mp4", "matroska"])  # of which only the first says how many
def test_case_33_frames(form: str) -> None:
    opened(film(form), max_video_source_frames=50)
    refused(film(form), "more than 49 frames", max_video_source_frames=49)


def test_case_33_pixels_by_the_header() -> None:
    opened(film(), max_video_pixels=64 * 48)
    refused(film(), "64 by 48 pixels; at most 3,071", max_video_pixels=3071)
    for content in (film("webm", "libvpx-vp9"), film(codec="mpeg4")):
        refused(content, "64 by 48 pixels; at most 3,071|more than 3,071", max_video_pixels=3071)


def test_case_33_pixels_while_decoding() -> None:
    """Room for a frame that is larger than the header says is not even made."""
    grows = film("matroska", "libvpx-vp9", then=(5, (640, 480)))
    refused(grows, "cannot be decoded", video_fps=25.0, max_video_pixels=64 * 48)


def test_frames_of_different_sizes() -> None:
    grows = film("matroska", "libvpx-vp9", then=(5, (128, 96)))
    refused(grows, "change their size", video_fps=25.0)


def test_case_33_memory_is_paid_for_before_decoding() -> None:
    size = 3 * 64 * 48
    made = opened(film(), max_decoded_bytes=4 * size + 50 * 64)
    assert len(made["frames"]) == 4
    refused(film(), "when decoded", max_decoded_bytes=3 * size)


def test_case_33_time_of_a_sequence() -> None:
    with pytest.raises(TimeoutError):
        video.decode_sequence([picture("JPEG")], MediaLimits(), Budget(0, 10**6), Clock(0.0))


def test_case_33_time() -> None:
    part = MediaPart("video", film(codec="mpeg4", frames=500, size=(320, 240)))
    start = time.monotonic()
    with pytest.raises(MediaError, match="decoding the video took too long") as caught:
        DOOR.open(part, deadline=start + 0.02)
    assert caught.value.status == 408
    assert time.monotonic() - start < 10
    refused(film(), "took too long", 408, decode_timeout=1e-4)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"x", b"\0" * 100, picture("GIF"), b"#EXTM3U\nhttp://127.0.0.1/a.ts\n"),
        *(b"ffconcat version 1.0\nfile /etc/passwd\n", film("avi", "mpeg4"), film("mpegts")),
        *(film("flv", "libx264"), b"\x1a\x45\xdf\xa3", b"\0\0\0\x08ftyp", b"\0\0\0\0moov"),
    ],
    ids=lambda c: repr(c[:12]),
)
def test_other_containers_are_refused(content: bytes) -> None:
    refused(content, "another format; allowed: MP4|cannot be decoded|no stream|broken")


@pytest.mark.parametrize(
    ("form", "codec"), [("matroska", "mjpeg"), ("mov", "prores"), ("matroska", "ffv1")]
)
def test_other_codecs_are_refused(form: str, codec: str) -> None:
    file = io.BytesIO()
    with av.open(file, "w", format=form) as out:
        stream = out.add_stream(codec, rate=1)
        stream.width, stream.height = 64, 48
        stream.pix_fmt = {"mjpeg": "yuvj420p", "prores": "yuv422p10le"}.get(codec, "yuv420p")
        out.mux(stream.encode(av.VideoFrame(64, 48, stream.pix_fmt)))
        out.mux(stream.encode(None))
    refused(file.getvalue(), "no stream of a codec that is decoded; allowed: H.264")


def test_streams_beyond_the_sixteenth_are_not_looked_at() -> None:
    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as out:
        streams = [out.add_stream("mpeg4", rate=1) for _ in range(20)]
        for stream in streams:
            stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for stream in streams:
            out.mux(stream.encode(av.VideoFrame(64, 48, "yuv420p")))
    assert len(opened(file.getvalue())["frames"]) == 1
    with open_container(file.getvalue(), "video", 10**4, Budget(0, 0), Clock(9)) as (container, _):
        assert len(container.streams) == 16


def test_names_in_a_file_may_be_in_any_encoding() -> None:
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as out:
        out.metadata["title"] = "naiveXX"
        stream = out.add_stream("mpeg4", rate=1)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        out.mux(stream.encode(av.VideoFrame(64, 48, "yuv420p")))
    assert b"naiveXX" in file.getvalue()
    assert len(opened(file.getvalue().replace(b"naiveXX", b"na\xefve\xff\xfe"))["frames"]) == 1


def test_ffmpeg_is_given_no_way_to_open_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def spy(file: Any, **options: Any) -> None:
        seen.update(options, file=file)
        raise ValueError("enough")

    content = film(frames=1)
    monkeypatch.setattr(av, "open", spy)
    refused(content, "cannot be decoded")
    assert isinstance(seen["file"], io.BytesIO)
    assert seen["format"] == "mov"
    assert "h264" in seen["options"]["codec_whitelist"]  # no other decoder looks at the streams
    assert "mjpeg" not in seen["options"]["codec_whitelist"]
    with pytest.raises(OSError, match="refer to no other files"):
        seen["io_open"]("file:///etc/passwd", 1, {})


@pytest.mark.parametrize("form", ["mp4", "matroska"])
def test_truncated_and_damaged_videos(form: str) -> None:
    content = film(form, frames=10)
    for end in range(0, len(content), max(1, len(content) // 40)):
        try:
            opened(content[:end])
        except MediaError:
            continue


def with_table(count: int, name: bytes = b"stsz") -> bytes:
    """An MP4 of a few kB whose tables claim a number of entries."""
    bodies = {
        b"stsz": struct.pack(">III", 0, 1, count),
        b"stsc": struct.pack(">IIIII", 0, 1, 1, count, 1),
        b"stts": struct.pack(">IIII", 0, 1, count, 512),
        b"ctts": b"",
        b"stss": b"",
    }
    content = with_boxes(film(frames=4), lambda n, b: bodies.get(n, b))
    return content if name == b"stsz" else content.replace(b"stsz", name)


def test_case_33_a_small_file_cannot_ask_for_a_large_table() -> None:
    """FFmpeg alone takes gigabytes for a table of 40 million entries: measured."""
    process = psutil.Process()
    before, start = process.memory_info().rss, time.monotonic()
    for name in (b"stsz", b"stz2"):
        refused(with_table(40_000_000, name), "when decoded")
    fragment = struct.pack(">I4sII", 16, b"trun", 0, 40_000_000)
    moof = struct.pack(">I4s", 8 + len(fragment), b"moof") + fragment
    refused(film(frames=2) + moof, "when decoded")
    free = struct.pack(">I4s", 8 + len(fragment), b"free") + fragment  # some readers look inside
    refused(film(frames=2) + free, "when decoded")
    assert process.memory_info().rss - before < 50e6
    assert time.monotonic() - start < 10


def test_case_33_edits_cannot_multiply_the_frames() -> None:
    edits = struct.pack(">II", 0, 30_000) + struct.pack(">IiHH", 100, 0, 1, 0) * 30_000
    content = with_boxes(film(frames=36), lambda n, b: edits if n == b"elst" else b)
    start = time.monotonic()
    assert len(opened(content)["frames"]) == 3
    assert time.monotonic() - start < 4


def test_case_33_millions_of_boxes_are_not_walked_through() -> None:
    tracemalloc.start()
    try:
        refused(film(frames=2) + b"\0\0\0\x08free" * 200_000, "more than 65,536 boxes")
        assert tracemalloc.get_traced_memory()[1] < 8e6
    finally:
        tracemalloc.stop()


def test_tables_are_found_outside_the_media_data_alone() -> None:
    content = film(frames=4)
    assert table_bytes(content) == 4 * 64
    media = struct.pack(">I4s", 24, b"mdat") + struct.pack(">4sIII", b"stsz", 0, 1, 10**9)
    assert table_bytes(content + media) == 4 * 64
    long = struct.pack(">I4sQ", 1, b"mdat", 32) + struct.pack(">4sIII", b"stsz", 0, 1, 10**9)
    assert table_bytes(content + long) == 4 * 64
    rest = struct.pack(">I4s", 0, b"mdat") + b"stsz" * 10
    assert table_bytes(content + rest) == 4 * 64
    for broken in (b"\0\0\0\x04free", b"\x7f\0\0\0moov", b"\0\0\0\x01free" + bytes(8)):
        with pytest.raises(MediaError, match="boxes"):
            table_bytes(content + broken)
    with pytest.raises(MediaError, match="compressed header"):
        table_bytes(content + struct.pack(">I4s4s", 12, b"moov", b"cmov"))
