# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Pictures and frames to the patch rows that a vision tower reads; sound goes the same way.

Everything about a picture that the prompt needs (its grid) is known from its size alone, so a
request can be refused before a single pixel is touched.
"""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image

from .audio_inputs import AudioInputs, AudioItem
from .errors import RequestError
from .families import FAMILIES, Family, PatchStyle
from .patches import Fit, PatchRule, image_rule, normalise, patchify, resize_frame, video_rule
from .raw_media import picture_size, to_rgb

_NOT_OF_PICTURES = (
    *("image_processor_type", "processor_class", "feature_extractor_type"),
    *("feature_size", "sampling_rate", "hop_length", "chunk_length", "n_fft", "n_samples"),
    *("nb_max_frames", "padding_side", "padding_value", "dither", "return_attention_mask"),
)
_MAX_FPS = 1_000_000
_LARGE = (100_000, 100_000)  # pixels


@dataclass(frozen=True)
class MediaItem:
    """One picture or video whose grid is known and whose pixels are still as the caller gave them.

    Attributes:
        modality: ``"image"`` or ``"video"``.
        grid_thw: Patch grid (t, h, w); t counts temporal patches (frame pairs).
        num_tokens: Features that the tower gives.
        frames: Frames as the caller gave them: neither decoded nor looked into.
        fit: Size in pixels after resizing.
        pair_times: Seconds of the first and last frame of each temporal patch, length t; empty for
            pictures.
        seconds_per_pair: Time between temporal patches.
        tower: Key of the tower that reads it.
    """

    modality: str
    grid_thw: tuple[int, int, int]
    num_tokens: int
    frames: list[Any] = field(repr=False)
    fit: Fit
    pair_times: tuple[tuple[float, float], ...] = ()
    seconds_per_pair: float = 0.0
    tower: str = "image"

    @property
    def num_rows(self) -> int:
        """Patch rows the tower reads, t * h * w."""
        return math.prod(self.grid_thw)


Item = MediaItem | AudioItem


class MediaInputs:
    """Turns caller media into tower inputs by the rules of one checkpoint folder.

    Args:
        checkpoint: Folder with preprocessor_config.json and video_preprocessor_config.json (or a
            processor_config.json that holds both, as newer transformers versions save it).
        family: What the engine knows about its model.
        towers: Its encoders by modality.

    Raises:
        ValueError: The folder has no image preprocessor configuration, or one that does not fit
            its encoders.
    """

    def __init__(
        self,
        checkpoint: str | Path,
        family: Family = FAMILIES["qwen3_vl"],
        towers: Mapping[str, Any] | None = None,
    ) -> None:
        folder, towers = Path(checkpoint), towers or {}
        nested = _read_json(folder / "processor_config.json")
        flat = _read_json(folder / "preprocessor_config.json")
        self.processor_class: str | None = flat.get("processor_class") or nested.get(
            "processor_class"
        )
        self._family, style = family, family.style
        self.modalities: tuple[str, ...] = ()
        if style is not None:
            image = flat or nested.get("image_processor") or {}
            video = _read_json(folder / "video_preprocessor_config.json")
            video = video or nested.get("video_processor") or {}
            if style.processor is None:
                self.image_rule = self.video_rule = _bare_rule(towers["image"].config, style)
            else:
                self.image_rule = image_rule(_image_processor(folder, style.processor, image))
                self.video_rule = video_rule(video, self.image_rule, style.video_defaults)
            self.modalities = ("image", "video")
            if "image" in towers:
                self.check_fits(towers["image"].config)
        if "audio" in towers:
            sound = flat or nested.get("feature_extractor") or {}
            geometry = towers["audio"].geometry
            self.audio = AudioInputs(sound, geometry, shortest=family.shortest_clip)
            self.modalities = (*self.modalities, "audio")

    def check_fits(self, vision_config: Any) -> None:
        """Check that the folder's preprocessors cut patches of the size its encoder reads.

        Args:
            vision_config: Configuration of the encoder.

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
                    f"size {found}, the encoder reads {wanted}; take the preprocessor files and "
                    "config.json from the same checkpoint"
                )

    def plan(self, modality: str, media: Any) -> Item:
        """Check an item's kind and shape and work out its size; no pixel is decoded or read yet.

        Args:
            modality: ``"image"``, ``"video"`` or ``"audio"``.
            media: A picture is a PIL image or an array [H, W, 3] or [H, W] (uint8 of 0..255, or
                float of 0..1). A video is a list of such pictures, an array [T, H, W, 3], or a
                mapping ``{"frames": ..., "fps": ...}``. Frames are used as given: choose them
                before, and let ``fps`` be the rate of the frames given. An odd last frame is
                repeated. For sound see :meth:`AudioInputs.plan`. The media have to stay as they
                are until :meth:`load`.

        Returns:
            The planned item.

        Raises:
            RequestError: The media cannot be used; the message says why.
        """
        self.check_modality(modality)
        if modality == "image":
            return self._plan_image(media)
        if modality == "video":
            return self._plan_video(media)
        return self.audio.plan(media)

    def check_modality(self, modality: str) -> None:
        """Refuse a modality that the model has no encoder for.

        Raises:
            RequestError: There is none.
        """
        if modality not in self.modalities:
            raise RequestError(
                f"modality {modality!r} has no encoder here; allowed: {', '.join(self.modalities)}"
            )

    def load(self, item: Item) -> dict[str, Any]:
        """Decode, resize, normalise and cut a planned item, or compute its spectrum.

        Args:
            item: What :meth:`plan` returned.

        Returns:
            ``{"pixel_values": float32 tensor [t*h*w, C*temporal*patch*patch], "grid_thw": (t, h,
            w)}``, rows in merge-block order, or ``{"input_features": float32 tensor [mel,
            frames]}``.

        Raises:
            RequestError: It cannot be decoded, or holds values that cannot be used.
        """
        return self.prepare(item, self.decode(item))

    def decode(self, item: Item) -> Iterator[np.ndarray]:
        """All of a planned item's content that its features can depend on.

        Args:
            item: What :meth:`plan` returned.

        Yields:
            Frames, uint8 [H, W, 3], one at a time; or once the samples, float32 [samples].

        Raises:
            RequestError: It cannot be decoded, or holds values that cannot be used.
        """
        if isinstance(item, AudioItem):
            yield self.audio.decode(item)
            return
        for i, frame in enumerate(item.frames):
            if not i or frame is not item.frames[i - 1]:  # else it fills up a temporal patch
                pixels = to_rgb(frame, _name(item.modality, i))
            yield pixels

    def recipe(self, item: Item) -> Hashable:
        """All besides the content that a planned item's tower inputs depend on."""
        if isinstance(item, AudioItem):
            return self.audio.recipe(item)
        return item.fit, self.rule_of(item.modality)

    def prepare(self, item: Item, content: Iterable[np.ndarray]) -> dict[str, Any]:
        """Resize, normalise and cut decoded frames, or compute the spectrum of samples.

        Args:
            item: What :meth:`plan` returned.
            content: What :meth:`decode` yields: uint8 [H, W, 3] or float32 [samples].

        Returns:
            As :meth:`load`.
        """
        if isinstance(item, AudioItem):
            (samples,) = content
            return self.audio.prepare(item, samples)
        rule, last = self.rule_of(item.modality), None
        ready: list[np.ndarray] = []
        for pixels in content:
            again = pixels is last
            last = pixels
            ready.append(
                ready[-1] if again else normalise(resize_frame(pixels, item.fit, rule), rule)
            )
        if item.modality == "image":  # a picture fills its temporal patch
            ready *= rule.temporal_patch_size
        rows = patchify(np.stack(ready), rule)
        if len(rows) != item.num_rows:
            raise RuntimeError(
                f"{item.modality} of grid {item.grid_thw} gave {len(rows)} rows, planned "
                f"{item.num_rows}"
            )
        return {"pixel_values": torch.from_numpy(rows), "grid_thw": item.grid_thw}

    def rule_of(self, modality: str) -> PatchRule:
        """How pictures or videos are cut."""
        return self.image_rule if modality == "image" else self.video_rule

    def longest_segment(self, num_tokens: int) -> int:
        """Rows of the largest picture or frame pair that a prompt of so many tokens can hold."""
        rows = [0]
        for modality in set(self.modalities) & {"image", "video"}:
            rule = self.rule_of(modality)
            rows.append(num_tokens * rule.merge_size**2)
            if rule.do_resize:  # to less than this in any case
                largest = self._planned(modality, [], _LARGE, rule.temporal_patch_size)
                rows[-1] = min(rows[-1], largest.num_rows)
        return max(rows)

    def _plan_image(self, media: Any) -> MediaItem:
        size = picture_size(media, "image")
        return self._planned("image", [media], size, self.image_rule.temporal_patch_size)

    def _planned(
        self,
        modality: str,
        frames: list[Any],
        size: tuple[int, int],
        count: int,
        **more: Any,
    ) -> MediaItem:
        """Item of a number of frames (temporal patches filled up) of a size in pixels."""
        rule, style = self.rule_of(modality), self._family.style
        fit = Fit(size, size)
        if rule.do_resize and style is not None:
            find = style.image_fit if modality == "image" else style.video_fit
            fit = find(count, *size, rule)
        grid = _grid(count // rule.temporal_patch_size, *fit.canvas, rule, modality)
        tokens = math.prod(grid) // rule.merge_size**2
        return MediaItem(modality, grid, tokens, frames, fit, **more)

    def _plan_video(self, media: Any) -> MediaItem:
        frames_in, fps = _frames_and_rate(media, self._family.default_fps)
        if len(frames_in) == 0:
            raise RequestError("video has 0 frames; give at least 1")
        frames, rule = list(frames_in), self.video_rule
        sizes = [picture_size(frame, _name("video", i)) for i, frame in enumerate(frames)]
        height, width = sizes[0]
        for i, (its_height, its_width) in enumerate(sizes):
            if (its_height, its_width) != (height, width):
                raise RequestError(
                    f"video frame {i} is {its_width}x{its_height}, frame 0 is {width}x{height}; "
                    "all frames of a video must have one size"
                )
        times = [index / fps for index in range(len(frames))]
        step = rule.temporal_patch_size
        while len(frames) % step:
            frames.append(frames[-1])
            times.append(times[-1])
        pairs = tuple((times[i], times[i + step - 1]) for i in range(0, len(frames), step))
        return self._planned(
            "video",
            frames,
            (height, width),
            len(frames),
            pair_times=pairs,
            seconds_per_pair=step / fps,
        )


def _image_processor(folder: Path, name: str, config: Mapping[str, Any]) -> Any:
    """The processor whose settings a file holds; it fills what the file leaves out."""
    if not config:
        raise ValueError(
            f"{folder} has no preprocessor_config.json, so pictures cannot be cut into patches; "
            "copy the file from the published checkpoint"
        )
    if config.get("patch_expand_factor", 1) != 1:
        raise ValueError(
            f"{folder}/preprocessor_config.json has patch_expand_factor "
            f"{config['patch_expand_factor']}; only 1 is supported"
        )
    kept = {key: value for key, value in config.items() if key not in _NOT_OF_PICTURES}
    return getattr(transformers, name)(**kept)


def _bare_rule(config: Any, style: PatchStyle) -> PatchRule:
    """Sides rounded to whole merge blocks, the area limited to a square; pixels from 0..1."""
    mean, std = style.video_defaults.get("image_mean"), style.video_defaults.get("image_std")
    return PatchRule(
        patch_size=config.patch_size,
        temporal_patch_size=config.temporal_patch_size,
        merge_size=config.spatial_merge_size,
        min_pixels=(config.patch_size * config.spatial_merge_size) ** 2,
        max_pixels=getattr(config, style.max_side) ** 2,
        rescale_factor=1 / 255,
        mean=tuple(mean or ()),
        std=tuple(std or ()),
        do_resize=True,
        do_rescale=True,
        do_normalize=mean is not None,
        resample=int(Image.Resampling.BICUBIC),
        raster=True,
    )


def _name(modality: str, index: int) -> str:
    return "image" if modality == "image" else f"video frame {index}"


def _frames_and_rate(media: Any, default_fps: float) -> tuple[Sequence[Any], float]:
    fps: Any = default_fps
    if isinstance(media, Mapping):
        if "frames" not in media or set(media) - {"frames", "fps"}:
            raise RequestError(
                f"video mapping has keys {sorted(map(str, media))}; it needs 'frames' and may have "
                "'fps'"
            )
        fps = media.get("fps") if media.get("fps") is not None else default_fps
        media = media["frames"]
    real = isinstance(fps, numbers.Real) and not isinstance(fps, bool)
    if not real or not 0 < fps <= _MAX_FPS:
        raise RequestError(
            f"video fps is {fps!r:.40}; give a positive number of frames per second, at most "
            f"{_MAX_FPS:,}"
        )
    if isinstance(media, (np.ndarray, torch.Tensor)):
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
