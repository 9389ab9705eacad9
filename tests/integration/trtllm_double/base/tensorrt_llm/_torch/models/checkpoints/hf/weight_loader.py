# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``checkpoints/hf/weight_loader.py``: safetensors only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from ...modeling_utils import register_checkpoint_weight_loader
from ..base_weight_loader import BaseWeightLoader, ConsumableWeightsDict


@register_checkpoint_weight_loader("HF")
class HfWeightLoader(BaseWeightLoader):
    def load_weights(self, checkpoint_dir: str, mapping: Any, **kwargs: Any) -> Any:
        weights: dict[str, Any] = {}
        for path in sorted(Path(checkpoint_dir).glob("*.safetensors")):
            weights.update(load_file(path))
        if not weights:
            raise RuntimeError(f"No weight files found in {checkpoint_dir}.")
        return ConsumableWeightsDict(weights)
