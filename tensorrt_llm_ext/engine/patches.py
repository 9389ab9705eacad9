# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Sizes and patch rows: the arithmetic of image and video processors, one function a step.

Resize rules, rounding and row layout are those of transformers (``models/qwen2_vl``,
``models/qwen3_vl``, ``models/glm4v``, ``models/glm5_next``), which needs torchvision for videos;
this module does not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from .errors import RequestError

MAX_ASPECT_RATIO = 200


@dataclass(frozen=True)
class PatchRule:
    """How one modality is resized, normalised and cut (a preprocessor_config.json, read once).

    ``raster``: rows run line by line; otherwise the patches that are merged follow each other.
    """

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
    raster: bool = False
    cap_pixels_per_frame: bool = False
    max_video_tokens: int = 768

    @property
    def factor(self) -> int:
        """Heights and widths are multiples of this."""
        return self.patch_size * self.merge_size


class Fit(NamedTuple):
    """Where a picture goes.

    Attributes:
        canvas: Height and width that are cut into patches.
        content: Height and width of the resized picture in its top left corner; the rest is black.
    """

    canvas: tuple[int, int]
    content: tuple[int, int]


def fit_picture(num_frames: int, height: int, width: int, rule: PatchRule) -> Fit:
    """Qwen's pictures, and videos whose limits are per frame: :func:`resize_to`."""
    size = resize_to(height, width, rule)
    return Fit(size, size)


def fit_frames(num_frames: int, height: int, width: int, rule: PatchRule) -> Fit:
    """Videos, and GLM's pictures (of one frame pair): :func:`resize_video_to`."""
    size = resize_video_to(num_frames, height, width, rule)
    return Fit(size, size)


def fit_on_canvas(num_frames: int, height: int, width: int, rule: PatchRule) -> Fit:
    """Pictures and videos that keep their proportions on a canvas of whole patches.

    The formula is that of transformers' GLM-5.3 image processor: sides are rounded up, and the
    content is only enlarged where the picture is below the lower limit.
    """
    _check_ratio(height, width)
    factor = rule.factor
    canvas = _up(height, factor), _up(width, factor)
    if num_frames * math.prod(canvas) < rule.min_pixels:
        scale = math.sqrt(rule.min_pixels / (num_frames * height * width))
        canvas = (
            _up(max(1, math.ceil(height * scale)), factor),
            _up(max(1, math.ceil(width * scale)), factor),
        )
    if num_frames * math.prod(canvas) > rule.max_pixels:
        canvas = _largest_canvas(num_frames, height, width, rule)
    scale = min(canvas[0] / height, canvas[1] / width)
    if num_frames * height * width >= rule.min_pixels:
        scale = min(1.0, scale)
    content = (
        max(1, min(canvas[0], math.floor(height * scale))),
        max(1, min(canvas[1], math.floor(width * scale))),
    )
    return Fit(canvas, content)


def _largest_canvas(num_frames: int, height: int, width: int, rule: PatchRule) -> tuple[int, int]:
    """The largest canvas within the upper limit whose proportions are the picture's."""
    factor = rule.factor
    if num_frames * factor**2 > rule.max_pixels:
        raise RequestError(
            f"{num_frames} frames are more than the limit of {rule.max_pixels} pixels allows at "
            f"{factor}x{factor} pixels each; give fewer frames"
        )
    best = factor, factor
    low, high = 1, height
    while low <= high:
        middle = (low + high) // 2
        sides = middle, max(1, math.floor(width * middle / height))
        canvas = _up(sides[0], factor), _up(sides[1], factor)
        if num_frames * math.prod(canvas) <= rule.max_pixels:
            best, low = canvas, middle + 1
        else:
            high = middle - 1
    return best


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
    """Cut frames into patch rows, in merge-block or raster order.

    Args:
        frames: Array [T, H, W, C], T a multiple of the temporal patch, H and W multiples of the
            factor.
        rule: Patch, temporal patch and merge sizes.

    Returns:
        Float32 array [t*h*w, C*temporal*patch*patch]; a row's columns run C, T, y, x.
    """
    tp, p, m = rule.temporal_patch_size, rule.patch_size, 1 if rule.raster else rule.merge_size
    frames_t, height, width, channels = frames.shape
    t, h, w = frames_t // tp, height // p, width // p
    cut = frames.reshape(t, tp, h // m, m, p, w // m, m, p, channels)
    # -> t, block row, block column, row in block, column in block, C, T, y, x
    cut = cut.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7)
    return np.ascontiguousarray(cut, dtype=np.float32).reshape(t * h * w, channels * tp * p * p)


