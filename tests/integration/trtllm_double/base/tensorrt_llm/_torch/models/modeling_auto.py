# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``models/modeling_auto.py``."""

from __future__ import annotations

from typing import Any

from torch import nn

from .modeling_utils import get_registered_model_class, get_registered_vision_encoder


class AutoModelForCausalLM:
    @staticmethod
    def _resolve_class(config: Any) -> type[nn.Module] | None:
        pretrained = getattr(config, "pretrained_config", config)
        return get_registered_model_class(pretrained.architectures[0])

    @staticmethod
    def from_config(config: Any) -> nn.Module:
        arch = config.pretrained_config.architectures[0]
        if config.mm_encoder_only:
            found = get_registered_vision_encoder(arch)
            if found is None:
                raise ValueError(f"no vision encoder is registered for architecture {arch!r}")
            vision_encoder_cls, vlm_base_model = found
            return vision_encoder_cls(config, vlm_base_model)
        cls = AutoModelForCausalLM._resolve_class(config)
        if cls is None:
            raise ValueError(f"Unknown architecture for AutoModelForCausalLM: {arch}")
        return cls(config)
