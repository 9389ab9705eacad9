# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double only: the input processors of the doubled models, without prompts' templates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoTokenizer, Qwen2VLImageProcessorPil

from tensorrt_llm.inputs.multimodal import MULTIMODAL_ENCODER_ITEM_METADATA_KEY
from tensorrt_llm.inputs.registry import (
    BaseMultimodalDummyInputsBuilder,
    BaseMultimodalInputProcessor,
    MultimodalEncoderItemMetadata,
)


class GridInputProcessor(BaseMultimodalInputProcessor, BaseMultimodalDummyInputsBuilder):
    """Pictures as packed patch rows and a grid (Qwen3-VL, GLM)."""

    def __init__(self, model_path: str, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(model_path, config, *args, **kwargs)
        self._images: Any = None
        self._words: Any = None

    @property
    def images(self) -> Any:
        if self._images is None:
            self._images = Qwen2VLImageProcessorPil.from_pretrained(self._model_path)
        return self._images

    @property
    def spatial_merge_unit(self) -> int:
        return self._config.vision_config.spatial_merge_size**2

    def __call__(self, inputs: Any, sampling_params: Any) -> tuple[list[int], dict[str, Any]]:
        if self._words is None:
            self._words = AutoTokenizer.from_pretrained(self._model_path)
        ids = self._words(inputs.get("prompt", ""))["input_ids"]
        pictures = (inputs.get("multi_modal_data") or {}).get("image")
        if not pictures:
            return ids, {}
        out = self.images(images=list(pictures), return_tensors="pt")
        data = {
            "image": {
                "pixel_values": out["pixel_values"],
                "image_grid_thw": out["image_grid_thw"],
            }
        }
        return ids, {"multimodal_data": self.with_lengths(data)}

    def with_lengths(self, data: dict[str, Any]) -> dict[str, Any]:
        patches = torch.prod(data["image"]["image_grid_thw"], dim=1).tolist()
        rows = [n // self.spatial_merge_unit for n in patches]
        data["multimodal_embedding_lengths"] = rows
        data[MULTIMODAL_ENCODER_ITEM_METADATA_KEY] = MultimodalEncoderItemMetadata(
            item_refs=[("image", i) for i in range(len(rows))],
            encoder_token_lengths=patches,
            output_embedding_lengths=rows,
        )
        return data

    def _side(self, patches: int) -> int:
        merge = self._config.vision_config.spatial_merge_size
        return max(int(patches**0.5) // merge * merge, merge)

    def get_mm_max_tokens_per_item(
        self, max_num_encoder_tokens: int | None = None
    ) -> dict[str, int]:
        size = self.images.size
        longest = size["longest_edge"] if isinstance(size, dict) else size.longest_edge
        patches = longest // self._config.vision_config.patch_size**2
        if max_num_encoder_tokens is not None:
            patches = min(patches, max_num_encoder_tokens)
        return {"image": self._side(patches) ** 2}

    def get_dummy_mm_data(
        self,
        *,
        max_num_encoder_tokens: int,
        mm_counts: Mapping[str, int],
        dtype: torch.dtype | None = None,
    ) -> dict[str, Any]:
        count = mm_counts.get("image", 0)
        if not count:
            return {}
        side = self._side(max_num_encoder_tokens // count)
        vision = self._config.vision_config
        width = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
        pixels = torch.full((count * side * side, width), 0.5, dtype=dtype or torch.float32)
        grid = torch.tensor([[1, side, side]] * count)
        return self.with_lengths({"image": {"pixel_values": pixels, "image_grid_thw": grid}})

    def get_mm_encoder_attention_metadata_capacity(
        self, max_num_tokens: int
    ) -> dict[str, int] | None:
        return {"attention": max(1, max_num_tokens // self.spatial_merge_unit)}

    def get_max_mm_encoder_output_embeddings(self, encoder_max_num_tokens: int) -> int | None:
        return encoder_max_num_tokens // self.spatial_merge_unit


class TileInputProcessor(BaseMultimodalInputProcessor, BaseMultimodalDummyInputsBuilder):
    """Pictures of one size as ``[tiles, 3, H, W]`` (Nemotron), normalised by the caller."""

    def __call__(self, inputs: Any, sampling_params: Any) -> tuple[list[int], dict[str, Any]]:
        pixels = (inputs.get("multi_modal_data") or {}).get("image")
        if pixels is None:
            return [1], {}
        return [1], {"multimodal_data": self.with_lengths(torch.stack(list(pixels)))}

    def with_lengths(self, pixels: torch.Tensor) -> dict[str, Any]:
        patch = self._config.vision_config.patch_size
        rows = (pixels.shape[-1] // patch) * (pixels.shape[-2] // patch)
        rows = int(rows * self._config.downsample_ratio**2)
        return {
            "modality_type": "image",
            "image": {"pixel_values": pixels},
            "multimodal_embedding_lengths": [rows] * pixels.shape[0],
        }

    def get_mm_max_tokens_per_item(
        self, max_num_encoder_tokens: int | None = None
    ) -> dict[str, int]:
        vision = self._config.vision_config
        prefix = vision.num_cls_tokens + vision.num_registers
        return {"image": (vision.image_size // vision.patch_size) ** 2 + prefix}

    def get_dummy_mm_data(
        self,
        *,
        max_num_encoder_tokens: int,
        mm_counts: Mapping[str, int],
        dtype: torch.dtype | None = None,
    ) -> dict[str, Any]:
        side = self._config.vision_config.image_size
        shape = (max(1, mm_counts.get("image", 1)), 3, side, side)
        return self.with_lengths(torch.full(shape, 0.5, dtype=dtype or torch.float32))