def resize_frame(frame: np.ndarray, fit: Fit, rule: PatchRule) -> np.ndarray:
    """Bring a uint8 frame [H, W, 3] to [canvas height, canvas width, 3] with the rule's filter."""
    height, width = fit.content
    if frame.shape[:2] != fit.content:
        filter_ = Image.Resampling(rule.resample)
        frame = np.asarray(Image.fromarray(frame).resize((width, height), filter_))
    if fit.canvas == fit.content:
        return frame
    rows, columns = fit.canvas[0] - height, fit.canvas[1] - width
    return np.pad(frame, ((0, rows), (0, columns), (0, 0)))


def image_rule(processor: Any) -> PatchRule:
    """Read the rule from a loaded image processor of transformers."""
    size = processor.size
    return _with_token_limits(
        PatchRule(
            patch_size=processor.patch_size,
            temporal_patch_size=processor.temporal_patch_size,
            merge_size=processor.merge_size,
            min_pixels=getattr(size, "shortest_edge", None) or 0,
            max_pixels=size["longest_edge"],
            rescale_factor=processor.rescale_factor,
            mean=tuple(processor.image_mean),
            std=tuple(processor.image_std),
            do_resize=processor.do_resize,
            do_rescale=processor.do_rescale,
            do_normalize=processor.do_normalize,
            resample=int(processor.resample),
        ),
        getattr(processor, "min_image_tokens", None),
        getattr(processor, "max_image_tokens", None),
    )


def video_rule(
    config: Mapping[str, Any], image: PatchRule, defaults: Mapping[str, Any]
) -> PatchRule:
    """Read a video preprocessor config.

    Args:
        config: Its content.
        image: Rule of pictures, whose patch sizes fill gaps.
        defaults: What else the family's video processor assumes.
    """
    found = {**defaults, **config}
    size = {**defaults.get("size", {}), **(config.get("size") or {})}
    rule = PatchRule(
        patch_size=found.get("patch_size", image.patch_size),
        temporal_patch_size=found.get("temporal_patch_size", image.temporal_patch_size),
        merge_size=found.get("merge_size", image.merge_size),
        min_pixels=found.get("min_pixels") or size.get("shortest_edge", 0),
        max_pixels=found.get("max_pixels") or size.get("longest_edge", 0),
        rescale_factor=found.get("rescale_factor", 1 / 255),
        mean=tuple(found.get("image_mean", image.mean)),
        std=tuple(found.get("image_std", image.std)),
        do_resize=found.get("do_resize", True),
        do_rescale=found.get("do_rescale", True),
        do_normalize=found.get("do_normalize", True),
        resample=int(found.get("resample", Image.Resampling.BICUBIC)),
        cap_pixels_per_frame=bool(found.get("cap_pixels_per_frame")),
        max_video_tokens=found.get("max_video_tokens", 768),
    )
    return _with_token_limits(rule, found.get("min_image_tokens"), found.get("max_image_tokens"))


def _with_token_limits(rule: PatchRule, low: int | None, high: int | None) -> PatchRule:
    """Limits in pixels where a processor gives them in tokens (of a temporal patch each)."""
    if low is None or high is None:
        return rule
    each = rule.temporal_patch_size * rule.factor**2
    return replace(rule, min_pixels=low * each, max_pixels=high * each)


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


def _up(side: int, factor: int) -> int:
    return math.ceil(side / factor) * factor


def _shrink(height: int, width: int, beta: float, factor: int) -> tuple[int, int]:
    return (
        max(factor, math.floor(height / beta / factor) * factor),
        max(factor, math.floor(width / beta / factor) * factor),
    )


def _grow(height: int, width: int, beta: float, factor: int) -> tuple[int, int]:
    return math.ceil(height * beta / factor) * factor, math.ceil(width * beta / factor) * factor
