# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""What a user constructs: `LLM`, its configuration models, and the tools around them.

Names are imported on first use, so that the configuration can be read without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_EXPORTS = {
    "LLM": "llm",
    "KvCacheConfig": "llm_args",
    "LlmArgs": "llm_args",
    "MultimodalConfig": "mm_config",
    "MultimodalEncoderCudaGraphConfig": "mm_config",
    "SamplingParams": "sampling_params",
    "ServeConfig": "llm_args",
}

__all__ = [
    "LLM",
    "KvCacheConfig",
    "LlmArgs",
    "MultimodalConfig",
    "MultimodalEncoderCudaGraphConfig",
    "SamplingParams",
    "ServeConfig",
]

if TYPE_CHECKING:
    from .llm import LLM
    from .llm_args import KvCacheConfig, LlmArgs, ServeConfig
    from .mm_config import MultimodalConfig, MultimodalEncoderCudaGraphConfig
    from .sampling_params import SamplingParams


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_EXPORTS[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
