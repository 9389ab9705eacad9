# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The oracle of the end-to-end tests: transformers, unmodified, on the same folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoTokenizer, Qwen2VLImageProcessorPil
from transformers.image_transforms import normalize, rescale
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
from transformers.video_utils import VideoMetadata

from tensorrt_llm_ext import LLM

# What comes again is encoded again: the cache of encoder outputs has tests of its own.
UNCACHED = {"encoder_cache_max_bytes": 0}
# Small buckets: 4 pictures of 160 x 128 pixels (80 rows) fill the larger one.
GRAPHS = {"encoder_cuda_graph": {"image": {"buckets": [[96, 4], [320, 8]]}}, **UNCACHED}
LIMITS = {"encoder_max_num_tokens": 320, "encoder_max_batch_size": 8, "max_seq_len": 512}


class Processor(Qwen3VLProcessor):
    """transformers' processor without its video processor, which needs torchvision."""

    def check_argument_for_proper_class(self, name: str, argument: Any) -> None:
        return None


class Oracle:
    """The unmodified model and the inputs it would be given."""

    def __init__(self, folder: Path) -> None:
        self.model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        images = Qwen2VLImageProcessorPil.from_pretrained(folder)
        stand_in = SimpleNamespace(merge_size=2, temporal_patch_size=2)
        self.processor = Processor(images, self.tokenizer, stand_in)

    def inputs(
        self,
        prompt: str,
        images: Sequence[Image.Image] = (),
        videos: Sequence[np.ndarray] = (),
        fps: float | None = None,
    ) -> dict[str, torch.Tensor]:
        out: dict[str, Any] = {}
        replace_images, replace_videos = [], []
        if images:
            out.update(self.processor.image_processor(images=list(images), return_tensors="pt"))
            replace_images = [
                self.processor.replace_image_token(out, image_idx=i) for i in range(len(images))
            ]
        if videos:
            rows = [self.video_rows(video) for video in videos]
            out["pixel_values_videos"] = torch.cat([r for r, _ in rows])
            out["video_grid_thw"] = torch.tensor([grid for _, grid in rows])
            metadata = [
                VideoMetadata(len(v), fps=fps, frames_indices=list(range(len(v)))) for v in videos
            ]
            video_inputs = {"video_grid_thw": out["video_grid_thw"], "video_metadata": metadata}
            replace_videos = [
                self.processor.replace_video_token(video_inputs, video_idx=i)
                for i in range(len(videos))
            ]
        texts, _ = self.processor.get_text_with_replacements(
            [prompt], replace_images, replace_videos
        )
        ids = self.tokenizer(texts)["input_ids"]
        out["input_ids"] = torch.tensor(ids)
        types = self.processor.create_mm_token_type_ids(ids)
        out["mm_token_type_ids"] = torch.tensor(types)
        return out

    @staticmethod
    def video_rows(frames: np.ndarray) -> tuple[torch.Tensor, list[int]]:
        """Patch rows of frames that need no resizing, cut by transformers' own function."""
        chw = [f.transpose(2, 0, 1) for f in frames]
        ready = [
            normalize(rescale(f, 1 / 255), [0.5] * 3, [0.5] * 3, input_data_format="channels_first")
            for f in chw
        ]
        video = torch.from_numpy(np.stack(ready))[None]
        rows, *grid = Qwen3VLVideoProcessor.patchify(None, video, 16, 2, 2)
        return rows[0], list(grid)

    @torch.no_grad()
    def logits(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """Logits [vocab] of the last prompt token."""
        return self.model(**inputs).logits[0, -1]

    @torch.no_grad()
    def generate(self, inputs: dict[str, torch.Tensor], tokens: int, **options: Any) -> list[int]:
        options = {"do_sample": False, "max_new_tokens": tokens, **options}
        mask = torch.ones_like(inputs["input_ids"])
        out = self.model.generate(**inputs, attention_mask=mask, **options)
        return out[0, inputs["input_ids"].shape[1] :].tolist()


@pytest.fixture(scope="session")
def oracle(tiny_checkpoint: Path) -> Oracle:
    return Oracle(tiny_checkpoint)


@pytest.fixture(scope="session")
def llm(tiny_checkpoint: Path) -> Iterator[LLM]:
    """Encoder graphs on."""
    with LLM(model=tiny_checkpoint, device="cpu", multimodal_config=GRAPHS, **LIMITS) as model:
        yield model


@pytest.fixture(scope="session")
def eager_llm(tiny_checkpoint: Path) -> Iterator[LLM]:
    """Encoder graphs not configured."""
    with LLM(model=tiny_checkpoint, device="cpu", multimodal_config=UNCACHED, **LIMITS) as model:
        yield model


@pytest.fixture(scope="session")
def picture(photo: Image.Image) -> Image.Image:
    """80 rows, 20 tokens."""
    return photo.resize((160, 128))


@pytest.fixture(scope="session")
def picture2(photo2: Image.Image) -> Image.Image:
    """24 rows, 6 tokens."""
    return photo2.resize((96, 64))


@pytest.fixture(scope="session")
def clip(photo: Image.Image) -> np.ndarray:
    """Five frames [5, 64, 96, 3] of a window that moves over a photograph: 3 frame pairs."""
    wide = np.asarray(photo.resize((200, 80)))
    return np.stack([wide[3 * i : 64 + 3 * i, 20 * i : 96 + 20 * i] for i in range(5)])
