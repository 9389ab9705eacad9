# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""`media_limits`: what a server takes of media, and from where."""

import re
from typing import Annotated

from pydantic import AfterValidator, WithJsonSchema

from tensorrt_llm_ext.llmapi.base import (
    Field,
    MemorySize,
    NonNegativeInt,
    PixelCount,
    Port,
    Positive,
    PositiveInt,
    RedirectCount,
    Str,
    StrictBaseModel,
    config_error,
)

_LABEL = "[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
# The last label starts with a letter: what ends in a number is an address in one of its many forms.
HOST_PATTERN = rf"^({_LABEL}\.)*[a-z]([a-z0-9-]{{0,61}}[a-z0-9])?(?![\s\S])"
"""A host name in lower case: no address, no port, no trailing dot, no wildcard."""

MAX_HOST_LENGTH = 253


def _host_name(value: str) -> str:
    if len(value) > MAX_HOST_LENGTH or not re.search(HOST_PATTERN, value):
        raise config_error(
            "host_name",
            "must be a host name in lower case, such as media.example.com: no address, scheme, "
            "port, path, wildcard or trailing dot",
        )
    return value


HostName = Annotated[
    Str,
    AfterValidator(_host_name),
    WithJsonSchema({"type": "string", "pattern": HOST_PATTERN, "maxLength": MAX_HOST_LENGTH}),
]


class MediaLimits(StrictBaseModel):
    """What a server takes of media, and from where. Remote and local media are off by default."""

    allowed_media_domains: list[HostName] = Field(
        default_factory=list,
        description="Hosts that media may be fetched from, by exact name; empty: no URL is "
        "fetched. Whatever the name, an address that is not public is never connected to.",
        status="prototype",
    )
    allowed_media_ports: list[Port] = Field(
        default_factory=lambda: [80, 443],
        description="Ports that a media URL may name.",
        status="prototype",
    )
    allowed_local_media_path: Str | None = Field(
        None,
        description="Folder whose regular files requests may name, by file:// URL or absolute "
        "path; symbolic links may not lead out of it. Unset: no file is read.",
        status="prototype",
    )
    max_images: NonNegativeInt = Field(
        32, description="Most pictures in one request.", status="prototype"
    )
    max_videos: NonNegativeInt = Field(
        4, description="Most videos in one request.", status="prototype"
    )
    max_audios: NonNegativeInt = Field(
        8, description="Most sound clips in one request.", status="prototype"
    )
    max_part_bytes: MemorySize = Field(
        64 * 2**20,
        description="Most bytes of one picture, video or clip as a file, wherever it comes from.",
        status="prototype",
    )
    max_request_bytes: MemorySize = Field(
        128 * 2**20,
        description="Most bytes of all media files of one request together.",
        status="prototype",
    )
    max_decoded_bytes: MemorySize = Field(
        2**30,
        description="Most memory that the decoded media of one request may take: three bytes a "
        "pixel, four bytes a sample.",
        status="prototype",
    )
    max_image_pixels: PixelCount = Field(
        64_000_000,
        description="Most pixels of a picture, known from its header before it is decoded.",
        status="prototype",
    )
    max_video_pixels: PixelCount = Field(
        4096 * 2160, description="Most pixels of a video frame.", status="prototype"
    )
    max_video_seconds: Positive = Field(
        600.0, description="Longest video, in seconds.", status="prototype"
    )
    max_video_source_frames: PositiveInt = Field(
        36_000,
        description="Most frames that a video may hold, whether they are kept or not.",
        status="prototype",
    )
    max_video_frames: PositiveInt = Field(
        256,
        description="Most frames that are kept of a video; a longer one is sampled more sparsely. "
        "An image sequence (data:video/jpeg) keeps all its frames and must not have more.",
        status="prototype",
    )
    video_fps: Positive = Field(
        2.0,
        description="Frames that are kept of each second of a video, as far as it has as many.",
        status="prototype",
    )
    max_audio_seconds: Positive = Field(
        600.0, description="Longest sound clip, in seconds.", status="prototype"
    )
    fetch_timeout: Positive = Field(
        10.0,
        description="Seconds that fetching one URL may take in all: name look-up, connections, "
        "redirects and the last byte.",
        status="prototype",
    )
    max_redirects: RedirectCount = Field(
        3,
        description="Most redirects that a fetch follows; each target is checked like the first "
        "URL. 0: none.",
        status="prototype",
    )
    decode_timeout: Positive = Field(
        60.0,
        description="Seconds that decoding one video or clip may take. A picture's time is bounded "
        "by its pixels.",
        status="prototype",
    )
