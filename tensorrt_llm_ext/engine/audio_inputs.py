# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Sound clips to the mel frames that an audio tower reads.

The number of frames, and so of tokens, is known from the number of samples, before any spectrum is
computed. A clip's features are what transformers' feature extractor gives for the clip alone.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from scipy.signal import resample_poly
from transformers import WhisperFeatureExtractor

from .errors import RequestError

RATES = (1_000, 768_000)
"""Sampling rates that make sense, in Hz."""


class AudioGeometry(Protocol):
    """How a tower cuts clips, see ``towers.audio_adapter.ChunkGeometry``."""

    @property
    def mel_bins(self) -> int:
        """Rows of the features."""
        ...

    def num_tokens(self, frames: int) -> int:
        """Tokens that a clip comes to."""
        ...

    def segment_rows(self, frames: int) -> Sequence[int]:
        """Token rows of each attention window."""
        ...


@dataclass(frozen=True)
class AudioItem:
    """One clip, at the rate of the model.

    Attributes:
        samples: Float32 [samples], mono.
        num_frames: Mel frames.
        num_tokens: Features that the tower gives.
        num_rows: Rows that it works on (whole chunks).
    """

    samples: np.ndarray = field(repr=False)
    num_frames: int
    num_tokens: int
    num_rows: int
    modality: str = "audio"
    tower: str = "audio"


class AudioInputs:
    """Turns clips into tower inputs by the rules of one checkpoint.

    Args:
        config: Its preprocessor_config.json.
        geometry: Of the tower.

    Raises:
        ValueError: The feature extractor does not give what the tower reads.
    """

    def __init__(self, config: Mapping[str, Any], geometry: AudioGeometry) -> None:
        keys = (
            *("feature_size", "sampling_rate", "hop_length", "chunk_length", "n_fft"),
            *("padding_value", "dither"),
        )
        found = {key: config[key] for key in keys if key in config}
        self._extractor = WhisperFeatureExtractor(**{"feature_size": geometry.mel_bins, **found})
        self._geometry = geometry
        if self._extractor.feature_size != geometry.mel_bins:
            raise ValueError(
                f"preprocessor_config.json has feature_size {self._extractor.feature_size}, the "
                f"audio encoder reads {geometry.mel_bins} mel bins; take both files from the same "
                "checkpoint"
            )

    @property
    def rate(self) -> int:
        """Samples a second that the model was made for."""
        return int(self._extractor.sampling_rate)

    def plan(self, media: Any) -> AudioItem:
        """Check a clip and bring it to the model's rate.

        Args:
            media: ``(samples, rate)``, or samples at the model's rate. Samples are a 1-D array of
                floats (nominally -1..1) or int16, or [samples, channels] with at most 8 channels,
                which are averaged.

        Returns:
            The planned clip.

        Raises:
            RequestError: The clip cannot be used; the message says why.
        """
        samples, rate = _samples_and_rate(media, self.rate)
        samples = _mono(samples)
        if rate != self.rate:
            shared = math.gcd(self.rate, rate)
            up, down = self.rate // shared, rate // shared
            samples = resample_poly(samples, up, down).astype(np.float32)
        fewest = self._extractor.n_fft // 2 + 1  # less cannot be mirrored at its ends
        if len(samples) < fewest:
            raise RequestError(
                f"audio clip has {len(samples)} samples at {self.rate} Hz; at least {fewest} are "
                f"needed ({fewest / self.rate * 1000:.1f} ms)"
            )
        frames = len(samples) // self._extractor.hop_length
        geometry = self._geometry
        return AudioItem(
            samples, frames, geometry.num_tokens(frames), sum(geometry.segment_rows(frames))
        )

    def load(self, item: AudioItem) -> dict[str, Any]:
        """Compute the spectrum of a planned clip.

        Args:
            item: What :meth:`plan` returned.

        Returns:
            ``{"input_features": float32 tensor [mel, frames]}``.
        """
        extracted = self._extractor(
            item.samples,
            sampling_rate=self.rate,
            padding="longest",
            truncation=False,
            return_tensors="np",
        )
        features = np.ascontiguousarray(extracted["input_features"][0], dtype=np.float32)
        if features.shape[1] != item.num_frames:
            raise RuntimeError(
                f"{len(item.samples)} samples gave {features.shape[1]} mel frames, planned "
                f"{item.num_frames}"
            )
        return {"input_features": torch.from_numpy(features)}


def _samples_and_rate(media: Any, default: int) -> tuple[np.ndarray, int]:
    rate: Any = default
    if isinstance(media, (tuple, list)):
        if len(media) != 2 or isinstance(media[0], numbers.Number):
            raise RequestError(
                f"audio clip is a {type(media).__name__} of {len(media)}; give (samples, rate), or "
                f"an array of samples at {default} Hz"
            )
        media, rate = media
    if isinstance(media, torch.Tensor):
        media = media.detach().cpu().numpy()
    if not isinstance(media, np.ndarray):
        raise RequestError(
            f"audio clip is a {type(media).__name__}; give (samples, rate), or an array of samples "
            f"at {default} Hz (files and URLs are opened by the caller)"
        )
    if not _is_whole(rate) or not RATES[0] <= rate <= RATES[1]:
        raise RequestError(
            f"audio rate is {rate!r}; give a whole number of samples a second from {RATES[0]} to "
            f"{RATES[1]}"
        )
    return media, int(rate)


def _is_whole(value: Any) -> bool:
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return number and math.isfinite(value) and value == int(value)


def _mono(samples: np.ndarray) -> np.ndarray:
    """Check samples; float32 [samples]."""
    shape = list(samples.shape)
    if samples.ndim not in (1, 2) or (samples.ndim == 2 and not 1 <= samples.shape[1] <= 8):
        raise RequestError(
            f"audio clip has shape {shape}; samples must be [samples], or [samples, channels] with "
            "1 to 8 channels"
        )
    if samples.shape[0] == 0:
        raise RequestError("audio clip has 0 samples; it must hold sound")
    if samples.dtype == np.int16:
        samples = samples.astype(np.float32) / 32768
    if not np.issubdtype(samples.dtype, np.floating):
        raise RequestError(f"audio clip has dtype {samples.dtype}; use floats in -1..1, or int16")
    if not np.isfinite(samples).all():
        raise RequestError("audio clip holds NaN or infinite values; replace them before")
    samples = samples.astype(np.float32)
    return samples if samples.ndim == 1 else samples.mean(axis=1)
