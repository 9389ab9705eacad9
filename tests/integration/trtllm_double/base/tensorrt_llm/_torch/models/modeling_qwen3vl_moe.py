# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``models/modeling_qwen3vl_moe.py``."""

from __future__ import annotations

from typing import Any

import torch

from tensorrt_llm.inputs import MultimodalPlaceholderMetadata, register_input_processor

from .modeling_qwen3vl import (
    Qwen3VisionModel,
    Qwen3VisionModelBase,
    Qwen3VLInputProcessorBase,
    Qwen3VLModelBase,
)
from .modeling_utils import filter_weights, register_auto_model, register_vision_encoder


class Qwen3MoeVLInputProcessorBase(Qwen3VLInputProcessorBase):
    pass


@register_vision_encoder(Qwen3VisionModelBase, vlm_base_model=Qwen3VisionModel)
@register_auto_model("Qwen3VLMoeForConditionalGeneration")
@register_input_processor(
    Qwen3MoeVLInputProcessorBase,
    model_type="qwen3_vl_moe",
    placeholder_metadata=MultimodalPlaceholderMetadata(),
)
class Qwen3MoeVLModel(Qwen3VLModelBase):
    def __init__(self, model_config: Any, *args: Any, **kwargs: Any) -> None:
        kwargs["vision_model_class"] = Qwen3VisionModel
        super().__init__(model_config, *args, **kwargs)

    def load_weights(self, weights: dict[str, torch.Tensor], weight_mapper: Any) -> None:
        if self.mm_encoder is not None:
            self.mm_encoder.load_weights(weights)
        weight_mapper.init_model_and_config(self.llm, self.model_config)
        self.llm.load_weights(filter_weights("model.language_model", weights), weight_mapper)
