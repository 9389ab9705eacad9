# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""What the engine knows about each family of models, in one table; the rest of it is generic.

A family says how pictures and frames become patch rows, what a media item becomes in a prompt, and
how rotary positions of a prompt are found. transformers' own forward does the rest: it scatters
features over placeholders, rotates and adds deepstack features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from .errors import RequestError
from .patches import Fit, PatchRule, fit_frames, fit_on_canvas, fit_picture

Words = Mapping[str, str]
"""Special tokens by the names of :attr:`Family.tokens`."""
Ids = Mapping[str, int]

_MIDDLE = [0.5, 0.5, 0.5]
_CLIP = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}


class VideoItem(Protocol):
    """What the expansion of a video needs."""

    @property
    def num_tokens(self) -> int:
        """Features of all frame pairs together."""
        ...

    @property
    def pair_times(self) -> tuple[tuple[float, float], ...]:
        """Seconds of the first and last frame of each pair."""
        ...


class PromptLike(Protocol):
    """What positions are computed from."""

    @property
    def token_ids(self) -> list[int]:
        """Expanded ids."""
        ...

    @property
    def token_types(self) -> list[int]:
        """0 text, 1 image, 2 video, 3 audio."""
        ...

    @property
    def items(self) -> Mapping[str, Sequence[Any]]:
        """Media by modality."""
        ...


@dataclass(frozen=True)
class PatchStyle:
    """How pictures and frames of a video become patch rows.

    Attributes:
        processor: Image processor class of transformers that reads preprocessor_config.json; None
            where the encoder's own configuration says all there is: rows are in raster order then.
        image_fit: Size of a picture of (frames, height, width) after resizing.
        video_fit: The same for a video.
        video_defaults: Settings of the video processor that its file may leave out; without a
            processor, ``image_mean`` and ``image_std`` where pixels are normalised at all.
        max_side: Key of the encoder's configuration that has the side of the square which limits
            the area of pictures without a processor.
    """

    processor: str | None
    image_fit: Callable[[int, int, int, PatchRule], Fit] = fit_picture
    video_fit: Callable[[int, int, int, PatchRule], Fit] = fit_frames
    video_defaults: Mapping[str, Any] = field(default_factory=dict)
    max_side: str = ""


# ---- what a video becomes in a prompt -------------------------------------------------------


