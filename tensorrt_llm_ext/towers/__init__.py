# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Encoders of multimodal models, on their own or inside an engine.

Importing this package needs torch, numpy and pydantic only.
"""

from ..graphs.lifecycle import setup_mm_encoder_cuda_graphs
from .loading import load_tower, modalities_of
from .mixin import MultimodalEncoderMixin
from .output import ItemOutput
from .registry import register_tower

__all__ = [
    "ItemOutput",
    "MultimodalEncoderMixin",
    "load_tower",
    "modalities_of",
    "register_tower",
    "setup_mm_encoder_cuda_graphs",
]
