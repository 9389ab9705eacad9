# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``tensorrt_llm.inputs``."""

from .multimodal import MultimodalParams
from .registry import (
    BaseMultimodalDummyInputsBuilder,
    BaseMultimodalInputProcessor,
    ContentFormat,
    MultimodalPlaceholderMetadata,
    create_input_processor,
    register_input_processor,
)

__all__ = [
    "BaseMultimodalDummyInputsBuilder",
    "BaseMultimodalInputProcessor",
    "ContentFormat",
    "MultimodalParams",
    "MultimodalPlaceholderMetadata",
    "create_input_processor",
    "register_input_processor",
]
