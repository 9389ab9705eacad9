# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Preprocessor files, keys as the published checkpoints of each family have them."""

from __future__ import annotations

from typing import Any

# Bounds on H * W: 16 x 16 pixels are a row of a picture, so at most 1024 rows (256 tokens).
IMAGE_SIZE = {"shortest_edge": 64 * 64, "longest_edge": 512 * 512}
# Bounds on T * H * W, T counting frames.
VIDEO_SIZE = {"shortest_edge": 64 * 64, "longest_edge": 32 * 32 * 768}

_QWEN_PATCHES = {
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
_CLIP_PATCHES = {
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
_WHISPER = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": 128,
    "sampling_rate": 16000,
    "hop_length": 160,
    "chunk_length": 300,
    "n_fft": 400,
    "dither": 0.0,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": True,
}


_IMAGE, _VIDEO = {"size": IMAGE_SIZE}, {"size": VIDEO_SIZE}
_FRAMES = {**_VIDEO, "fps": 2, "min_frames": 4, "max_frames": 768}


def preprocessor_files(style: str) -> dict[str, dict[str, Any]]:
    """Contents of the preprocessor files of a style, by file name."""
    if style == "none":
        return {}
    if style == "qwen":
        names = ("Qwen2VLImageProcessor", "Qwen3VLVideoProcessor", "Qwen3VLProcessor")
        return _pictures_and_videos(*names, _QWEN_PATCHES, _IMAGE, _FRAMES)
    if style in ("qwen2_vl", "qwen2_5_vl"):
        image = {
            "image_processor_type": "Qwen2VLImageProcessor",
            "processor_class": {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL"}[style]
            + "Processor",
            **_CLIP_PATCHES,
            "min_pixels": IMAGE_SIZE["shortest_edge"],
            "max_pixels": IMAGE_SIZE["longest_edge"],
        }
        return {"preprocessor_config.json": image}
    if style == "omni":
        names = ("Qwen2VLImageProcessor", "Qwen2VLVideoProcessor", "Qwen3OmniMoeProcessor")
        files = _pictures_and_videos(*names, _QWEN_PATCHES, _IMAGE, _VIDEO)
        files["preprocessor_config.json"].update(_WHISPER)
        return files
    if style == "asr":
        extractor = {**_WHISPER, "feature_extractor_type": "Qwen3ASRFeatureExtractor"}
        nested = {"feature_extractor": extractor, "processor_class": "Qwen3ASRProcessor"}
        return {"processor_config.json": nested}
    if style == "asr_original":
        return {"preprocessor_config.json": {**_WHISPER, "processor_class": "Qwen3ASRProcessor"}}
    if style == "glm5_next":
        names = ("Glm5NextImageProcessor", "Glm5NextVideoProcessor", "Glm5NextProcessor")
        tokens = ({"min_image_tokens": 4, "max_image_tokens": 256}, {"min_image_tokens": 4})
        return _pictures_and_videos(*names, _CLIP_PATCHES, *tokens)
    stem = {"glm4v": "Glm4v", "glm46v": "Glm46V"}[style]
    names = (f"{stem}ImageProcessor", f"{stem}VideoProcessor", f"{stem}Processor")
    return _pictures_and_videos(*names, _CLIP_PATCHES, _IMAGE, _VIDEO)


def _pictures_and_videos(
    image: str,
    video: str,
    processor: str,
    patches: dict[str, Any],
    image_limits: dict[str, Any],
    video_limits: dict[str, Any],
) -> dict[str, dict[str, Any]]:
    return {
        "preprocessor_config.json": {
            "image_processor_type": image,
            "processor_class": processor,
            **patches,
            **image_limits,
        },
        "video_preprocessor_config.json": {
            "video_processor_type": video,
            "processor_class": processor,
            **patches,
            **video_limits,
        },
    }
