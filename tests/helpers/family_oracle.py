# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""transformers, unmodified, as the oracle of every family: its processors, towers and models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from transformers import AutoConfig, AutoModelForImageTextToText, AutoTokenizer
from transformers.image_transforms import normalize, rescale
from transformers.models.qwen3_omni_moe.processing_qwen3_omni_moe import (
    _get_feat_extract_output_lengths,
)
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
from transformers.video_utils import VideoMetadata

PROCESSORS = {
    "qwen": ("Qwen3VLProcessor", "Qwen2VLImageProcessorPil"),
    "qwen2_vl": ("Qwen2VLProcessor", "Qwen2VLImageProcessorPil"),
    "qwen2_5_vl": ("Qwen2_5_VLProcessor", "Qwen2VLImageProcessorPil"),
    "omni": ("Qwen3OmniMoeProcessor", "Qwen2VLImageProcessorPil"),
    "glm4v": ("Glm4vProcessor", "Glm4vImageProcessorPil"),
    "glm46v": ("Glm46VProcessor", "Glm46VImageProcessorPil"),
    "glm5_next": ("Glm5NextProcessor", "Glm5NextImageProcessorPil"),
}
# Families that the engine serves without their language models.
ENCODERS_ONLY = (
    *("qwen2_vl", "qwen2_5_vl"),
    *("qwen3_asr", "qwen3_asr_original"),
    *("radio", "nemotron_h_omni"),
)


