# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``checkpoints/hf/qwen3vl_weight_mapper.py``."""

from ...modeling_utils import register_mapper
from .weight_mapper import HfWeightMapper


@register_mapper("HF", "Qwen3VLForConditionalGeneration")
class Qwen3VLHfWeightMapper(HfWeightMapper):
    pass
