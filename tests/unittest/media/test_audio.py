# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Sound clips."""

from __future__ import annotations

import resource
import struct
import time
import zlib
from typing import Any

import numpy as np
import psutil
import pytest
from media_files import clip, film

from tensorrt_llm_ext.media import MediaDoor, MediaError, MediaLimits, MediaPart


def opened(content: bytes, **limits: Any) -> tuple[np.ndarray, int]:
    door = MediaDoor(MediaLimits(**limits))
    part = MediaPart("audio", content)
    door.check([part])
    samples, rate = door.open(part)
    assert samples.dtype == np.float32
    return samples, rate


def refused(content: bytes, match: str, status: int = 400, **limits: Any) -> None:
    with pytest.raises(MediaError, match=match) as caught:
        opened(content, **limits)
    assert caught.value.status == status


def wav_head(channels: int, rate: int) -> bytes:
    """A WAV of four bytes of sound."""
    body = struct.pack("<HHIIHH", 1, channels, rate, 2 * rate, 2, 16)
    return b"RIFF\0\0\0\0WAVEfmt " + struct.pack("<I", 16) + body + b"data\x04\0\0\0abcd"


@pytest.mark.parametrize(
    ("form", "codec", "error"),
    [
        *(("wav", "pcm_s16le", 0), ("wav", "pcm_s24le", 0), ("wav", "pcm_s32le", 0)),
        *(("wav", "pcm_f32le", 0), ("wav", "pcm_f64le", 0), ("wav", "pcm_u8", 1 / 128)),
        ("flac", "flac", 0),
    ],
)
@pytest.mark.parametrize("layout", ["mono", "stereo", "5.1"])
def test_samples_are_those_of_the_file(form: str, codec: str, error: float, layout: str) -> None:
    content, wanted = clip(form, codec, layout=layout)
    samples, rate = opened(content)
    assert rate == 16000
    channels = {"mono": 1, "stereo": 2, "5.1": 6}[layout]
    assert samples.shape == ((8000,) if channels == 1 else (8000, channels))
    expected = wanted.astype(np.float32) / 32768
    assert np.abs(samples.reshape(8000, channels) - expected[:, None]).max() <= error


@pytest.mark.parametrize(
    ("form", "codec", "rate"),
    [("mp3", "libmp3lame", 16000), ("mp3", "libmp3lame", 44100), ("ogg", "libopus", 48000)],
)
def test_lossy_formats(form: str, codec: str, rate: int) -> None:
    content, wanted = clip(form, codec, rate=rate)
    samples, found = opened(content)
    assert found == rate
    assert abs(len(samples) - len(wanted)) < rate / 10
    middle = slice(rate // 10, rate // 3)
    error = samples[middle] - wanted[middle] / 32768
    assert np.sqrt((error**2).mean()) < 0.05


def test_case_33_seconds() -> None:
    content, _ = clip(seconds=1.0)
    opened(content, max_audio_seconds=1.0)
    refused(content, "longer than 0.9 seconds", max_audio_seconds=0.9)


def test_case_33_seconds_are_counted_again_while_decoding() -> None:
    content, _ = clip("flac", "flac", seconds=1.0)
    silent = bytearray(content)
    silent[21] &= 0xF0  # of the number of samples, 36 bits, 0 is unknown
    silent[22:26] = bytes(4)
    assert len(opened(bytes(silent))[0]) == 16000
    refused(bytes(silent), "longer than 0.9 seconds", max_audio_seconds=0.9)
    refused(bytes(silent), "when decoded", max_decoded_bytes=4 * 15_999)
    opened(bytes(silent), max_decoded_bytes=4 * 16_000)


def test_case_33_memory_is_paid_for_before_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    content, _ = clip(layout="stereo")
    opened(content, max_decoded_bytes=8000 * 2 * 4)
    from tensorrt_llm_ext.media import audio

    monkeypatch.setattr(audio, "_samples", None)  # nothing is decoded
    refused(content, "when decoded", max_decoded_bytes=8000 * 2 * 4 - 1)


@pytest.mark.parametrize("value", [b"\1\0\x80\x7f", b"\0\0\x80\x7f"])  # a signalling NaN; infinity
def test_what_is_no_number_is_left_to_the_engine(value: bytes) -> None:
    content, _ = clip("wav", "pcm_f32le")
    samples, _ = opened(content[:-4] + value)
    assert not np.isfinite(samples[-1])
    assert np.isfinite(samples[:-1]).all()


def test_case_33_channels() -> None:
    content, _ = clip(layout="hexadecagonal")
    refused(content, "16 channels; at most 8")


def test_case_33_time() -> None:
    content, _ = clip(seconds=500.0)
    part = MediaPart("audio", content)
    start = time.monotonic()
    with pytest.raises(MediaError, match="decoding the audio took too long") as caught:
        MediaDoor(MediaLimits()).open(part, deadline=start + 0.02)
    assert caught.value.status == 408
    assert time.monotonic() - start < 10


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"RIFF", b"RIFF\0\0\0\0WAVE", b"ID3", b"\xff\xfb", b"fLaC", b"OggS", b"x" * 500),
        *(clip("adts", "aac")[0], clip("aiff", "pcm_s16be")[0], film("matroska")),
        *(clip("wav", "pcm_mulaw")[0], clip("wav", "adpcm_ima_wav")[0]),
        wav_head(channels=0, rate=16000),
        wav_head(channels=1, rate=0),
        wav_head(channels=65535, rate=16000),
    ],
    ids=lambda c: repr(c[:12]),
)
def test_what_is_not_taken(content: bytes) -> None:
    refused(content, "another format; allowed: WAV|cannot be|broken|no stream|no samples|channels")


