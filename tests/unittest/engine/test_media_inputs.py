# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Pictures and videos to patch rows, against transformers' own processors."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers import AutoConfig, Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import (
    smart_resize as video_smart_resize,
)

from tensorrt_llm_ext.engine.errors import RequestError
from tensorrt_llm_ext.engine.media_inputs import MediaInputs
from tensorrt_llm_ext.engine.patches import (
    PatchRule,
    normalise,
    patchify,
    resize_to,
    resize_video_to,
)

RULE = PatchRule(
    patch_size=16,
    temporal_patch_size=2,
    merge_size=2,
    min_pixels=64 * 64,
    max_pixels=512 * 512,
    rescale_factor=1 / 255,
    mean=(0.5, 0.4, 0.3),
    std=(0.5, 0.6, 0.7),
    do_resize=True,
    do_rescale=True,
    do_normalize=True,
    resample=3,
)


@pytest.fixture(scope="module")
def media(tiny_checkpoint: Path) -> MediaInputs:
    return MediaInputs(tiny_checkpoint)


@pytest.mark.parametrize("size", [(640, 427), (33, 900), (20, 20), (64, 64), (3, 2)])
def test_picture_rows_are_transformers_rows(
    media: MediaInputs, tiny_checkpoint: Path, photo: Image.Image, size: tuple[int, int]
) -> None:
    picture = photo.resize(size)
    expected = Qwen2VLImageProcessorPil.from_pretrained(tiny_checkpoint)(
        images=picture, return_tensors="pt"
    )
    for given_as in (picture, np.asarray(picture), torch.from_numpy(np.array(picture))):
        item = media.plan("image", given_as)
        out = media.load(item)
        assert list(out["grid_thw"]) == expected["image_grid_thw"][0].tolist()
        assert out["pixel_values"].dtype == torch.float32
        assert torch.equal(out["pixel_values"], expected["pixel_values"])


def test_video_of_one_picture_twice_is_the_picture(media: MediaInputs, photo: Image.Image) -> None:
    picture = photo.resize((160, 96))
    image = media.load(media.plan("image", picture))
    for frames in ([picture, picture], [picture], np.stack([np.asarray(picture)] * 2)):
        video = media.load(media.plan("video", frames))
        assert video["grid_thw"] == image["grid_thw"]
        assert torch.equal(video["pixel_values"], image["pixel_values"])


def test_video_rows_are_transformers_rows() -> None:
    frames = np.random.default_rng(0).integers(0, 256, (6, 64, 96, 3)).astype(np.uint8)
    ready = np.stack([normalise(frame, RULE) for frame in frames])
    expected, *grid = Qwen3VLVideoProcessor.patchify(
        None, torch.from_numpy(ready.transpose(0, 3, 1, 2).copy())[None], 16, 2, 2
    )
    assert grid == [3, 4, 6]
    assert np.array_equal(patchify(ready, RULE), expected[0].numpy())


def test_odd_last_frame_is_repeated(media: MediaInputs, photo: Image.Image) -> None:
    frames = [photo.resize((96, 64)).rotate(i) for i in range(3)]
    odd = media.plan("video", {"frames": frames, "fps": 4})
    even = media.plan("video", {"frames": [*frames, frames[-1]], "fps": 4})
    assert odd.grid_thw == even.grid_thw == (2, 4, 6)
    assert torch.equal(media.load(odd)["pixel_values"], media.load(even)["pixel_values"])
    assert odd.pair_times == ((0, 0.25), (0.5, 0.5))  # the last frame twice


def test_a_frame_is_resized_as_a_picture(media: MediaInputs, photo: Image.Image) -> None:
    """Where picture and video limits agree on the size, resampling agrees bit for bit."""
    picture = photo.resize((167, 103))
    image, video = media.plan("image", picture), media.plan("video", [picture] * 2)
    assert image.fit == video.fit
    assert image.fit.canvas != (103, 167)
    assert torch.equal(media.load(image)["pixel_values"], media.load(video)["pixel_values"])


SIDES = st.integers(1, 5000)


@settings(deadline=None, max_examples=300)
@given(SIDES, SIDES)
def test_picture_size_is_smart_resize(height: int, width: int) -> None:
    arguments = (height, width, RULE.factor, RULE.min_pixels, RULE.max_pixels)
    try:
        expected = smart_resize(*arguments)
    except ValueError:
        with pytest.raises(RequestError, match="the limit is 200"):
            resize_to(height, width, RULE)
    else:
        assert resize_to(height, width, RULE) == expected


