# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double only: a ``ModelConfig`` from a parsed config and the loader's keywords."""

from __future__ import annotations

from typing import Any

from ..model_config import ModelConfig


def _name_vit(vision: Any) -> None:
    """Upstream's RADIO takes its sizes from a table by the name in ``args``; add ours to it."""
    if hasattr(vision, "args"):
        return
    from .modeling_radio import VIT_TIMM_CONFIG_BY_NAME, VITTIMMConfig

    width = vision.hidden_size
    VIT_TIMM_CONFIG_BY_NAME["vit_double"] = VITTIMMConfig(
        width,
        vision.num_hidden_layers,
        vision.num_attention_heads,
        int(width * vision.mlp_ratio),
        vision.image_size,
    )
    vision.args = {"model": "vit_double"}


def config_for(pretrained: Any, **kwargs: Any) -> ModelConfig[Any]:
    text = getattr(pretrained, "llm_config", None)
    if text is None and pretrained.model_type == "nemotron_h_omni":
        text = pretrained.text_config  # its name in the class that transformers has from 5.24 on
    if text is not None:
        text.vocab_size = getattr(text, "vocab_size", 64)
        text.dtype = getattr(text, "dtype", "float32")
        pretrained.dtype = text.dtype
        _name_vit(pretrained.vision_config)
    known = {k: v for k, v in kwargs.items() if k in ModelConfig.__dataclass_fields__}
    # The encoders alone are no model that generates: no KV cache is made for it.
    generates = not known.get("mm_encoder_only", False)
    return ModelConfig(pretrained_config=pretrained, is_generation=generates, **known)
