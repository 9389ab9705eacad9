# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""``mm_encoder_only``: encoders of every model, without a language model or a KV cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from family_oracle import PROCESSORS
from make_tiny_checkpoint import FAMILIES
from PIL import Image
from scipy.signal import resample_poly
from tower_oracle import AudioOracle, RadioOracle, VisionOracle

from tensorrt_llm_ext import LLM
from tensorrt_llm_ext.engine import engine as engine_module
from tensorrt_llm_ext.engine import loading
from tensorrt_llm_ext.engine.errors import EncoderOnlyError, EngineClosedError, RequestError
from tensorrt_llm_ext.engine.families import FAMILIES as SERVED
from tensorrt_llm_ext.towers import load_tower, registry

GRAPHS = {
    "image": {"buckets": [[96, 2], [320, 4]], "warmup_steps": 1},
    "audio": {"max_batch_size": 4, "warmup_steps": 1},
}
LIMITS = {"device": "cpu", "encoder_max_num_tokens": 320, "mm_encoder_only": True}


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


def check_known_the_second_time(llm: LLM, data: dict[str, Any], first: dict[str, Any]) -> None:
    """Outputs come from the cache, whatever the encoder calls them, and are the same bits."""
    encoded = llm.encoder_stats()
    again = llm.encode_multimodal(data)
    assert llm.encoder_stats() == encoded
    for modality, outputs in first.items():
        for ours, theirs in zip(outputs, again[modality], strict=True):
            assert ours.keys() == theirs.keys()
            for name, tensor in ours.items():
                assert name == "deepstack" or torch.equal(tensor, theirs[name])


def graphs_for(*modalities: str) -> dict[str, Any]:
    return {"encoder_cuda_graph": {m: GRAPHS[m] for m in modalities}}


@pytest.fixture
def no_language_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a language model was loaded")

    monkeypatch.setattr(loading, "load_language_model", refuse)
    monkeypatch.setattr(loading, "load_config", refuse)


@pytest.mark.usefixtures("no_language_model")
@pytest.mark.parametrize("family", [f for f in FAMILIES if FAMILIES[f].preprocessors in PROCESSORS])
def test_pictures_of_every_family(
    family: str, family_checkpoint: Callable[[str], Path], photo: Image.Image, photo2: Image.Image
) -> None:
    """Features are those of transformers' tower on rows that its own processor cut."""
    folder = family_checkpoint(family)
    pictures = [photo.resize((150, 120)), photo2.resize((90, 70))]
    processor = getattr(transformers, PROCESSORS[FAMILIES[family].preprocessors][1])
    oracle = VisionOracle(folder)
    with LLM(model=folder, multimodal_config=graphs_for("image"), **LIMITS) as llm:
        got = llm.encode_multimodal({"image": pictures})["image"]
        for picture, ours in zip(pictures, got, strict=True):
            cut = processor.from_pretrained(folder)(images=picture, return_tensors="pt")
            item = {"pixel_values": cut["pixel_values"], "grid_thw": cut["image_grid_thw"][0]}
            (theirs,) = oracle.ask([item])
            assert distance(ours.features, theirs["features"]) < 1e-5
        assert sum(llm.encoder_stats()["image"].replays.values()) > 0


@pytest.mark.usefixtures("no_language_model")
def test_what_is_left_out(tiny_checkpoint: Path) -> None:
    with LLM(model=tiny_checkpoint, **LIMITS) as llm:
        report = llm.startup_report
        assert report.kv_cache is None
        assert "size KV cache" not in report.phase_seconds
        assert "KV" not in report.render()
        for call in (
            lambda: llm.generate("Hello"),
            lambda: llm.generate(["Hello"]),
            lambda: llm._engine.submit("Hello"),
        ):
            with pytest.raises(EncoderOnlyError, match="mm_encoder_only=True: no language model"):
                call()
    with pytest.raises(EngineClosedError, match="make a new LLM"):
        llm.encode_multimodal({"image": []})


def test_every_registered_model_is_known() -> None:
    """A tower without a row in the engine's table could be loaded, but not be given media."""
    registry.registered_modalities("")  # imports the built-in ones
    ours = {
        model_type
        for (model_type, _), entry in registry._TOWERS.items()
        if entry.factory.__module__.startswith("tensorrt_llm_ext.")
    }
    assert ours == SERVED.keys()
    for model_type, family in SERVED.items():
        towers = registry.registered_modalities(model_type)
        assert ("image" in towers) == (family.style is not None), model_type
        assert set(family.tokens) & {"image", "audio"} <= set(towers), model_type


