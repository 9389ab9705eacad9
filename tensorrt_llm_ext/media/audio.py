# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Sound clips: samples at the rate they were recorded with."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..llmapi.media_limits import MediaLimits
from .budget import Budget
from .clock import Clock
from .containers import announced_seconds, open_container
from .errors import MediaError

_MAX_CHANNELS = 8
# Value of full scale by FFmpeg's name of a sample format (planar ones end in p), and the middle.
_SCALES = {"u8": (128, 128), "s16": (2**15, 0), "s32": (2**31, 0), "flt": (1, 0), "dbl": (1, 0)}


def decode_audio(
    content: bytes, limits: MediaLimits, budget: Budget, clock: Clock
) -> tuple[np.ndarray, int]:
    """Decode a sound file.

    Args:
        content: The file.
        limits: How long it may be.
        budget: What its request may still take.
        clock: Time for it.

    Returns:
        Samples, float32 [samples] or [samples, channels] in -1..1, and their number a second.

    Raises:
        MediaError: It is too long, of another format, or broken.
        TimeoutError: The time is over.
    """
    with open_container(content, "audio", 1, budget, clock) as (container, stream):
        rate, channels = stream.codec_context.sample_rate, stream.codec_context.channels
        if not 1 <= channels <= _MAX_CHANNELS or rate < 1:
            raise MediaError(f"the audio has {channels} channels; at most {_MAX_CHANNELS}")
        most = int(limits.max_audio_seconds * rate)
        # What the header says, to refuse before decoding; it is counted again below.
        announced = int(announced_seconds(container, stream) * rate)
        _check_length(announced, most, limits)
        budget.take_decoded(4 * announced * channels)
        blocks: list[np.ndarray] = []
        length = 0
        for packet in container.demux(stream):
            clock.left()
            for frame in packet.decode():
                if (frame.sample_rate, frame.layout.nb_channels) != (rate, channels):
                    raise MediaError("the audio changes its rate or its channels on the way")
                before, length = length, length + frame.samples
                _check_length(length, most, limits)
                surplus = length - max(before, announced)
                budget.take_decoded(4 * max(surplus, 0) * channels)
                blocks.append(_samples(frame, channels))
    if not length:
        raise MediaError("the audio has no samples that can be decoded")
    samples = np.concatenate(blocks)
    return (samples[:, 0] if channels == 1 else samples), rate


def _check_length(length: int, most: int, limits: MediaLimits) -> None:
    if length > most:
        raise MediaError(
            f"the audio is longer than {limits.max_audio_seconds:g} seconds; send a shorter one"
        )


def _samples(frame: Any, channels: int) -> np.ndarray:
    """Samples of a frame, float32 [samples, channels]."""
    scale, middle = _SCALES[frame.format.name.removesuffix("p")]
    values = frame.to_ndarray()
    values = values.T if frame.format.is_planar else values.reshape(-1, channels)
    with np.errstate(all="ignore"):  # NaN and infinity are the engine's to refuse
        return (values.astype(np.float32) - middle) / np.float32(scale)
