# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``tensorrt_llm.llmapi``."""

from .llm import LLM
from .llm_args import (
    KvCacheConfig,
    MultimodalConfig,
    MultimodalEncoderCudaGraphConfig,
    MultimodalEncoderSchedulingPolicy,
    TorchLlmArgs,
)
from .mm_encoder import MultimodalEncoder

__all__ = [
    "LLM",
    "KvCacheConfig",
    "MultimodalConfig",
    "MultimodalEncoder",
    "MultimodalEncoderCudaGraphConfig",
    "MultimodalEncoderSchedulingPolicy",
    "TorchLlmArgs",
]
