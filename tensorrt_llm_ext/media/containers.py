# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Opens files of video and sound with FFmpeg's libraries: listed containers and codecs alone.

A file is handed over as bytes together with the one container that its first bytes name. So nothing
is guessed, and a file that refers to others finds none.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from .budget import Budget
from .clock import Clock
from .errors import MediaError
from .mov import table_bytes
from .sound_headers import plain_wav, without_id3

if TYPE_CHECKING:
    from av.container import InputContainer

_CODECS = {
    "video": ("h264", "hevc", "vp8", "vp9", "libdav1d", "mpeg4"),
    "audio": (
        *("pcm_u8", "pcm_s16le", "pcm_s24le", "pcm_s32le", "pcm_f32le", "pcm_f64le"),
        *("mp3float", "flac", "vorbis", "opus"),
    ),
}
"""FFmpeg's names of decoders."""
CONTAINERS = {"video": "MP4, QuickTime, WebM, Matroska", "audio": "WAV, MP3, FLAC, Ogg"}
_CODEC_NAMES = {
    "video": "H.264, HEVC, VP8, VP9, AV1, MPEG-4",
    "audio": "PCM, MP3, FLAC, Vorbis, Opus",
}
_MAX_STREAMS = 16


def _container_of(content: bytes, modality: str) -> str | None:
    """FFmpeg's name of the container that the first bytes name, if it is listed."""
    head = content[:12]
    if modality == "video":
        if head[4:8] in (b"ftyp", b"moov", b"mdat", b"wide"):
            return "mov"
        return "matroska" if head[:4] == b"\x1a\x45\xdf\xa3" else None
    if head[:4] == b"RIFF" and head[8:] == b"WAVE":
        return "wav"
    if head[:3] == b"ID3" or (head[:1] == b"\xff" and head[1:2] >= b"\xe0"):
        return "mp3"
    return {b"fLaC": "flac", b"OggS": "ogg"}.get(head[:4])


@contextmanager
def open_container(
    content: bytes, modality: str, most_pixels: int, budget: Budget, clock: Clock
) -> Iterator[tuple[InputContainer, Any]]:
    """Open a file, and close it afterwards.

    Args:
        content: The file.
        modality: ``"video"`` or ``"audio"``: what its stream is to hold.
        most_pixels: Pixels of a frame that its decoder may make room for.
        budget: What its request may still take.
        clock: Time for opening it.

    Yields:
        The container and its first stream of that kind. Errors of FFmpeg in the body become
        :class:`MediaError`.

    Raises:
        MediaError: It is of another container or codec, or broken.
        TimeoutError: The time is over.
    """
    try:
        import av
    except ImportError:
        raise MediaError(
            f"this server decodes no {modality}; the operator can install the package av"
        ) from None
    name = _container_of(content, modality)
    if name is None:
        raise MediaError(
            f"the {modality} is broken or of another format; allowed: {CONTAINERS[modality]}"
        )
    if name == "mov":
        budget.take_decoded(table_bytes(content))
    elif name == "wav":
        content = plain_wav(content)
    elif name == "mp3":
        content = without_id3(content)
    options = {
        "codec_whitelist": ",".join(_CODECS[modality]),
        "max_pixels": str(most_pixels),
        "max_streams": str(_MAX_STREAMS),
        "threads": "1",
        "advanced_editlist": "0",  # or a few edits could multiply the table of frames
    }
    try:
        with av.open(
            io.BytesIO(content),
            format=name,
            options=options,
            metadata_errors="replace",
            timeout=clock.left(),
            io_open=_refuse,
        ) as container:
            stream = _stream(container, modality)
            stream.codec_context.options = options
            stream.codec_context.thread_count = 1
            yield container, stream
    except TimeoutError:
        raise
    except (av.FFmpegError, ValueError) as error:
        if isinstance(error, MediaError):
            raise
        large = f", or its frames have more than {most_pixels:,} pixels"
        raise MediaError(
            f"the {modality} cannot be decoded; the file is broken or cut off"
            f"{large if modality == 'video' else ''}"
        ) from None


def _stream(container: InputContainer, modality: str) -> Any:
    """The first stream of a kind."""
    for stream in container.streams:
        if stream.type == modality:
            context: Any = stream.codec_context
            if context is None or context.codec.name not in _CODECS[modality]:
                break
            return stream
    raise MediaError(
        f"the {modality} has no stream of a codec that is decoded; allowed: "
        f"{_CODEC_NAMES[modality]}"
    )


def announced_seconds(container: Any, stream: Any) -> float:
    """Length as the header has it, in seconds; 0 where it does not say."""
    own = float(stream.duration * stream.time_base) if stream.duration else 0.0
    return max(own, (container.duration or 0) / 1e6, 0.0)


def _refuse(url: str, flags: int, options: dict[str, str]) -> NoReturn:
    """In place of opening what a file refers to."""
    raise OSError("media refer to no other files")
