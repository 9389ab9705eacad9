# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Sizes and rows of the GLM families, against transformers' own processors."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers.models.glm4v.image_processing_pil_glm4v import smart_resize as glm4v_resize
from transformers.models.glm5_next.image_processing_pil_glm5_next import (
    smart_resize as glm5_resize,
)

from tensorrt_llm_ext.engine.errors import RequestError
from tensorrt_llm_ext.engine.families import family_of
from tensorrt_llm_ext.engine.media_inputs import MediaInputs
from tensorrt_llm_ext.engine.patches import PatchRule, fit_frames, fit_on_canvas, resize_frame

EACH = 2 * 28 * 28  # pixels of a token: two frames of a merge block
RULE = PatchRule(
    patch_size=14,
    temporal_patch_size=2,
    merge_size=2,
    min_pixels=16 * EACH,
    max_pixels=400 * EACH,
    rescale_factor=1 / 255,
    mean=(0.5,) * 3,
    std=(0.5,) * 3,
    do_resize=True,
    do_rescale=True,
    do_normalize=True,
    resample=3,
)
SIDES = st.integers(1, 4000)
PAIRS = st.integers(1, 60)
PROCESSORS = {
    "glm4v": "Glm4vImageProcessorPil",
    "glm4v_moe": "Glm4vImageProcessorPil",
    "glm46v": "Glm46VImageProcessorPil",
    "glm_ocr": "Glm46VImageProcessorPil",
    "glm5_next": "Glm5NextImageProcessorPil",
}


@settings(deadline=None, max_examples=200)
@given(SIDES, SIDES, PAIRS)
def test_glm4v_sizes(height: int, width: int, pairs: int) -> None:
    limits = {"min_pixels": RULE.min_pixels, "max_pixels": RULE.max_pixels}
    try:
        expected = glm4v_resize(2 * pairs, height, width, 2, 28, **limits)
    except ValueError:
        with pytest.raises(RequestError, match="the limit is 200"):
            fit_frames(2 * pairs, height, width, RULE)
    else:
        assert fit_frames(2 * pairs, height, width, RULE) == (expected, expected)


@settings(deadline=None, max_examples=200)
@given(SIDES, SIDES, PAIRS)
def test_glm5_sizes(height: int, width: int, pairs: int) -> None:
    if max(height, width) > 200 * min(height, width):
        with pytest.raises(RequestError, match="the limit is 200"):
            fit_on_canvas(2 * pairs, height, width, RULE)
        return
    expected = glm5_resize(2 * pairs, height, width, 2, 28, min_pixels=16, max_pixels=400)
    fit = fit_on_canvas(2 * pairs, height, width, RULE)
    assert fit.canvas == expected
    assert all(0 < a <= b for a, b in zip(fit.content, fit.canvas, strict=True))
    # The content touches the canvas or keeps its own size.
    touches = any(b - a < 2 for a, b in zip(fit.content, fit.canvas, strict=True))
    assert touches or fit.content == (height, width)


def test_too_many_frames_for_the_limit() -> None:
    few = dataclasses.replace(RULE, max_pixels=4 * EACH)
    with pytest.raises(RequestError, match=r"10 frames are more than .* give fewer frames"):
        fit_on_canvas(10, 100, 100, few)


def test_a_canvas_is_black_beside_its_content() -> None:
    frame = np.full((30, 50, 3), 200, np.uint8)
    fit = fit_on_canvas(2, 30, 50, dataclasses.replace(RULE, min_pixels=EACH))
    assert (fit.canvas, fit.content) == ((56, 56), (30, 50))
    out = resize_frame(frame, fit, RULE)
    assert (out[:30, :50] == 200).all()
    assert out[30:].max() == out[:, 50:].max() == 0


@pytest.mark.parametrize("size", [(640, 427), (33, 500), (20, 20), (56, 84), (3, 2)])
@pytest.mark.parametrize("family", sorted(PROCESSORS))
def test_picture_rows_are_transformers_rows(
    family: str,
    size: tuple[int, int],
    family_checkpoint: Callable[[str], Path],
    photo: Image.Image,
) -> None:
    folder = family_checkpoint(family)
    media = MediaInputs(folder, family_of(family))
    picture = photo.resize(size)
    processor = getattr(transformers, PROCESSORS[family]).from_pretrained(folder)
    expected = processor(images=picture, return_tensors="pt")
    out = media.load(media.plan("image", picture))
    assert list(out["grid_thw"]) == expected["image_grid_thw"][0].tolist()
    assert torch.equal(out["pixel_values"], expected["pixel_values"])


def test_token_limits_of_a_video_and_expansion(tmp_path: Path) -> None:
    config = {"min_image_tokens": 4, "max_image_tokens": 256, "patch_size": 14}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    media = MediaInputs(tmp_path, family_of("glm5_next"))
    assert (media.image_rule.min_pixels, media.image_rule.max_pixels) == (4 * EACH, 256 * EACH)
    assert (media.video_rule.min_pixels, media.video_rule.max_pixels) == (16 * EACH, 240000 * EACH)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"patch_expand_factor": 2}))
    with pytest.raises(ValueError, match="patch_expand_factor 2; only 1"):
        MediaInputs(tmp_path, family_of("glm5_next"))


def test_the_processors_name_decides_how_times_are_written() -> None:
    """GLM-4.6V has the model type of GLM-4.5V."""
    words = {"image": "I", "video": "V", "open": "<", "close": ">"}
    video = SimpleNamespace(num_tokens=4, pair_times=((0.0, 0.5), (1.26, 1.76)))
    glm = family_of("glm4v_moe")
    assert glm.video_expander("Glm4vProcessor")(video, words) == "<II>0<II>1"
    assert glm.video_expander(None)(video, words) == "<II>0<II>1"
    assert family_of("glm4v").video_expander(None)(video, words) == "<II>0<II>1"
    assert glm.video_expander("Glm46VProcessor")(video, words) == "<II>0.0 seconds<II>1.3 seconds"
    assert family_of("glm46v").video_expander(None)(video, words).endswith("1.3 seconds")
    qwen = family_of("qwen3_vl")
    for name in (None, "Glm4vProcessor", "Qwen3VLProcessor"):
        expanded = qwen.video_expander(name)(video, words)
        assert expanded == "<0.2 seconds><VV><1.5 seconds><VV>"
    assert family_of("qwen3_omni_moe").video_expander(None)(video, words) == "VVVV"
