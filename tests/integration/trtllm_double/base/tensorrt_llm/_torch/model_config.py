# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``_torch.model_config``: what a model is built from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch

from tensorrt_llm.llmapi.llm_args import MultimodalConfig
from tensorrt_llm.mapping import Mapping

TConfig = TypeVar("TConfig")


@dataclass
class QuantConfig:
    quant_algo: str | None = None
    kv_cache_quant_algo: str | None = None


@dataclass(kw_only=True)
class ModelConfig(Generic[TConfig]):
    pretrained_config: TConfig | None = None
    mapping: Mapping = field(default_factory=Mapping)
    quant_config: QuantConfig = field(default_factory=QuantConfig)
    max_num_tokens: int = 8192
    max_seq_len: int | None = None
    attn_backend: str = "TRTLLM"
    allreduce_strategy: Any = "AUTO"
    spec_config: Any = None
    mm_encoder_only: bool = False
    disable_mm_encoder: bool = False
    multimodal_config: MultimodalConfig = field(default_factory=MultimodalConfig)
    is_generation: bool = True
    extra_attrs: dict[str, Any] = field(default_factory=dict, repr=False, init=False)
    _frozen: bool = field(default=False, init=False, repr=False)

    def __setattr__(self, key: str, value: Any) -> None:
        if getattr(self, "_frozen", False) and key not in ("_frozen", "extra_attrs"):
            raise AttributeError(f"Cannot modify ModelConfig.'{key}' - instance is frozen")
        super().__setattr__(key, value)

    @property
    def torch_dtype(self) -> torch.dtype:
        config = self.pretrained_config
        dtype = getattr(config, "dtype", None) or getattr(
            getattr(config, "text_config", None), "dtype", None
        )
        if isinstance(dtype, str):
            dtype = getattr(torch, dtype)
        return dtype or torch.bfloat16

    @property
    def video_pruning_rate(self) -> float | None:
        return self.multimodal_config.video_pruning_rate