def chunk(name: bytes, body: bytes, size: int | None = None) -> bytes:
    """A chunk of a RIFF file, padded to an even length, that may lie about its size."""
    return (
        name
        + struct.pack("<I", len(body) if size is None else size)
        + body
        + b"\0"[: len(body) % 2]
    )


def parts_of(wav: bytes) -> tuple[bytes, bytes]:
    """Format and samples of a WAV file."""
    start = wav.index(b"data")
    return wav[20:36], wav[start + 8 :]


def test_chunks_that_are_no_sound_are_passed_over() -> None:
    content, _ = clip()
    wanted, _ = opened(content)
    form, samples = parts_of(content)
    odd = chunk(b"JUNK", b"odd")
    for body in (
        chunk(b"fmt ", form) + chunk(b"data", samples),
        odd + chunk(b"fmt ", form) + odd + chunk(b"data", samples) + odd,
        chunk(b"fmt ", form) + chunk(b"data", samples, 0),  # by a program that wrote into a pipe
        chunk(b"fmt ", form) + chunk(b"data", samples, 0xFFFFFFFF),
    ):
        found, rate = opened(b"RIFF\0\0\0\0WAVE" + body)
        assert rate == 16000
        assert (found == wanted).all()
    refused(b"RIFF\0\0\0\0WAVE" + chunk(b"data", samples), "no WAV file with a format")
    refused(b"RIFF\0\0\0\0WAVE" + chunk(b"fmt ", form), "no WAV file with a format")
    long = chunk(b"fmt ", form + bytes(100)) + chunk(b"data", samples)
    refused(b"RIFF\0\0\0\0WAVE" + long, "no WAV file with a format")
    many = chunk(b"fmt ", form) + chunk(b"none", b"") * 5000 + chunk(b"data", samples)
    refused(b"RIFF\0\0\0\0WAVE" + many, "no WAV file with a format")


def test_case_33_a_tag_in_a_wav_cannot_ask_for_memory() -> None:
    """FFmpeg alone fills two gigabytes for this: measured."""
    form, samples = parts_of(clip()[0])
    info = chunk(b"LIST", b"INFO" + chunk(b"ISFT", b"x", 0x7FFFFF00), 0x7FFFFFF0)
    before, start = psutil.Process().memory_info().rss, time.monotonic()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(b"RIFF\0\0\0\0WAVE" + chunk(b"fmt ", form) + info, "no WAV file")
    opened(b"RIFF\0\0\0\0WAVE" + chunk(b"fmt ", form) + chunk(b"data", samples) + info)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 50_000  # kB
    assert psutil.Process().memory_info().rss - before < 50e6
    assert time.monotonic() - start < 10


def id3(body: bytes) -> bytes:
    """An ID3v2.4 tag."""
    size = bytes(len(body) >> shift & 0x7F for shift in (21, 14, 7, 0))
    return b"ID3\4\0\0" + size + body


def test_case_33_a_tag_in_an_mp3_is_not_unpacked() -> None:
    content, _ = clip("mp3", "libmp3lame")
    packed = zlib.compress(bytes(300_000_000), 9)
    frame = struct.pack(">I", 300_000_000) + packed
    size = bytes(len(frame) >> shift & 0x7F for shift in (21, 14, 7, 0))
    tag = id3(b"TXXX" + size + b"\0\x09" + frame)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wanted, rate = opened(content)
    for tags in (tag, id3(b"") + tag, id3(bytes(1000)) + id3(bytes(9))):
        found, its_rate = opened(tags + content)
        assert its_rate == rate
        assert found.shape == wanted.shape
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 100_000  # kB
    refused(id3(b"") * 5000 + content, "more than 4,096 tags")
    refused(id3(bytes(50)), "cannot be decoded|no stream")
    refused(id3(bytes(50))[:-20], "cannot be decoded|no stream")


@pytest.mark.parametrize(
    ("form", "codec"),
    [("wav", "pcm_s16le"), ("flac", "flac"), ("ogg", "libopus"), ("mp3", "libmp3lame")],
)
def test_truncated_clips(form: str, codec: str) -> None:
    content, _ = clip(form, codec, rate=48000)
    for end in range(0, len(content), max(1, len(content) // 40)):
        try:
            opened(content[:end])
        except MediaError:
            continue
