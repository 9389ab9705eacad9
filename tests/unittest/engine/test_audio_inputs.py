# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Clips of sound: what is accepted, what is refused, and how long they come out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import WhisperFeatureExtractor

from tensorrt_llm_ext.engine import audio_inputs
from tensorrt_llm_ext.engine.audio_inputs import AudioInputs
from tensorrt_llm_ext.engine.errors import RequestError
from tensorrt_llm_ext.towers.audio_adapter import ChunkGeometry

CONFIG = {"feature_size": 128, "hop_length": 160, "n_fft": 400, "chunk_length": 300}
GEOMETRY = ChunkGeometry(128, 100, 8, True)


@pytest.fixture(scope="module")
def inputs() -> AudioInputs:
    return AudioInputs(CONFIG, GEOMETRY)


def noise(samples: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=samples) * 0.1).astype(np.float32)


def features_of(inputs: AudioInputs, media: Any) -> torch.Tensor:
    item = inputs.plan(media)
    return inputs.prepare(item, inputs.decode(item))["input_features"]


@pytest.mark.parametrize(
    ("samples", "frames", "tokens", "rows"),
    [
        (201, 1, 1, 13),
        (319, 1, 1, 13),
        (1599, 9, 2, 13),
        (16000, 100, 13, 13),
        (16160, 101, 14, 26),
        (32800, 205, 27, 39),
        (128000, 800, 104, 104),
        (128160, 801, 105, 117),
        (480000, 3000, 390, 390),
    ],
)
def test_lengths_and_features(
    inputs: AudioInputs, samples: int, frames: int, tokens: int, rows: int
) -> None:
    clip = noise(samples)
    item = inputs.plan(clip)
    assert (item.num_frames, item.num_tokens, item.num_rows) == (frames, tokens, rows)
    expected = WhisperFeatureExtractor(**CONFIG)(
        clip, sampling_rate=16000, padding="longest", truncation=False, return_tensors="pt"
    )["input_features"][0]
    assert torch.equal(features_of(inputs, clip), expected)


def test_filters_stay_small(inputs: AudioInputs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their size, and with it a clip's cost, is twenty times the larger factor."""
    for rate in (8000, 11025, 16000, 22050, 24000, 32000, 44100, 48000, 96000, 192000, 768000):
        up, down = inputs._resampling(rate)
        assert up * rate == down * 16000
        assert max(up, down) <= 640
    for rate in (1009, 15999, 44101, 47999):  # exact, however odd
        up, down = inputs._resampling(rate)
        assert up * rate == down * 16000
    for rate in (48001, 95999, 191_999, 480_023, 767_957, 767_999):
        up, down = inputs._resampling(rate)
        assert max(up, down) <= 48_000
        assert abs(up * rate / (down * 16000) - 1) < 2e-5
    made = []
    resample = audio_inputs.resample_poly

    def spy(samples: np.ndarray, up: int, down: int) -> np.ndarray:
        made.append((up, down))
        return resample(samples, up, down)

    monkeypatch.setattr(audio_inputs, "resample_poly", spy)
    features_of(inputs, (noise(80_000), 767_999))
    assert made == [inputs._resampling(767_999)]


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 48000, 96000, 15999, 191_999])
def test_rates(inputs: AudioInputs, rate: int) -> None:
    """A tone keeps its pitch: the spectrum's peak stays in its mel row."""
    tone = np.sin(2 * np.pi * 1000 * np.arange(rate) / rate).astype(np.float32)
    item = inputs.plan((tone, rate))
    assert item.num_frames == 100
    features = features_of(inputs, (tone, rate))
    at_home = np.sin(2 * np.pi * 1000 * np.arange(16000) / 16000).astype(np.float32)
    peak = features_of(inputs, at_home)[:, 50].argmax()
    assert features[:, 50].argmax() == peak


