# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The door that all media of requests come through."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..llmapi.media_limits import MediaLimits
from .audio import decode_audio
from .budget import Budget
from .clock import Clock
from .data_url import SEQUENCE, DataUrl, parse_data_url
from .errors import MediaError
from .fetch import Fetcher
from .images import decode_image
from .local import LocalFile, parse_local
from .part import MediaPart, Modality
from .urls import MediaUrl, parse_url
from .video import decode_sequence, decode_video


class MediaDoor:
    """Fetches, reads and decodes media within limits. Thread-safe.

    Args:
        limits: What is taken, and from where.
        fetcher: Fetches URLs; left out, one of the limits' policy.

    Raises:
        ValueError: The folder of local media is not there.
    """

    def __init__(self, limits: MediaLimits, *, fetcher: Fetcher | None = None) -> None:
        self.limits = limits
        self._fetcher = fetcher or Fetcher(limits)
        self._root: Path | None = None
        if limits.allowed_local_media_path is not None:
            self._root = Path(limits.allowed_local_media_path).resolve()
            if not self._root.is_dir():
                raise ValueError(
                    f"media_limits.allowed_local_media_path {limits.allowed_local_media_path!r} is "
                    "not a folder; create it, or leave the key out"
                )

    def check(self, parts: Sequence[MediaPart]) -> None:
        """Check a request's parts as far as that is cheap: nothing is fetched, read or decoded.

        Parts that were checked together share the request's limits when they are opened.

        Args:
            parts: All parts of one request.

        Raises:
            MediaError: Too many, too large, or from where nothing is taken.
        """
        budget = self._admit(parts)
        for part in parts:
            part.budget = budget

    def open(self, part: MediaPart, *, deadline: float | None = None) -> Any:
        """Fetch or read a part and decode it. Blocks; call it on a worker thread.

        Args:
            part: One that :meth:`check` let pass.
            deadline: Value of ``time.monotonic()`` after which to give up; left out, the limits'
                own times hold alone.

        Returns:
            A picture: PIL image in mode RGB, upright. A video: ``{"frames": [uint8 array [H, W,
            3]] * n, "fps": frames a second or None}``. Sound: ``(float32 array [samples] or
            [samples, channels], samples a second)``.

        Raises:
            MediaError: It cannot be had, read or decoded within the limits.
        """
        budget = part.budget or self._admit([part])
        source = self._source(part)
        files = self._read(source, budget, deadline)
        clock, limits = Clock(self.limits.decode_timeout, deadline), self.limits
        try:
            clock.left()
            if part.modality == "image":
                return decode_image(files[0], limits.max_image_pixels, budget)
            if part.modality == "audio":
                return decode_audio(files[0], limits, budget, clock)
            if isinstance(source, DataUrl) and source.media_type == SEQUENCE:
                return decode_sequence(files, limits, budget, clock)
            return decode_video(files[0], limits, budget, clock)
        except TimeoutError:
            raise MediaError(f"decoding the {part.modality} took too long", 408) from None

    def _admit(self, parts: Sequence[MediaPart]) -> Budget:
        """What is left to a request once what it brings along is counted."""
        limits, counts = self.limits, Counter(part.modality for part in parts)
        allowed: dict[Modality, int] = {
            "image": limits.max_images,
            "video": limits.max_videos,
            "audio": limits.max_audios,
        }
        for modality, most in allowed.items():
            if counts[modality] > most:
                raise MediaError(
                    f"the request has {counts[modality]:,} parts of type {modality}; at most "
                    f"{most:,} (media_limits.max_{modality}s)"
                )
        budget = Budget(limits.max_request_bytes, limits.max_decoded_bytes)
        for part in parts:
            source = self._source(part)
            if isinstance(source, DataUrl) and source.files > limits.max_video_frames:
                raise MediaError(
                    f"an image sequence has {source.files:,} frames; at most "
                    f"{limits.max_video_frames:,}"
                )
            if isinstance(source, (bytes, DataUrl)):
                size = source.size if isinstance(source, DataUrl) else len(source)
                if size > limits.max_part_bytes:
                    raise MediaError(
                        f"the {part.modality} has more than {limits.max_part_bytes:,} bytes; send "
                        "a smaller one",
                        413,
                    )
                budget.take_encoded(size)
        return budget

    def _source(self, part: MediaPart) -> bytes | DataUrl | MediaUrl | LocalFile:
        """Where a part's bytes are."""
        source = part.source
        if isinstance(source, bytes):
            return source
        scheme = source[:8].partition(":")[0].lower()
        if scheme == "data":
            return parse_data_url(source, part.modality)
        if scheme in ("http", "https"):
            return parse_url(source, self.limits)
        if scheme == "file" or source.startswith("/"):
            return parse_local(source, self._root)
        raise MediaError(
            f"the {part.modality} is named by neither a data, http, https or file URL nor an "
            "absolute path"
        )

    def _read(
        self, source: bytes | DataUrl | MediaUrl | LocalFile, budget: Budget, deadline: float | None
    ) -> list[bytes]:
        """The files of a part; more than one for an image sequence."""
        if isinstance(source, bytes):
            return [source]
        if isinstance(source, DataUrl):
            return source.decode()
        most = self.limits.max_part_bytes
        if isinstance(source, LocalFile):
            content = source.read(most)
        else:
            content = self._fetcher.fetch(source, most, deadline)
        budget.take_encoded(len(content))
        return [content]
