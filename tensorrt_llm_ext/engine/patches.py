# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Sizes and patch rows: the arithmetic of the Qwen image and video processors, one function a step.

Resize rule, rounding and row layout are those of transformers (``models/qwen2_vl``,
``models/qwen3_vl``), which needs torchvision for videos; this module does not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image
from transformers import Qwen2VLImageProcessorPil

from .errors import RequestError

MAX_ASPECT_RATIO = 200


@dataclass(frozen=True)
class PatchRule:
    """How one modality is resized, normalised and cut (a preprocessor_config.json, read once)."""

    patch_size: int
    temporal_patch_size: int
    merge_size: int
    min_pixels: int
    max_pixels: int
    rescale_factor: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    do_resize: bool
    do_rescale: bool
    do_normalize: bool
    resample: int
    cap_pixels_per_frame: bool = False
    max_video_tokens: int = 768

    @property
    def factor(self) -> int:
        """Heights and widths are multiples of this."""
        return self.patch_size * self.merge_size


def resize_to(height: int, width: int, rule: PatchRule) -> tuple[int, int]:
    """Size of a picture after resizing: multiples of the factor, area within the limits.

    The formula is ``smart_resize`` of transformers' Qwen2-VL image processor.
    """
    _check_ratio(height, width)
    factor = rule.factor
    new = _nearest(height, factor), _nearest(width, factor)
    if math.prod(new) > rule.max_pixels:
        return _shrink(height, width, math.sqrt(height * width / rule.max_pixels), factor)
    if math.prod(new) < rule.min_pixels:
        return _grow(height, width, math.sqrt(rule.min_pixels / (height * width)), factor)
    return new


def resize_video_to(num_frames: int, height: int, width: int, rule: PatchRule) -> tuple[int, int]:
    """Size of a video's frames after resizing; the area limits count all frames together.

    The formula is ``smart_resize`` of transformers' Qwen3-VL video processor, with its optional
    cap a frame.
    """
    factor = rule.factor
    max_pixels = rule.max_pixels
    if rule.cap_pixels_per_frame:
        share = min(rule.max_video_tokens * factor * factor, max_pixels // num_frames)
        max_pixels = max(share, int(rule.min_pixels * 1.05)) * num_frames
    if height < factor or width < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    _check_ratio(height, width)
    new = _nearest(height, factor), _nearest(width, factor)
    area = num_frames * height * width
    if num_frames * math.prod(new) > max_pixels:
        return _shrink(height, width, math.sqrt(area / max_pixels), factor)
    if num_frames * math.prod(new) < rule.min_pixels:
        return _grow(height, width, math.sqrt(rule.min_pixels / area), factor)
    return new


def normalise(frame: np.ndarray, rule: PatchRule) -> np.ndarray:
    """Scale and normalise a uint8 frame [H, W, 3] to float32, rounding as transformers does."""
    out: np.ndarray = frame.astype(np.float32)
    if rule.do_rescale:
        out = (frame.astype(np.float64) * rule.rescale_factor).astype(np.float32)
    if rule.do_normalize:
        out = (out - np.array(rule.mean, dtype=np.float32)) / np.array(rule.std, dtype=np.float32)
    return out


def patchify(frames: np.ndarray, rule: PatchRule) -> np.ndarray:
    """Cut frames into patch rows in merge-block order.

    Args:
        frames: Array [T, H, W, C], T a multiple of the temporal patch, H and W multiples of the
            factor.
        rule: Patch, temporal patch and merge sizes.

    Returns:
        Float32 array [t*h*w, C*temporal*patch*patch]; a row's columns run C, T, y, x.
    """
    tp, p, m = rule.temporal_patch_size, rule.patch_size, rule.merge_size
    frames_t, height, width, channels = frames.shape
    t, h, w = frames_t // tp, height // p, width // p
    cut = frames.reshape(t, tp, h // m, m, p, w // m, m, p, channels)
    # -> t, block row, block column, row in block, column in block, C, T, y, x
    cut = cut.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7)
    return np.ascontiguousarray(cut, dtype=np.float32).reshape(t * h * w, channels * tp * p * p)


def resize_frame(frame: np.ndarray, size: tuple[int, int], rule: PatchRule) -> np.ndarray:
    """Resize a uint8 frame [H, W, 3] to (height, width) with the rule's filter."""
    if frame.shape[:2] == size:
        return frame
    height, width = size
    return np.asarray(
        Image.fromarray(frame).resize((width, height), Image.Resampling(rule.resample))
    )


def image_rule(processor: Qwen2VLImageProcessorPil) -> PatchRule:
    """Read the rule from a loaded image processor."""
    return PatchRule(
        patch_size=processor.patch_size,
        temporal_patch_size=processor.temporal_patch_size,
        merge_size=processor.merge_size,
        min_pixels=processor.size["shortest_edge"],
        max_pixels=processor.size["longest_edge"],
        rescale_factor=processor.rescale_factor,
        mean=tuple(processor.image_mean),
        std=tuple(processor.image_std),
        do_resize=processor.do_resize,
        do_rescale=processor.do_rescale,
        do_normalize=processor.do_normalize,
        resample=int(processor.resample),
    )


def video_rule(config: Mapping[str, Any], image: PatchRule) -> PatchRule:
    """Read a video preprocessor config; gaps are filled as transformers' processor does."""
    size = {
        "shortest_edge": 128 * 32 * 32,
        "longest_edge": 32 * 32 * 768,
        **(config.get("size") or {}),
    }
    return PatchRule(
        patch_size=config.get("patch_size", image.patch_size),
        temporal_patch_size=config.get("temporal_patch_size", image.temporal_patch_size),
        merge_size=config.get("merge_size", image.merge_size),
        min_pixels=config.get("min_pixels") or size["shortest_edge"],
        max_pixels=config.get("max_pixels") or size["longest_edge"],
        rescale_factor=config.get("rescale_factor", 1 / 255),
        mean=tuple(config.get("image_mean", (0.5, 0.5, 0.5))),
        std=tuple(config.get("image_std", (0.5, 0.5, 0.5))),
        do_resize=config.get("do_resize", True),
        do_rescale=config.get("do_rescale", True),
        do_normalize=config.get("do_normalize", True),
        resample=int(config.get("resample", Image.Resampling.BICUBIC)),
        cap_pixels_per_frame=bool(config.get("cap_pixels_per_frame")),
        max_video_tokens=config.get("max_video_tokens", 768),
    )


def _check_ratio(height: int, width: int) -> None:
    ratio = max(height, width) / min(height, width)
    if ratio > MAX_ASPECT_RATIO:
        raise RequestError(
            f"picture is {width}x{height} pixels, aspect ratio {ratio:g}; the limit is "
            f"{MAX_ASPECT_RATIO}, "
            "crop or pad it before"
        )


def _nearest(side: int, factor: int) -> int:
    return round(side / factor) * factor


def _shrink(height: int, width: int, beta: float, factor: int) -> tuple[int, int]:
    return (
        max(factor, math.floor(height / beta / factor) * factor),
        max(factor, math.floor(width / beta / factor) * factor),
    )


def _grow(height: int, width: int, beta: float, factor: int) -> tuple[int, int]:
    return math.ceil(height * beta / factor) * factor, math.ceil(width * beta / factor) * factor