def _timed_pairs(item: VideoItem, words: Words) -> str:
    """Qwen: the middle of each frame pair in seconds, then its tokens, each pair wrapped."""
    times = item.pair_times
    run = words["open"] + words["video"] * (item.num_tokens // len(times)) + words["close"]
    return "".join(f"<{(first + last) / 2:.1f} seconds>{run}" for first, last in times)


def _framed_pairs(seconds: str) -> Callable[[VideoItem, Words], str]:
    """GLM: each frame pair wrapped like a picture, then the time of its first frame."""

    def expand(item: VideoItem, words: Words) -> str:
        times = item.pair_times
        run = words["open"] + words["image"] * (item.num_tokens // len(times)) + words["close"]
        return "".join(run + seconds.format(first, int(first)) for first, _ in times)

    return expand


def _one_run(item: VideoItem, words: Words) -> str:
    """Qwen3-Omni: the tokens of all frame pairs in a row; time is in the positions."""
    return words["video"] * item.num_tokens


_WHOLE_SECONDS, _TENTHS = _framed_pairs("{1}"), _framed_pairs("{0:.1f} seconds")
_BY_PROCESSOR = {"Glm4vProcessor": _WHOLE_SECONDS, "Glm46VProcessor": _TENTHS}
"""GLM-4.6V goes by the model type of GLM-4.5V, only the processor's name tells their times apart"""


# ---- what has to stand around an item -------------------------------------------------------


def _anywhere(types: np.ndarray, ids: np.ndarray, known: Ids, words: Words) -> None:
    """Positions follow from token types alone."""


def _videos_between_marks(types: np.ndarray, ids: np.ndarray, known: Ids, words: Words) -> None:
    """GLM tells pictures and video frames apart by the marks around a video."""
    begun = np.cumsum(ids == known["video_open"])
    inside = begun > np.cumsum(ids == known["video_close"])
    if ((types == 2) != (inside & (types > 0))).any():
        raise RequestError(
            f"a video has to stand between {words['video_open']} and {words['video_close']}, and a "
            "picture outside of them"
        )


def _each_after_its_mark(types: np.ndarray, ids: np.ndarray, known: Ids, words: Words) -> None:
    """Qwen3-Omni finds items by the mark in front of each."""
    padded = np.concatenate([[0], types, [0]])
    starts = np.flatnonzero((padded[1:-1] > 0) & (padded[1:-1] != padded[:-2]))
    for mark, modalities in (("open", (1, 2)), ("audio_open", (3,))):
        wanted = starts[np.isin(types[starts], modalities)] - 1
        if not np.array_equal(np.flatnonzero(ids == known[mark]), wanted):
            kinds = "picture and video" if mark == "open" else "clip"
            raise RequestError(
                f"{words[mark]} has to stand right in front of every {kinds}, and nowhere else"
            )
    if types[-1]:
        raise RequestError("a prompt cannot end with a media item; put its end mark or text behind")


# ---- rotary positions of a prompt -----------------------------------------------------------


def _positions_by_type(
    owner: Any, prompt: PromptLike, grids: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """By runs of token types: pictures and frame pairs in order."""
    positions: tuple[torch.Tensor, torch.Tensor] = owner.get_rope_index(
        torch.tensor([prompt.token_ids]),
        mm_token_type_ids=torch.tensor([prompt.token_types], dtype=torch.int32),
        image_grid_thw=grids.get("image"),
        video_grid_thw=grids.get("video"),
    )
    return positions


def _positions_by_marks(
    owner: Any, prompt: PromptLike, grids: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """By the marks in front of items; a video's step in time depends on its frame rate."""
    ids = torch.tensor([prompt.token_ids])
    videos, clips = prompt.items.get("video", ()), prompt.items.get("audio", ())
    positions: tuple[torch.Tensor, torch.Tensor] = owner.get_rope_index(
        ids,
        image_grid_thw=grids.get("image"),
        video_grid_thw=grids.get("video"),
        attention_mask=torch.ones_like(ids),
        audio_seqlens=torch.tensor([clip.num_frames for clip in clips]),
        second_per_grids=torch.tensor([video.seconds_per_pair for video in videos]),
    )
    return positions


@dataclass(frozen=True)
class Family:
    """One family of models.

    Attributes:
        name: What it is called in messages.
        style: How pictures and frames become rows; None without a vision encoder.
        tokens: Keys of the model's configuration that hold special token ids, by the names used
            here: ``image``, ``video`` and ``audio`` are what a caller writes for an item.
        expand_video: Text that a video becomes.
        video_filler: Token that a video's features are scattered over.
        videos_as_pictures: transformers scatters pictures over all their tokens, those in videos
            included, and counts before it gets to the videos: all go to it as pictures, in prompt
            order.
        check_marks: Refuses prompts in which the model would not find its items.
        positions: Rotary positions [3, 1, length] of a prompt and what they add to the text
            position afterwards; None for a model without rotary positions.
        section: Key of config.json that holds the model that is served, where it is a part.
        default_fps: Frame rate of a video that comes without.
        shortest_clip: Samples that shorter clips are filled up to with silence.
    """

    name: str
    style: PatchStyle | None
    tokens: Mapping[str, str] = field(default_factory=dict)
    expand_video: Callable[[VideoItem, Words], str] = _timed_pairs
    video_filler: str = "video"
    videos_as_pictures: bool = False
    check_marks: Callable[[np.ndarray, np.ndarray, Ids, Words], None] = _anywhere
    positions: (
        Callable[[Any, PromptLike, Mapping[str, torch.Tensor]], tuple[torch.Tensor, torch.Tensor]]
        | None
    ) = _positions_by_type
    section: str | None = None
    default_fps: float = 24.0
    shortest_clip: int = 0

    @property
    def modalities(self) -> tuple[str, ...]:
        """What a prompt of the model can hold."""
        return tuple(m for m in ("image", "video", "audio") if m in self.tokens)

    def served_config(self, config: Any) -> Any:
        """The part of a transformers configuration that is served."""
        return getattr(config, self.section, config) if self.section else config

    def video_expander(self, processor_class: str | None) -> Callable[[VideoItem, Words], str]:
        """How videos are expanded, given the processor that a checkpoint names."""
        if self.expand_video in _BY_PROCESSOR.values():
            return _BY_PROCESSOR.get(processor_class or "", self.expand_video)
        return self.expand_video


# ---- the table ------------------------------------------------------------------------------

_QWEN_TOKENS = {
    "image": "image_token_id",
    "video": "video_token_id",
    "open": "vision_start_token_id",
    "close": "vision_end_token_id",
}
_OMNI_TOKENS = {
    "image": "image_token_id",
    "video": "video_token_id",
    "audio": "audio_token_id",
    "open": "vision_start_token_id",
    "audio_open": "audio_start_token_id",
}
_GLM_TOKENS = {
    "image": "image_token_id",
    "video": "video_token_id",
    "open": "image_start_token_id",
    "close": "image_end_token_id",
    "video_open": "video_start_token_id",
    "video_close": "video_end_token_id",
}

QWEN_PATCHES = PatchStyle(
    "Qwen2VLImageProcessorPil",
    video_defaults={
        "size": {"shortest_edge": 128 * 32 * 32, "longest_edge": 32 * 32 * 768},
        "image_mean": _MIDDLE,
        "image_std": _MIDDLE,
    },
)
_QWEN2_PATCHES = PatchStyle(
    "Qwen2VLImageProcessorPil",
    video_fit=fit_picture,  # its limits are per frame
    video_defaults={
        "size": {"shortest_edge": 128 * 28 * 28, "longest_edge": 768 * 28 * 28},
        **_CLIP,
    },
)
_OMNI_PATCHES = PatchStyle(
    "Qwen2VLImageProcessorPil",
    video_fit=fit_picture,
    video_defaults={"size": {"shortest_edge": 128 * 32 * 32, "longest_edge": 768 * 32 * 32}},
)


def _glm_patches(processor: str) -> PatchStyle:
    size = {"shortest_edge": 112 * 112, "longest_edge": 28 * 28 * 2 * 30000}
    return PatchStyle(processor, image_fit=fit_frames, video_defaults={"size": size, **_CLIP})


_GLM5_PATCHES = PatchStyle(
    "Glm5NextImageProcessorPil",
    image_fit=fit_on_canvas,
    video_fit=fit_on_canvas,
    video_defaults={"min_image_tokens": 16, "max_image_tokens": 240000, **_CLIP},
)


def _bare_patches(**normalisation: Any) -> PatchStyle:
    return PatchStyle(
        None, video_fit=fit_picture, video_defaults=normalisation, max_side="max_img_size"
    )


def _glm(name: str, style: PatchStyle, **more: Any) -> Family:
    how: dict[str, Any] = {"expand_video": _TENTHS, "videos_as_pictures": True, **more}
    marks = _videos_between_marks
    return Family(name, style, _GLM_TOKENS, video_filler="image", check_marks=marks, **how)


_QWEN3_VL = Family("Qwen3-VL", QWEN_PATCHES, _QWEN_TOKENS)
_QWEN3_5 = Family("Qwen3.5", QWEN_PATCHES, _QWEN_TOKENS)
_OMNI = Family(
    "Qwen3-Omni",
    _OMNI_PATCHES,
    _OMNI_TOKENS,
    expand_video=_one_run,
    check_marks=_each_after_its_mark,
    positions=_positions_by_marks,
    section="thinker_config",
    default_fps=1.0,
)

FAMILIES: dict[str, Family] = {
    "qwen3_vl": _QWEN3_VL,
    "qwen3_vl_moe": _QWEN3_VL,
    "qwen3_5": _QWEN3_5,
    "qwen3_5_moe": _QWEN3_5,
    "qwen3_omni_moe": _OMNI,
    "qwen3_omni_moe_thinker": _OMNI,
    "glm4v": _glm("GLM-4.1V", _glm_patches("Glm4vImageProcessorPil"), expand_video=_WHOLE_SECONDS),
    "glm4v_moe": _glm(
        "GLM-4.5V", _glm_patches("Glm4vImageProcessorPil"), expand_video=_WHOLE_SECONDS
    ),
    "glm46v": _glm("GLM-4.6V", _glm_patches("Glm46VImageProcessorPil")),
    "glm_ocr": _glm("GLM-OCR", _glm_patches("Glm46VImageProcessorPil")),
    "glm5_next": _glm("GLM-5.3", _GLM5_PATCHES, videos_as_pictures=False, positions=None),
    "qwen2_vl": Family("Qwen2-VL", _QWEN2_PATCHES),
    "qwen2_5_vl": Family("Qwen2.5-VL", _QWEN2_PATCHES),
    "qwen3_asr": Family("Qwen3-ASR", None, shortest_clip=8000),
    "radio": Family("RADIO", _bare_patches()),
    "nemotron_h_omni": Family("Nemotron Omni", _bare_patches(**_CLIP)),
}
"""By ``model_type`` of config.json. A family without tokens is served as encoders only."""


def family_of(model_type: str) -> Family:
    """The family of a model type.

    Raises:
        ValueError: There is none; the message lists what there is.
    """
    if model_type not in FAMILIES:
        raise ValueError(
            f"the torch engine does not know model type {model_type!r}; it knows "
            f"{', '.join(sorted(FAMILIES))}. load_tower serves encoders of any registered model"
        )
    return FAMILIES[model_type]