class FamilyOracle:
    """The unmodified model of a folder and the inputs that its own processor would give it."""

    def __init__(self, folder: Path, style: str) -> None:
        config = AutoConfig.from_pretrained(folder)
        config = getattr(config, "thinker_config", config)
        self.model: Any = AutoModelForImageTextToText.from_pretrained(
            folder, config=config, dtype=torch.float32
        ).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        processor, images = (getattr(transformers, name) for name in PROCESSORS[style])
        self.images = images.from_pretrained(folder)
        frames = SimpleNamespace(merge_size=2, temporal_patch_size=2)
        self.is_omni = style == "omni"
        self.extractor = None
        parts: dict[str, Any] = {}
        if self.is_omni:
            self.extractor = transformers.WhisperFeatureExtractor.from_pretrained(folder)
            parts["feature_extractor"] = self.extractor

        class WithoutTorchvision(processor):
            def check_argument_for_proper_class(self, name: str, argument: Any) -> None:
                return None

        self.processor: Any = WithoutTorchvision(
            image_processor=self.images, tokenizer=self.tokenizer, video_processor=frames, **parts
        )

    def inputs(
        self,
        prompt: str,
        images: Sequence[Image.Image] = (),
        videos: Sequence[np.ndarray] = (),
        audios: Sequence[np.ndarray] = (),
        fps: float | None = None,
    ) -> dict[str, Any]:
        """Arguments of the model's forward; videos need no resizing, clips have 16 kHz."""
        out: dict[str, Any] = {}
        if images:
            out.update(self.images(images=list(images), return_tensors="pt"))
        if videos:
            rows = [self._video_rows(video) for video in videos]
            out["pixel_values_videos"] = torch.cat([r for r, _ in rows])
            out["video_grid_thw"] = torch.tensor([grid for _, grid in rows])
        if audios:
            out.update(self._clips(audios))
        if self.is_omni:
            seconds = [2 / (fps or 1.0)] * len(videos)
            if videos:
                out["video_second_per_grid"] = torch.tensor(seconds)
            text = self._omni_text(prompt, out, seconds)
            ids = self.tokenizer([text])["input_ids"]
            out["attention_mask"] = torch.ones(1, len(ids[0]), dtype=torch.long)
        else:
            text = self._text(prompt, out, videos, fps, len(images))
            ids = self.tokenizer([text])["input_ids"]
            types = self.processor.create_mm_token_type_ids(ids)
            out["mm_token_type_ids"] = torch.tensor(types)
        out["input_ids"] = torch.tensor(ids)
        return out

    def _text(
        self, prompt: str, out: dict[str, Any], videos: Any, fps: float | None, num_images: int
    ) -> str:
        pictures = [self.processor.replace_image_token(out, image_idx=i) for i in range(num_images)]
        metadata = [
            VideoMetadata(len(v), fps=fps, frames_indices=list(range(len(v)))) for v in videos
        ]
        inputs = {"video_grid_thw": out.get("video_grid_thw"), "video_metadata": metadata}
        clips = [
            self.processor.replace_video_token(inputs, video_idx=i) for i in range(len(videos))
        ]
        texts, _ = self.processor.get_text_with_replacements([prompt], pictures, clips)
        return str(texts[0])

    def _omni_text(self, prompt: str, out: dict[str, Any], seconds: list[float]) -> str:
        frames = out["feature_attention_mask"].sum(-1) if "input_features" in out else []
        tokens = [int(_get_feat_extract_output_lengths(n)) for n in frames]
        if not hasattr(self.processor, "replace_multimodal_special_tokens"):  # since 5.24
            sounds = {"num_audio_tokens": tokens}
            own = self.processor
            texts, _ = own.get_text_with_replacements(
                [prompt],
                [
                    own.replace_image_token(out, i)
                    for i in range(len(out.get("image_grid_thw", [])))
                ],
                [
                    own.replace_video_token(out, i, load_audio_from_video=False)
                    for i in range(len(seconds))
                ],
                [own.replace_audio_token(sounds, i) for i in range(len(tokens))],
            )
            return str(texts[0])
        (text,) = self.processor.replace_multimodal_special_tokens(
            [prompt],
            iter(tokens),
            iter(out.get("image_grid_thw", [])),
            iter(out.get("video_grid_thw", [])),
            video_second_per_grid=iter(seconds),
            use_audio_in_video=False,
            position_id_per_seconds=13.0,
            seconds_per_chunk=2.0,
        )
        return str(text)

    def _clips(self, audios: Sequence[np.ndarray]) -> dict[str, torch.Tensor]:
        """Features of each clip alone, padded to the longest."""
        alone = [
            torch.from_numpy(
                self.extractor(
                    clip, sampling_rate=16000, padding=True, truncation=False, return_tensors="np"
                )["input_features"][0]
            )
            for clip in audios
        ]
        longest = max(clip.shape[1] for clip in alone)
        features = torch.zeros(len(alone), alone[0].shape[0], longest)
        mask = torch.zeros(len(alone), longest, dtype=torch.long)
        for i, clip in enumerate(alone):
            features[i, :, : clip.shape[1]], mask[i, : clip.shape[1]] = clip, 1
        return {"input_features": features, "feature_attention_mask": mask}

    def _video_rows(self, frames: np.ndarray) -> tuple[torch.Tensor, list[int]]:
        """Patch rows, cut by transformers' own function."""
        mean, std = self.images.image_mean, self.images.image_std
        ready = [
            normalize(
                rescale(frame.transpose(2, 0, 1), 1 / 255),
                mean,
                std,
                input_data_format="channels_first",
            )
            for frame in frames
        ]
        video = torch.from_numpy(np.stack(ready))[None]
        rows, *grid = Qwen3VLVideoProcessor.patchify(None, video, self.images.patch_size, 2, 2)
        return rows[0], list(grid)

    @torch.no_grad()
    def logits(self, inputs: dict[str, Any]) -> torch.Tensor:
        """Logits [vocab] of the last prompt token."""
        logits: torch.Tensor = self.model(**inputs).logits[0, -1]
        return logits

    @torch.no_grad()
    def generate(self, inputs: dict[str, Any], tokens: int) -> list[int]:
        """Greedy tokens, not stopped by any of them."""
        ids = inputs["input_ids"]
        out = self.model.generate(
            **{"attention_mask": torch.ones_like(ids), **inputs},
            do_sample=False,
            max_new_tokens=tokens,
            eos_token_id=[],
        )
        found: list[int] = out[0, ids.shape[1] :].tolist()
        return found

    @torch.no_grad()
    def step_by_step(
        self, prompt: str, order: Sequence[tuple[str, Any]], tokens: int
    ) -> tuple[torch.Tensor, list[int]]:
        """Logits and tokens of a prompt that the family's own forward refuses.

        transformers' GLM-4.xV scatters pictures and videos over one placeholder and then counts
        them apart. Its tower, embeddings, positions and decoder are used one after another here.
        """
        images = [item for kind, item in order if kind == "image"]
        videos = [item for kind, item in order if kind == "video"]
        inputs = self.inputs(prompt, images, videos)
        inner = self.model.model
        queues = {
            "image": iter(
                inner.get_image_features(
                    inputs["pixel_values"], inputs["image_grid_thw"]
                ).pooler_output
            ),
            "video": iter(
                inner.get_video_features(
                    inputs["pixel_values_videos"], inputs["video_grid_thw"]
                ).pooler_output
            ),
        }
        features = torch.cat([next(queues[kind]) for kind, _ in order])
        ids = inputs["input_ids"]
        embeds = inner.get_input_embeddings()(ids)
        mask = (ids == self.model.config.image_token_id)[..., None]
        embeds = embeds.masked_scatter(mask, features)
        spatial, _ = inner.get_rope_index(
            ids,
            mm_token_type_ids=inputs["mm_token_type_ids"],
            image_grid_thw=inputs["image_grid_thw"],
            video_grid_thw=inputs["video_grid_thw"],
        )
        first: torch.Tensor | None = None
        found: list[int] = []
        for _ in range(tokens):
            text = torch.arange(embeds.shape[1])[None, None]
            logits = self.model(
                inputs_embeds=embeds, position_ids=torch.cat([text, spatial])
            ).logits
            first = logits[0, -1] if first is None else first
            found.append(int(logits[0, -1].argmax()))
            new = inner.get_input_embeddings()(torch.tensor([[found[-1]]]))
            embeds = torch.cat([embeds, new], dim=1)
            spatial = torch.cat(
                [spatial, spatial[..., -1:].amax(0, keepdim=True).expand(3, -1, -1) + 1], dim=2
            )
        assert first is not None
        return first, found