@settings(deadline=None, max_examples=300)
@given(SIDES, SIDES, st.integers(1, 200), st.booleans())
def test_video_size_is_smart_resize(height: int, width: int, pairs: int, capped: bool) -> None:
    frames = 2 * pairs
    rule = dataclasses.replace(RULE, max_pixels=1 << 20, cap_pixels_per_frame=capped)
    max_pixels = rule.max_pixels
    if capped:
        share = min(rule.max_video_tokens * 1024, max_pixels // frames)
        max_pixels = max(share, int(rule.min_pixels * 1.05)) * frames
    try:
        expected = video_smart_resize(
            frames, height, width, 2, 32, min_pixels=rule.min_pixels, max_pixels=max_pixels
        )
    except ValueError:
        with pytest.raises(RequestError, match="the limit is 200"):
            resize_video_to(frames, height, width, rule)
    else:
        assert resize_video_to(frames, height, width, rule) == expected


def test_float_pixels_and_grey_pictures(media: MediaInputs, photo: Image.Image) -> None:
    array = np.asarray(photo.resize((64, 64)))
    whole = media.load(media.plan("image", array))["pixel_values"]
    scaled = media.load(media.plan("image", array / 255))["pixel_values"]
    assert torch.equal(whole, scaled)
    grey = array[..., 0]
    stacked = media.load(media.plan("image", np.stack([grey] * 3, -1)))["pixel_values"]
    assert torch.equal(media.load(media.plan("image", grey))["pixel_values"], stacked)
    bf16 = torch.from_numpy(array / 255).bfloat16()
    for half in (bf16, bf16.half()):
        rows = media.load(media.plan("image", half))["pixel_values"]
        assert torch.equal(rows, media.load(media.plan("image", half.float()))["pixel_values"])
    rgba = media.plan("image", photo.resize((64, 64)).convert("RGBA"))
    assert torch.equal(media.load(rgba)["pixel_values"], whole)


FRAME = np.zeros((64, 64, 3), np.uint8)


@pytest.mark.parametrize(
    ("modality", "value", "message"),
    [
        ("image", Image.new("RGB", (1, 1)), "1x1 pixel"),
        ("image", Image.new("RGB", (10000, 1)), "10000x1 pixels, aspect ratio 10000"),
        ("image", np.zeros((0, 5, 3), np.uint8), "both sides must be at least 1"),
        ("image", np.zeros((5, 5, 4), np.uint8), r"shape \[5, 5, 4\]"),
        ("image", np.zeros((5, 5, 3), np.int64), "dtype int64"),
        ("image", np.full((64, 64, 3), np.inf), "NaN or infinite"),
        ("image", np.full((64, 64, 3), 200.0), "values from 200 to 200"),
        ("image", b"bytes", "image is a bytes"),
        ("image", None, "image is a NoneType"),
        ("video", [], "video has 0 frames"),
        ("video", np.zeros((0, 64, 64, 3), np.uint8), "video has 0 frames"),
        ("video", FRAME, r"video array has shape \[64, 64, 3\]"),
        ("video", "clip.mp4", "video is a str"),
        ("video", {"frames": [FRAME], "rate": 2}, r"keys \['frames', 'rate'\]"),
        ("video", {"fps": 2}, "it needs 'frames'"),
        ("video", {"frames": [FRAME], "fps": 0}, "fps is 0"),
        ("video", {"frames": [FRAME], "fps": float("nan")}, "fps is nan"),
        ("video", {"frames": [FRAME], "fps": True}, "fps is True"),
        ("video", [FRAME, FRAME[:32]], "video frame 1 is 64x32, frame 0 is 64x64"),
        ("video", [FRAME, "no"], "video frame 1 is a str"),
        ("video", [Image.new("RGB", (1, 1))] * 2, "1x1 pixel"),
        ("audio", [FRAME], "modality 'audio' has no encoder here; allowed: image, video"),
    ],
)
def test_unusable_media(media: MediaInputs, modality: str, value: Any, message: str) -> None:
    """Kind and shape are judged when the item is planned, values when it is loaded."""
    in_values = message.startswith(("NaN", "values"))
    if in_values:
        value = media.plan(modality, value)
    with pytest.raises(RequestError, match=message):
        media.load(value) if in_values else media.plan(modality, value)


def _with_configs(source: Path, target: Path, **files: dict[str, Any] | None) -> Path:
    target.mkdir()
    for name in ("preprocessor_config", "video_preprocessor_config"):
        shutil.copy(source / f"{name}.json", target)
    for name, content in files.items():
        path = target / f"{name}.json"
        if content is None:
            path.unlink()
        else:
            path.write_text(json.dumps(content))
    return target


def test_nested_processor_config(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Newer transformers versions save both rules in one file."""
    image = json.loads((tiny_checkpoint / "preprocessor_config.json").read_text())
    video = json.loads((tiny_checkpoint / "video_preprocessor_config.json").read_text())
    folder = _with_configs(
        tiny_checkpoint,
        tmp_path / "nested",
        preprocessor_config=None,
        video_preprocessor_config=None,
        processor_config={"image_processor": image, "video_processor": video},
    )
    flat, nested = MediaInputs(tiny_checkpoint), MediaInputs(folder)
    assert (flat.image_rule, flat.video_rule) == (nested.image_rule, nested.video_rule)


def test_missing_and_default_configs(tiny_checkpoint: Path, tmp_path: Path) -> None:
    bare = _with_configs(tiny_checkpoint, tmp_path / "bare", video_preprocessor_config=None)
    rule = MediaInputs(bare).video_rule
    defaults = Qwen3VLVideoProcessor
    assert rule.min_pixels == defaults.size["shortest_edge"]
    assert rule.max_pixels == defaults.size["longest_edge"]
    assert list(rule.mean) == list(defaults.image_mean)
    assert rule.max_video_tokens == defaults.max_video_tokens
    assert rule.resample == int(defaults.resample)
    empty = _with_configs(
        tiny_checkpoint,
        tmp_path / "none",
        preprocessor_config=None,
        video_preprocessor_config=None,
    )
    with pytest.raises(ValueError, match=r"has no preprocessor_config\.json"):
        MediaInputs(empty)


def test_without_resizing_sizes_must_fit(tiny_checkpoint: Path, tmp_path: Path) -> None:
    config = json.loads((tiny_checkpoint / "preprocessor_config.json").read_text())
    config["do_resize"] = False
    folder = _with_configs(tiny_checkpoint, tmp_path / "fixed", preprocessor_config=config)
    media = MediaInputs(folder)
    assert media.longest_segment(10**6) == 4 * 10**6  # nothing but the prompt limits it
    assert media.plan("image", Image.new("RGB", (96, 64))).grid_thw == (1, 4, 6)
    with pytest.raises(RequestError, match="must be multiples of 32"):
        media.plan("image", Image.new("RGB", (95, 64)))


def test_longest_segment(media: MediaInputs, photo: Image.Image) -> None:
    """Tight, and a bound of pictures and frame pairs of any size."""
    large, most = photo.resize((4096, 4096)), media.longest_segment(10**6)
    picture, pair = media.plan("image", large), media.plan("video", [large] * 2)
    assert (picture.num_rows, pair.num_rows) == (32 * 32, 38 * 38)
    assert most == pair.num_rows
    assert media.longest_segment(10) == 40
    for size in [(3000, 2000), (100, 9000), (513, 512), (64, 64)]:
        picture = Image.new("RGB", size)
        assert media.plan("image", picture).num_rows <= most
        video = media.plan("video", [picture] * 4)
        assert math.prod(video.grid_thw[1:]) <= most


def test_preprocessors_must_fit_the_encoder(tiny_checkpoint: Path, tmp_path: Path) -> None:
    vision = AutoConfig.from_pretrained(tiny_checkpoint).vision_config
    MediaInputs(tiny_checkpoint).check_fits(vision)
    config = json.loads((tiny_checkpoint / "video_preprocessor_config.json").read_text())
    config["patch_size"] = 14
    folder = _with_configs(tiny_checkpoint, tmp_path / "other", video_preprocessor_config=config)
    with pytest.raises(
        ValueError, match=r"the video .* \(14, 2, 2\), the encoder reads \(16, 2, 2\)"
    ):
        MediaInputs(folder).check_fits(vision)
