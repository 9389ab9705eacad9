# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Pictures and frames to the patch rows that a Qwen-style vision tower reads.

Everything about a picture that the prompt needs (its grid) is known from its size alone, so a
request can be refused before a single pixel is touched.
"""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import Qwen2VLImageProcessorPil

from .errors import RequestError
from .patches import (
    PatchRule,
    image_rule,
    normalise,
    patchify,
    resize_frame,
    resize_to,
    resize_video_to,
    video_rule,
)

DEFAULT_FPS = 24.0  # what transformers assumes when a video comes without a frame rate


@dataclass(frozen=True)
class MediaItem:
    """One picture or video whose grid is known and whose pixels are still as the caller gave them.

    Attributes:
        modality: ``"image"`` or ``"video"``.
        grid_thw: Patch grid (t, h, w); t counts temporal patches (frame pairs).
        frames: Frames as uint8 arrays [H, W, 3], before resizing.
        size: Height and width in pixels after resizing.
        frame_times: Seconds of each temporal patch, length t; empty for pictures.
    """

    modality: str
    grid_thw: tuple[int, int, int]
    frames: list[np.ndarray] = field(repr=False)
    size: tuple[int, int]
    frame_times: tuple[float, ...] = ()

    @property
    def num_rows(self) -> int:
        """Patch rows the tower reads, t * h * w."""
        return math.prod(self.grid_thw)


class MediaInputs:
    """Turns caller media into tower inputs by the rules of one checkpoint folder.

    Args:
        checkpoint: Folder with preprocessor_config.json and video_preprocessor_config.json (or a
            processor_config.json that holds both, as newer transformers versions save it).

    Raises:
        ValueError: The folder has no image preprocessor configuration.
    """

    def __init__(self, checkpoint: str | Path) -> None:
        folder = Path(checkpoint)
        nested = _read_json(folder / "processor_config.json")
        image = (
            _read_json(folder / "preprocessor_config.json") or nested.get("image_processor") or {}
        )
        video = _read_json(folder / "video_preprocessor_config.json") or nested.get(
            "video_processor"
        )
        if not image:
            raise ValueError(
                f"{folder} has no preprocessor_config.json, so pictures cannot be cut into "
                "patches; "
                "copy the file from the published checkpoint"
            )
        kinds = ("image_processor_type", "processor_class", "feature_extractor_type")
        self._processor = Qwen2VLImageProcessorPil(
            **{key: value for key, value in image.items() if key not in kinds}
        )
        self.image_rule = image_rule(self._processor)
        self.video_rule = video_rule(video or {}, self.image_rule)

    def check_fits(self, vision_config: Any) -> None:
        """Check that the folder's preprocessors cut patches of the size its encoder reads.

        Args:
            vision_config: ``vision_config`` of the model's configuration.

        Raises:
            ValueError: They do not.
        """
        wanted = (
            vision_config.patch_size,
            vision_config.temporal_patch_size,
            vision_config.spatial_merge_size,
        )
        for name, rule in (("image", self.image_rule), ("video", self.video_rule)):
            found = (rule.patch_size, rule.temporal_patch_size, rule.merge_size)
            if found != wanted:
                raise ValueError(
                    f"the {name} preprocessor configuration has patch, temporal patch and merge "
                    "size "
                    f"{found}, the encoder reads {wanted}; take the preprocessor files and "
                    "config.json "
                    "from the same checkpoint"
                )

    def plan(self, modality: str, media: Any) -> MediaItem:
        """Check one picture or video and work out its grid; no pixel is resized yet.

        Args:
            modality: ``"image"`` or ``"video"``.
            media: A picture is a PIL image or an array [H, W, 3] or [H, W] (uint8 of 0..255, or
                float of 0..1). A video is a list of such pictures, an array [T, H, W, 3], or a
                mapping ``{"frames": ..., "fps": ...}``. Frames are used as given: choose them
                before, and let ``fps`` be the rate of the frames given. An odd last frame is
                repeated.

        Returns:
            The planned item.

        Raises:
            RequestError: The media cannot be used; the message says why.
        """
        if modality == "image":
            return self._plan_image(media)
        if modality == "video":
            return self._plan_video(media)
        raise RequestError(f"modality {modality!r} is not known; use 'image' or 'video'")

    def load(self, item: MediaItem) -> dict[str, Any]:
        """Resize, normalise and cut a planned item.

        Args:
            item: What :meth:`plan` returned.

        Returns:
            ``{"pixel_values": float32 tensor [t*h*w, C*temporal*patch*patch], "grid_thw": (t, h,
            w)}``, rows in merge-block order.
        """
        if item.modality == "image":
            encoded = self._processor(images=Image.fromarray(item.frames[0]), return_tensors="np")
            rows = np.ascontiguousarray(encoded["pixel_values"], dtype=np.float32)
        else:
            rule = self.video_rule
            frames = np.stack(
                [normalise(resize_frame(f, item.size, rule), rule) for f in item.frames]
            )
            rows = patchify(frames, rule)
        if len(rows) != item.num_rows:
            raise RuntimeError(
                f"{item.modality} of grid {item.grid_thw} gave {len(rows)} rows, planned "
                f"{item.num_rows}"
            )
        return {"pixel_values": torch.from_numpy(rows), "grid_thw": item.grid_thw}

    def _plan_image(self, media: Any) -> MediaItem:
        frame = to_rgb(media, "image")
        rule = self.image_rule
        height, width = _checked_size(frame, "image")
        if rule.do_resize:
            height, width = resize_to(height, width, rule)
        grid = _grid(1, height, width, rule, "image")
        return MediaItem("image", grid, [frame], (height, width))

    def _plan_video(self, media: Any) -> MediaItem:
        frames_in, fps = _frames_and_rate(media)
        if len(frames_in) == 0:
            raise RequestError("video has 0 frames; give at least 1")
        frames = [to_rgb(frame, f"video frame {i}") for i, frame in enumerate(frames_in)]
        rule = self.video_rule
        height, width = _checked_size(frames[0], "video frame")
        for i, frame in enumerate(frames):
            if frame.shape != frames[0].shape:
                raise RequestError(
                    f"video frame {i} is {frame.shape[1]}x{frame.shape[0]}, frame 0 is "
                    f"{width}x{height}; "
                    "all frames of a video must have one size"
                )
        times = [index / fps for index in range(len(frames))]
        while len(frames) % rule.temporal_patch_size:
            frames.append(frames[-1])
            times.append(times[-1])
        if rule.do_resize:
            height, width = resize_video_to(len(frames), height, width, rule)
        step = rule.temporal_patch_size
        pairs = range(0, len(frames), step)
        grid = _grid(len(pairs), height, width, rule, "video")
        middle = tuple((times[i] + times[i + step - 1]) / 2 for i in pairs)
        return MediaItem("video", grid, frames, (height, width), middle)


def to_rgb(media: Any, name: str) -> np.ndarray:
    """Check a picture and return it as a uint8 array [H, W, 3]."""
    if isinstance(media, Image.Image):
        if 0 in media.size:
            raise RequestError(
                f"{name} is {media.width}x{media.height} pixels; both sides must be at least 1"
            )
        return np.asarray(media.convert("RGB"))
    if isinstance(media, torch.Tensor):
        media = media.detach().cpu().numpy()
    if not isinstance(media, np.ndarray):
        raise RequestError(
            f"{name} is a {type(media).__name__}; give a PIL image or an array [H, W, 3] "
            "(files and URLs are opened by the caller)"
        )
    if media.ndim == 2:
        media = np.repeat(media[:, :, None], 3, axis=2)
    if media.ndim != 3 or media.shape[2] != 3:
        raise RequestError(
            f"{name} has shape {list(media.shape)}; an array must be [H, W, 3] or [H, W]"
        )
    if 0 in media.shape:
        raise RequestError(f"{name} has shape {list(media.shape)}; both sides must be at least 1")
    if media.dtype == np.uint8:
        return media
    if not np.issubdtype(media.dtype, np.floating):
        raise RequestError(f"{name} has dtype {media.dtype}; use uint8 (0..255) or float (0..1)")
    if not np.isfinite(media).all():
        raise RequestError(f"{name} holds NaN or infinite values; replace them before")
    low, high = float(media.min()), float(media.max())
    if low < 0 or high > 1:
        raise RequestError(
            f"{name} holds values from {low:g} to {high:g}; float pixels must lie in 0..1, or "
            "convert to uint8"
        )
    return (media * 255).round().astype(np.uint8)


def _frames_and_rate(media: Any) -> tuple[Sequence[Any] | np.ndarray, float]:
    fps: Any = DEFAULT_FPS
    if isinstance(media, Mapping):
        unknown = sorted(set(media) - {"frames", "fps"})
        if unknown or "frames" not in media:
            raise RequestError(
                f"video mapping has keys {sorted(media)}; it needs 'frames' and may have 'fps'"
            )
        fps = media.get("fps") if media.get("fps") is not None else DEFAULT_FPS
        media = media["frames"]
    real = isinstance(fps, numbers.Real) and not isinstance(fps, bool)
    if not real or not math.isfinite(fps) or fps <= 0:
        raise RequestError(f"video fps is {fps!r}; give a positive number of frames per second")
    if isinstance(media, torch.Tensor):
        media = media.detach().cpu().numpy()
    if isinstance(media, np.ndarray):
        if media.ndim != 4:
            raise RequestError(
                f"video array has shape {list(media.shape)}; it must be [T, H, W, 3]"
            )
    elif not isinstance(media, (list, tuple)):
        raise RequestError(
            f"video is a {type(media).__name__}; give a list of PIL frames, an array [T, H, W, 3], "
            "or {'frames': ..., 'fps': ...}"
        )
    return media, float(fps)


def _checked_size(frame: np.ndarray, name: str) -> tuple[int, int]:
    height, width = frame.shape[:2]
    if height * width == 1:
        raise RequestError(f"{name} is 1x1 pixel; that shows nothing, the file is probably broken")
    return height, width


def _grid(t: int, height: int, width: int, rule: PatchRule, name: str) -> tuple[int, int, int]:
    if height % rule.factor or width % rule.factor or not height or not width:
        raise RequestError(
            f"{name} is {width}x{height} pixels and the checkpoint says do_resize: false; "
            f"both sides must be multiples of {rule.factor}"
        )
    return t, height // rule.patch_size, width // rule.patch_size


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    return dict(json.loads(path.read_text(encoding="utf-8")))
