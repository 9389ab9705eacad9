# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Videos: frames at an even pace, as many as a model is to see."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..llmapi.media_limits import MediaLimits
from .budget import Budget
from .clock import Clock
from .containers import announced_seconds, open_container
from .errors import MediaError
from .images import decode_image, image_size


def decode_video(
    content: bytes, limits: MediaLimits, budget: Budget, clock: Clock
) -> dict[str, Any]:
    """Decode a video file and keep some of its frames.

    Args:
        content: The file.
        limits: How large and how long it may be, and how many frames are kept.
        budget: What its request may still take.
        clock: Time for it.

    Returns:
        ``{"frames": [uint8 [H, W, 3]] * n, "fps": frames a second of those}``, upright.

    Raises:
        MediaError: It is too large, too long, of another format, or broken.
        TimeoutError: The time is over.
    """
    most = limits.max_video_pixels
    with open_container(content, "video", most, budget, clock) as (container, stream):
        context = stream.codec_context
        _check_size(context.width, context.height, limits)
        seconds = announced_seconds(container, stream)
        _check_length(seconds, stream.frames, limits)
        sampler = _Sampler(limits, seconds, budget, 3 * context.width * context.height)
        rate = float(stream.average_rate or 0) or limits.video_fps
        start, last = None, 0.0
        for index, frame in enumerate(_frames(container, stream, clock)):
            time = last + 1 / rate if frame.time is None else float(frame.time)
            start = time if start is None else start
            last = max(last, time)
            _check_length(last - start, index + 1, limits)
            if sampler.wants(last - start):
                sampler.keep(_upright(frame), last - start)
    if not sampler.frames:
        raise MediaError("the video has no frames that can be decoded")
    return {"frames": sampler.frames, "fps": sampler.rate}


def decode_sequence(
    files: Sequence[bytes], limits: MediaLimits, budget: Budget, clock: Clock
) -> dict[str, Any]:
    """Decode the frames of a video that came as JPEG files, all of them.

    Args:
        files: The frames.
        limits: How large they may be; how many is checked at the door.
        budget: What the request may still take.
        clock: Time for it.

    Returns:
        ``{"frames": [uint8 [H, W, 3]] * n, "fps": None}``: nobody said how fast they are.

    Raises:
        MediaError: They are too large, or broken.
        TimeoutError: The time is over.
    """
    for file in files:
        image_size(file, limits.max_video_pixels, ("JPEG",))
    frames = []
    for file in files:
        clock.left()
        frames.append(np.asarray(decode_image(file, limits.max_video_pixels, budget, ("JPEG",))))
    return {"frames": frames, "fps": None}


class _Sampler:
    """Keeps frames at an even pace; where they become too many, every other one goes.

    Args:
        limits: The pace, and how many.
        seconds: Length of the video as its header has it; 0 where it does not say.
        budget: What its request may still take; paid for once before decoding.
        frame_bytes: Of one frame.
    """

    def __init__(
        self, limits: MediaLimits, seconds: float, budget: Budget, frame_bytes: int
    ) -> None:
        self.frames: list[np.ndarray] = []
        self._times: list[float] = []
        self._most = limits.max_video_frames
        self._step = max(1 / limits.video_fps, seconds / self._most)
        self._budget, self._frame_bytes = budget, frame_bytes
        self._paid = min(self._most, math.ceil(seconds / self._step))
        budget.take_decoded(self._paid * frame_bytes)

    @property
    def rate(self) -> float:
        """Frames a second of those that were kept."""
        length = self._times[-1] - self._times[0]
        return (len(self._times) - 1) / length if length > 0 else 1 / self._step

    def wants(self, time: float) -> bool:
        """Whether the frame of a time is to be kept."""
        # A thousandth: times in a file are rounded.
        return not self._times or time >= self._times[0] + len(self._times) * self._step - 1e-3

    def keep(self, frame: np.ndarray, time: float) -> None:
        """Keep a frame, uint8 [H, W, 3]."""
        if self.frames and frame.shape != self.frames[0].shape:
            raise MediaError("the frames of the video change their size")
        if len(self.frames) == self._most:
            del self.frames[1::2], self._times[1::2]
            self._step *= 2
            if not self.wants(time):
                return
        if len(self.frames) == self._paid:
            self._budget.take_decoded(self._frame_bytes)
            self._paid += 1
        self.frames.append(frame)
        self._times.append(time)


def _frames(container: Any, stream: Any, clock: Clock) -> Iterator[Any]:
    for packet in container.demux(stream):
        clock.left()
        yield from packet.decode()


def _check_size(width: int, height: int, limits: MediaLimits) -> None:
    most = limits.max_video_pixels
    if width * height > most:
        raise MediaError(
            f"a video frame is {width} by {height} pixels; at most {most:,} are decoded"
        )


def _check_length(seconds: float, frames: int, limits: MediaLimits) -> None:
    if seconds > limits.max_video_seconds:
        raise MediaError(
            f"the video is longer than {limits.max_video_seconds:g} seconds; send a shorter one"
        )
    if frames > limits.max_video_source_frames:
        raise MediaError(
            f"the video has more than {limits.max_video_source_frames:,} frames; send a shorter "
            "one, or one with fewer frames a second"
        )


def _upright(frame: Any) -> np.ndarray:
    """Pixels of a frame, uint8 [H, W, 3], turned as the file says."""
    pixels: np.ndarray = frame.to_ndarray(format="rgb24")
    quarters = round(frame.rotation / 90)  # anticlockwise
    return np.ascontiguousarray(np.rot90(pixels, quarters)) if quarters % 4 else pixels
