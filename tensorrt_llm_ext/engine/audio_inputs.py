# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Sound clips to the mel frames that an audio tower reads.

The number of frames, and so of tokens, is known from the number of samples, before any spectrum is
computed. A clip's features are what transformers' feature extractor gives for the clip alone.
"""

from __future__ import annotations

import numbers
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import torch
from scipy.signal import resample_poly
from transformers import WhisperFeatureExtractor

from .errors import RequestError
from .raw_media import host_array

RATES = (1_000, 768_000)
"""Sampling rates that make sense, in Hz."""
_LARGEST_FACTOR = 48_000
"""That a rate is divided by on its way to the model's: whatever is no higher stays exact."""
_LOUDEST = 2.0**31
"""Of a sample. Nominally it is 1; integers of 32 bits as they are have this. Squares of far larger
ones are infinite in fp32: features that are no numbers, and with them tokens that are none."""


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
    """One clip whose length is known and whose samples are still as the caller gave them.

    Attributes:
        samples: Array or tensor [samples] or [samples, channels], any float dtype or int16.
        rate: Samples a second.
        num_frames: Mel frames.
        num_tokens: Features that the tower gives.
        num_rows: Rows that it works on (whole chunks).
    """

    samples: np.ndarray | torch.Tensor = field(repr=False)
    rate: int
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
        shortest: Samples that shorter clips are filled up to with silence.

    Raises:
        ValueError: The feature extractor does not give what the tower reads.
    """

    def __init__(
        self, config: Mapping[str, Any], geometry: AudioGeometry, shortest: int = 0
    ) -> None:
        keys = (
            *("feature_size", "sampling_rate", "hop_length", "chunk_length", "n_fft"),
            *("padding_value", "dither"),
        )
        found = {key: config[key] for key in keys if key in config}
        self._extractor = WhisperFeatureExtractor(**{"feature_size": geometry.mel_bins, **found})
        self._settings = tuple(getattr(self._extractor, key) for key in keys)
        self._geometry, self._shortest = geometry, shortest
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
        """Check a clip's kind and shape and work out its length; no sample is read yet.

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
        _check_samples(samples)
        up, down = self._resampling(rate)
        length = max(-(-samples.shape[0] * up // down), self._shortest)
        fewest = self._extractor.n_fft // 2 + 1  # less cannot be mirrored at its ends
        if length < fewest:
            raise RequestError(
                f"audio clip has {length} samples at {self.rate} Hz; at least {fewest} are "
                f"needed ({fewest / self.rate * 1000:.1f} ms)"
            )
        frames = length // self._extractor.hop_length
        geometry = self._geometry
        return AudioItem(
            samples, rate, frames, geometry.num_tokens(frames), sum(geometry.segment_rows(frames))
        )

    def _resampling(self, rate: int) -> tuple[int, int]:
        """Factors up and down from a rate to the model's.

        The filter has twenty taps a unit of the larger one: seconds and hundreds of megabytes for
        a high rate that shares nothing with the model's, however short the clip. Such a rate is
        taken for the nearest one with smaller factors, less than 0.002 % away.
        """
        ratio = Fraction(self.rate, rate).limit_denominator(_LARGEST_FACTOR)
        return ratio.numerator, ratio.denominator

    def decode(self, item: AudioItem) -> np.ndarray:
        """Read the samples of a planned clip: float32 [samples].

        Raises:
            RequestError: It holds values that cannot be used.
        """
        return _mono(item.samples)

    def recipe(self, item: AudioItem) -> Hashable:
        """All besides the samples that its spectrum depends on."""
        return item.rate, self._shortest, self._settings

    def prepare(self, item: AudioItem, samples: np.ndarray) -> dict[str, Any]:
        """Bring a clip to the model's rate and compute its spectrum.

        Args:
            item: What :meth:`plan` returned.
            samples: What :meth:`decode` returned, float32 [samples].

        Returns:
            ``{"input_features": float32 tensor [mel, frames]}``.
        """
        if item.rate != self.rate:
            samples = resample_poly(samples, *self._resampling(item.rate)).astype(np.float32)
        if len(samples) < self._shortest:
            samples = np.pad(samples, (0, self._shortest - len(samples)))
        extracted = self._extractor(
            samples,
            sampling_rate=self.rate,
            padding="longest",
            truncation=False,
            return_tensors="np",
        )
        features = np.ascontiguousarray(extracted["input_features"][0], dtype=np.float32)
        if features.shape[1] != item.num_frames:
            raise RuntimeError(
                f"{len(samples)} samples gave {features.shape[1]} mel frames, planned "
                f"{item.num_frames}"
            )
        return {"input_features": torch.from_numpy(features)}


def _samples_and_rate(media: Any, default: int) -> tuple[np.ndarray | torch.Tensor, int]:
    rate: Any = default
    if isinstance(media, (tuple, list)):
        if len(media) != 2 or isinstance(media[0], numbers.Number):
            raise RequestError(
                f"audio clip is a {type(media).__name__} of {len(media)}; give (samples, rate), or "
                f"an array of samples at {default} Hz"
            )
        media, rate = media
    if not isinstance(media, (np.ndarray, torch.Tensor)):
        raise RequestError(
            f"audio clip is a {type(media).__name__}; give (samples, rate), or an array of samples "
            f"at {default} Hz (files and URLs are opened by the caller)"
        )
    if not _is_rate(rate):
        raise RequestError(
            f"audio rate is {rate!r:.40}; give a whole number of samples a second from {RATES[0]} "
            f"to {RATES[1]}"
        )
    return media, int(rate)


def _is_rate(value: Any) -> bool:
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return number and RATES[0] <= value <= RATES[1] and value == int(value)


def _check_samples(samples: np.ndarray | torch.Tensor) -> None:
    shape = list(samples.shape)
    if len(shape) not in (1, 2) or (len(shape) == 2 and not 1 <= shape[1] <= 8):
        raise RequestError(
            f"audio clip has shape {shape}; samples must be [samples], or [samples, channels] with "
            "1 to 8 channels"
        )
    if shape[0] == 0:
        raise RequestError("audio clip has 0 samples; it must hold sound")
    if isinstance(samples, torch.Tensor):
        usable = samples.dtype == torch.int16 or samples.is_floating_point()
    else:
        usable = samples.dtype == np.int16 or np.issubdtype(samples.dtype, np.floating)
    if not usable:
        raise RequestError(f"audio clip has dtype {samples.dtype}; use floats in -1..1, or int16")


def _mono(given: np.ndarray | torch.Tensor) -> np.ndarray:
    """Read samples that :func:`_check_samples` let pass; float32 [samples]."""
    samples = host_array(given)
    if samples.dtype == np.int16:
        samples = samples.astype(np.float32) / 32768
    if not np.isfinite(samples).all():
        raise RequestError("audio clip holds NaN or infinite values; replace them before")
    if max(samples.max(), -samples.min()) > _LOUDEST:
        raise RequestError(
            f"audio clip holds values beyond {_LOUDEST:g}; samples are floats in -1..1, or int16"
        )
    samples = samples.astype(np.float32)
    return samples if samples.ndim == 1 else samples.mean(axis=1)