def test_channels_and_integers(inputs: AudioInputs) -> None:
    left, right = noise(4000, 1), noise(4000, 2)
    stereo = features_of(inputs, (np.stack([left, right], 1), 16000))
    mean = features_of(inputs, (left + right) / 2)
    torch.testing.assert_close(stereo, mean)
    whole = (left * 32768).round().astype(np.int16)
    integers = features_of(inputs, whole)
    floats = features_of(inputs, whole.astype(np.float64) / 32768)
    assert torch.equal(integers, floats)
    assert torch.equal(features_of(inputs, torch.from_numpy(whole)), floats)


def test_short_clips_are_filled_up_where_the_family_does(inputs: AudioInputs) -> None:
    filling = AudioInputs(CONFIG, GEOMETRY, shortest=8000)
    clip = noise(100)
    item = filling.plan(clip)
    assert (item.num_frames, item.num_tokens) == (50, 7)
    padded = np.concatenate([clip, np.zeros(7900, np.float32)])
    expected = features_of(inputs, padded)
    assert torch.equal(features_of(filling, clip), expected)


@pytest.mark.parametrize(
    ("clip", "message"),
    [
        ("speech.wav", r"audio clip is a str; give \(samples, rate\)"),
        (None, "audio clip is a NoneType"),
        ((noise(400), 16000, 1), "audio clip is a tuple of 3"),
        ([0.1, 0.2], "audio clip is a list of 2"),
        (np.zeros(0, np.float32), "has 0 samples; it must hold sound"),
        (np.zeros((0, 2), np.float32), "has 0 samples; it must hold sound"),
        (noise(200), r"has 200 samples at 16000 Hz; at least 201 are needed \(12.6 ms\)"),
        ((noise(400), 48000), "has 134 samples at 16000 Hz"),
        (np.zeros((2, 3, 4), np.float32), r"shape \[2, 3, 4\]"),
        (np.zeros((2, 16000), np.float32), r"shape \[2, 16000\]; .* 1 to 8 channels"),
        (np.zeros(4000, np.uint8), "dtype uint8; use floats in -1..1, or int16"),
        (np.zeros(4000, np.complex64), "dtype complex64"),
        (torch.zeros(4000, dtype=torch.int64), "dtype torch.int64"),
        ((noise(400), 0), "audio rate is 0; give a whole number"),
        ((noise(400), -16000), "audio rate is -16000"),
        ((noise(400), 16000.5), "audio rate is 16000.5"),
        ((noise(400), float("nan")), "audio rate is nan"),
        ((noise(400), 10**9), "audio rate is 1000000000; .* from 1000 to 768000"),
        ((noise(400), True), "audio rate is True"),
        ((noise(400), "16k"), "audio rate is '16k'"),
    ],
)
def test_unusable_clips(inputs: AudioInputs, clip: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        inputs.plan(clip)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_samples_that_are_no_numbers(inputs: AudioInputs, value: float) -> None:
    clip = noise(4000)
    clip[1234] = value
    with pytest.raises(RequestError, match="NaN or infinite"):
        inputs.decode(inputs.plan(clip))


def test_samples_whose_squares_are_infinite(inputs: AudioInputs) -> None:
    clip = noise(4000)
    clip[1234] = -1e19
    with pytest.raises(RequestError, match="values beyond"):
        inputs.decode(inputs.plan(clip))
    for rate in (inputs.rate, 44_100):
        clip = (np.sign(noise(4000)) * 2.0**31).astype(np.float32)  # integers of 32 bits as floats
        planned = inputs.plan((clip, rate))
        features = inputs.prepare(planned, inputs.decode(planned))["input_features"]
        assert features.isfinite().all()


def test_extractor_and_tower_must_agree() -> None:
    with pytest.raises(ValueError, match="feature_size 80, the audio encoder reads 128 mel bins"):
        AudioInputs({**CONFIG, "feature_size": 80}, GEOMETRY)
    assert AudioInputs({}, GEOMETRY).rate == 16000
