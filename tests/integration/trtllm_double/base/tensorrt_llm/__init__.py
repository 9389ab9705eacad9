# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of TensorRT-LLM's Python package: its interface, none of its code or kernels.

It follows upstream as read at commit 06048c6cee66 (engine) and the commits named in each module.
"""

from .llmapi.llm import LLM
from .llmapi.mm_encoder import MultimodalEncoder
from .sampling_params import SamplingParams

__version__ = "1.4.0rc1+double"
__all__ = ["LLM", "MultimodalEncoder", "SamplingParams", "__version__"]
