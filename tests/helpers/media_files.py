# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Small files of every format that the media door takes, and of some that it does not."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import av
import numpy as np
from PIL import Image

_PARENTS = {b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts"}


def picture(
    form: str = "PNG", size: tuple[int, int] = (32, 24), mode: str = "RGB", **save: Any
) -> bytes:
    """A file of a picture of noise."""
    values = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return saved(Image.fromarray(values).convert(mode), form, **save)


def saved(image: Image.Image, form: str, **save: Any) -> bytes:
    """A picture as a file."""
    file = io.BytesIO()
    image.save(file, form, **save)
    return file.getvalue()


def png_of_zeros(width: int, height: int) -> bytes:
    """A PNG of nothing but black, which packs a thousandfold; never in memory as a whole."""
    packer = zlib.compressobj(9)
    row = bytes(1 + width // 8 + (width % 8 > 0))
    data = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", data), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )


def data_url(media_type: str, *files: bytes) -> str:
    """A data URL of one file, or of several with commas between."""
    return f"data:{media_type};base64," + ",".join(base64.b64encode(f).decode() for f in files)


def clip(
    form: str = "wav",
    codec: str = "pcm_s16le",
    *,
    rate: int = 16000,
    seconds: float = 0.5,
    layout: str = "mono",
) -> tuple[bytes, np.ndarray]:
    """A file of a tone, and its samples as int16 [samples]."""
    samples = (np.sin(np.arange(int(seconds * rate)) * 0.05) * 16000).astype(np.int16)
    file = io.BytesIO()
    with av.open(file, "w", format=form) as out:
        stream = out.add_stream(codec, rate=rate, layout=layout)
        channels = stream.codec_context.channels
        packed = np.repeat(samples[:, None], channels, axis=1).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(packed, format="s16", layout=layout)
        frame.sample_rate = rate
        resampler = av.AudioResampler(stream.codec_context.format, layout, rate)
        for part in [*resampler.resample(frame), *resampler.resample(None)]:
            out.mux(stream.encode(part))
        out.mux(stream.encode(None))
    return file.getvalue(), samples


def film(
    form: str = "mp4",
    codec: str = "libx264",
    *,
    frames: int = 50,
    size: tuple[int, int] = (64, 48),
    rate: int = 25,
    then: tuple[int, tuple[int, int]] | None = None,
) -> bytes:
    """A file of a video whose frame i has the grey 5 * i, modulo 256.

    Args:
        form: Container.
        codec: Encoder.
        frames: How many.
        size: Width and height.
        rate: Frames a second.
        then: Further frames of another size, which the header says nothing of.
    """
    file = io.BytesIO()
    with av.open(file, "w", format=form) as out:
        stream = _stream(out, codec, size, rate)
        for packet in _packets(stream, range(frames)):
            out.mux(packet)
        if then is not None:
            with av.open(io.BytesIO(), "w", format=form) as other:
                source = _stream(other, codec, then[1], rate)
                for packet in _packets(source, range(frames, frames + then[0])):
                    packet.stream = stream
                    out.mux(packet)
    return file.getvalue()


def _stream(out: Any, codec: str, size: tuple[int, int], rate: int) -> Any:
    stream = out.add_stream(codec, rate=rate)
    stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
    stream.codec_context.thread_count = 1
    return stream


def _packets(stream: Any, indexes: range) -> Iterator[Any]:
    for index in indexes:
        values = np.full((stream.height, stream.width, 3), 5 * index % 256, np.uint8)
        frame = av.VideoFrame.from_ndarray(values, format="rgb24")
        frame.pts = index
        yield from stream.encode(frame)
    yield from stream.encode(None)


def with_boxes(content: bytes, edit: Callable[[bytes, bytes], bytes]) -> bytes:
    """An MP4 with (name, body) of its innermost boxes edited; its header must stand at the end."""
    out = b""
    at = 0
    while at < len(content):
        (size,) = struct.unpack(">I", content[at : at + 4])
        name, body = content[at + 4 : at + 8], content[at + 8 : at + size]
        body = with_boxes(body, edit) if name in _PARENTS else edit(name, body)
        out += struct.pack(">I", 8 + len(body)) + name + body
        at += size
    return out
