# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Pictures, videos and sound as parts of a chat message: small files, the same for a number."""

from __future__ import annotations

import base64
import io
import wave
from typing import Any

import numpy as np
from PIL import Image

Part = dict[str, Any]
RATE = 16000


def text(words: str) -> Part:
    """A part of text."""
    return {"type": "text", "text": words}


def _jpeg(rng: np.random.Generator, width: int, height: int) -> str:
    """A picture of coloured patches, base64."""
    patches = rng.integers(0, 256, (height // 16 + 1, width // 16 + 1, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(patches).resize((width, height)).save(file, "JPEG", quality=90)
    return base64.b64encode(file.getvalue()).decode()


def picture(number: int, width: int = 224, height: int = 224) -> Part:
    """A JPEG."""
    data = _jpeg(np.random.default_rng([1, number]), width, height)
    return {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{data}"}}


def video(number: int, frames: int = 8, width: int = 224, height: int = 224) -> Part:
    """A sequence of JPEG frames."""
    rng = np.random.default_rng([2, number])
    data = ",".join(_jpeg(rng, width, height) for _ in range(frames))
    return {"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{data}"}}


def sound(number: int, seconds: float = 4.0) -> Part:
    """A WAV file of tones that change twice a second, 16 kHz, one channel."""
    rng = np.random.default_rng([3, number])
    samples = int(seconds * RATE)
    pitch = np.repeat(rng.uniform(100, 4000, samples // (RATE // 2) + 1), RATE // 2)[:samples]
    tones = np.sin(2 * np.pi * np.cumsum(pitch) / RATE) + 0.1 * rng.standard_normal(samples)
    data = wav((tones * 10000).astype("<i2"))
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def wav(samples: np.ndarray) -> str:
    """Samples int16 [n], 16 kHz, one channel, as a WAV file, base64."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(RATE)
        out.writeframes(samples.tobytes())
    return base64.b64encode(file.getvalue()).decode()