@pytest.mark.usefixtures("no_language_model")
def test_videos_without_a_preprocessor_file(
    family_checkpoint: Callable[[str], Path], photo: Image.Image
) -> None:
    """Qwen2-VL has one file for pictures; the limits of its videos are per frame, and its own."""
    video = {"video": [[photo.resize((448, 336))] * 3]}
    with LLM(model=family_checkpoint("qwen2_vl"), **LIMITS) as llm:
        (clip,) = llm.encode_multimodal(video)["video"]
        check_known_the_second_time(llm, video, {"video": [clip]})
    assert clip.features.shape == (2 * 24 * 32 // 4, 64)


# ---- RADIO ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_language_model")
def test_radio(family_checkpoint: Callable[[str], Path], photo: Image.Image) -> None:
    """Sides are rounded to whole patches, pixels are 0..1, rows in raster order."""
    folder = family_checkpoint("radio")
    pictures = [photo.resize((150, 120)), photo.resize((64, 32))]
    rounded = [(144, 128), (64, 32)]
    with LLM(model=folder, multimodal_config=graphs_for("image"), **LIMITS) as llm:
        assert [t.status for t in llm.startup_report.towers] == ["captured"]
        data = {"image": pictures, "video": [[pictures[1]] * 3]}
        got = llm.encode_multimodal(data)
        assert sum(llm.encoder_stats()["image"].replays.values()) > 0
        check_known_the_second_time(llm, data, got)
    oracle = RadioOracle(folder)
    for picture, size, ours in zip(pictures, rounded, got["image"], strict=True):
        pixels = np.asarray(picture.resize(size, Image.Resampling.BICUBIC), dtype=np.float32) / 255
        (theirs,) = oracle.ask([torch.from_numpy(pixels.transpose(2, 0, 1).copy())[None]])
        assert distance(ours.features, theirs["features"]) < 1e-5
        assert distance(ours.summary, theirs["summary"]) < 1e-5
    (video,) = got["video"]  # every frame is a picture of its own
    for frame in video.features.split(len(got["image"][1].features)):
        assert distance(frame, got["image"][1].features) < 1e-5


@pytest.mark.usefixtures("no_language_model")
def test_nemotron(family_checkpoint: Callable[[str], Path], photo: Image.Image) -> None:
    """Whole merge blocks, pixels normalised, rows still in raster order."""
    folder = family_checkpoint("nemotron_h_omni")
    picture = photo.resize((150, 120))  # 160 x 128 after rounding
    with LLM(model=folder, multimodal_config=graphs_for("image"), **LIMITS) as llm:
        got = llm.encode_multimodal({"image": [picture]})
        check_known_the_second_time(llm, {"image": [picture]}, got)
    (ours,) = got["image"]
    pixels = np.asarray(picture.resize((160, 128), Image.Resampling.BICUBIC), np.float32) / 255
    mean, std = transformers.image_utils.OPENAI_CLIP_MEAN, transformers.image_utils.OPENAI_CLIP_STD
    normal = torch.from_numpy(((pixels - mean) / std).astype(np.float32))
    rows = normal.view(8, 16, 10, 16, 3).permute(0, 2, 4, 1, 3).reshape(80, -1)
    (own,) = load_tower(folder).encode([{"pixel_values": rows, "grid_thw": (1, 8, 10)}])
    assert ours.features.shape == (20, 64)
    assert distance(ours.features, own.features) < 1e-5


def test_radio_has_no_language_model(family_checkpoint: Callable[[str], Path]) -> None:
    with pytest.raises(ValueError, match=r"serves RADIO without .*; set mm_encoder_only=True"):
        LLM(model=family_checkpoint("radio"), device="cpu")


# ---- sound alone ----------------------------------------------------------------------------


@pytest.mark.usefixtures("no_language_model")
@pytest.mark.parametrize("family", ["qwen3_asr", "qwen3_asr_original"])
def test_audio_alone(family: str, family_checkpoint: Callable[[str], Path]) -> None:
    """Qwen3-ASR: clips under half a second are filled up with silence, as transformers does."""
    folder = family_checkpoint(family)
    random = np.random.default_rng(0)
    clips = [random.normal(size=n).astype(np.float32) * 0.1 for n in (5000, 24000)]
    extractor = transformers.Qwen3ASRFeatureExtractor.from_pretrained(folder)
    with LLM(model=folder, multimodal_config=graphs_for("audio"), **LIMITS) as llm:
        both = llm.encode_multimodal({"audio": clips})
        got = both["audio"]
        assert sum(llm.encoder_stats()["audio"].replays.values()) > 0
        check_known_the_second_time(llm, {"audio": clips}, both)
        with pytest.raises(RequestError, match="'image' has no encoder here; allowed: audio"):
            llm.encode_multimodal({"image": []})
    oracle = AudioOracle(folder)
    for clip, ours in zip(clips, got, strict=True):
        spectrum = extractor(
            clip, sampling_rate=16000, padding="longest", return_attention_mask=True
        )
        frames = int(spectrum["attention_mask"].sum())
        (theirs,) = oracle.ask([spectrum["input_features"][0][:, :frames]])
        assert distance(ours.features, theirs["features"]) < 1e-5


@pytest.mark.usefixtures("no_language_model")
def test_sound_in_every_form(family_checkpoint: Callable[[str], Path]) -> None:
    """Rates, channels and integers all come to the same clip."""
    time = np.arange(44100) / 44100
    high = (0.5 * np.sin(2 * np.pi * (200 + 900 * time) * time)).astype(np.float32)
    low = resample_poly(high, 160, 441).astype(np.float32)
    forms: list[Any] = [
        low,
        (low, 16000),
        (high, 44100),
        (np.stack([low * 2, low * 0], axis=1), 16000.0),
        torch.from_numpy(low),
        [low, 16000],
    ]
    with LLM(model=family_checkpoint("qwen3_omni"), **LIMITS) as llm:
        got = [out.features for out in llm.encode_multimodal({"audio": forms})["audio"]]
        (coarse,) = llm.encode_multimodal({"audio": ((low * 32768).astype(np.int16), 16000)})[
            "audio"
        ]
    for other in got[1:]:
        assert distance(other, got[0]) < 1e-5
    assert distance(coarse.features, got[0]) < 0.1


# ---- configuration of two towers ------------------------------------------------------------


def test_a_key_without_a_tower_lists_the_towers(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=r"entry for 'audio'.*it has \['image'\]"):
        LLM(model=tiny_checkpoint, multimodal_config=graphs_for("image", "audio"), **LIMITS)


def test_both_towers_are_checked_before_either_is_captured(
    family_checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorrt_llm_ext.towers.mixin import MultimodalEncoderMixin

    captured: list[Any] = []
    monkeypatch.setattr(
        MultimodalEncoderMixin,
        "capture_encoder_cuda_graphs",
        lambda self, backend=None: captured.append(self),
    )
    folder = family_checkpoint("qwen3_omni")
    # Less than a merge block of four patches, and less than a chunk of 13 tokens.
    broken: dict[str, tuple[dict[str, Any], str]] = {
        "image": ({"max_batch_size": 1, "max_num_tokens": 3}, "3 cannot hold one segment"),
        "audio": ({"buckets": [[10, 1]]}, r"bucket \(10, 1\): 1 audio chunks take 13 tokens"),
    }
    for modality, (entry, message) in broken.items():
        config = {"encoder_cuda_graph": {**GRAPHS, modality: entry}}
        with pytest.raises(ValueError, match=message):
            LLM(model=folder, multimodal_config=config, **LIMITS)
        assert captured == []


def test_two_towers_share_a_pool(
    family_checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    backends: list[Any] = []
    original = engine_module.setup_mm_encoder_cuda_graphs

    def spy(towers: Any, *args: Any, **kwargs: Any) -> Any:
        for tower in towers.values():
            capture = tower.capture_encoder_cuda_graphs
            monkeypatch.setattr(
                tower,
                "capture_encoder_cuda_graphs",
                lambda backend=None, capture=capture: (backends.append(backend), capture(backend))[
                    1
                ],
            )
        return original(towers, *args, **kwargs)

    monkeypatch.setattr(engine_module, "setup_mm_encoder_cuda_graphs", spy)
    folder = family_checkpoint("qwen3_omni")
    with LLM(model=folder, multimodal_config=graphs_for("image", "audio"), **LIMITS) as llm:
        assert [t.modality for t in llm.startup_report.towers] == ["audio", "image"]
        assert {t.status for t in llm.startup_report.towers} == {"captured"}
    assert len(backends) == 2
    assert backends[0] is backends[1] is not None
