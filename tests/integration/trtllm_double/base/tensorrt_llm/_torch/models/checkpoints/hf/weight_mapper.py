# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``checkpoints/hf/weight_mapper.py``."""

from ...modeling_utils import register_mapper
from ..base_weight_mapper import BaseWeightMapper


@register_mapper("HF")
class HfWeightMapper(BaseWeightMapper):
    pass
