# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of the backend look-up."""

from __future__ import annotations

from typing import Any

from .flashinfer import FlashInferAttention
from .interface import AttentionBackend
from .trtllm import TrtllmAttention
from .vanilla import VanillaAttention

_BACKENDS: dict[str, type[AttentionBackend]] = {
    "VANILLA": VanillaAttention,
    "TRTLLM": TrtllmAttention,
    "FLASHINFER": FlashInferAttention,
}


def get_attention_backend(backend_name: str, **kwargs: Any) -> type[AttentionBackend]:
    backend = _BACKENDS.get(backend_name.upper())
    return backend if backend is not None else TrtllmAttention


def create_attention(
    backend_name: str,
    layer_idx: int,
    num_heads: int,
    head_dim: int,
    num_kv_heads: int | None = None,
    **kwargs: Any,
) -> AttentionBackend:
    return get_attention_backend(backend_name)(
        layer_idx, num_heads, head_dim, num_kv_heads, **kwargs
    )
