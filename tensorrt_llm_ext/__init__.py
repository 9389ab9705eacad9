# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Out-of-tree extension for TensorRT-LLM: CUDA graphs for multimodal encoders.

The public names are imported on first use, so that `import tensorrt_llm_ext.towers` needs
torch, numpy, pydantic and safetensors only. Where TensorRT-LLM is imported, before or after, our
models register with it (`TRTLLM_EXT_DISABLE=1` prevents that).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .trtllm.arrival import watch

__version__ = "0.1.0"

_EXPORTS = {
    "LLM": "llmapi.llm",
    "SamplingParams": "llmapi.sampling_params",
    "MultimodalConfig": "llmapi.mm_config",
    "MultimodalEncoderCudaGraphConfig": "llmapi.mm_config",
    "KvCacheConfig": "llmapi.llm_args",
    "MultimodalEncoderMixin": "towers.mixin",
    "register_tower": "towers.registry",
}

__all__ = [
    "LLM",
    "KvCacheConfig",
    "MultimodalConfig",
    "MultimodalEncoderCudaGraphConfig",
    "MultimodalEncoderMixin",
    "SamplingParams",
    "__version__",
    "register_tower",
]

if TYPE_CHECKING:
    from .llmapi.llm import LLM
    from .llmapi.llm_args import KvCacheConfig
    from .llmapi.mm_config import MultimodalConfig, MultimodalEncoderCudaGraphConfig
    from .llmapi.sampling_params import SamplingParams
    from .towers.mixin import MultimodalEncoderMixin
    from .towers.registry import register_tower


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_EXPORTS[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})


watch()
