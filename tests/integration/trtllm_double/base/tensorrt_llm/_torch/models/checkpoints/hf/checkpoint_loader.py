# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``checkpoints/hf/checkpoint_loader.py``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorrt_llm import _double

from ...modeling_utils import register_checkpoint_loader
from ..base_checkpoint_loader import BaseCheckpointLoader
from ..base_weight_loader import BaseWeightLoader
from ..base_weight_mapper import BaseWeightMapper
from . import qwen3vl_weight_mapper  # noqa: F401  (registers itself)
from .config_loader import HfConfigLoader
from .weight_loader import HfWeightLoader


@register_checkpoint_loader("HF")
class HfCheckpointLoader(BaseCheckpointLoader):
    def __init__(
        self,
        *,
        weight_loader: BaseWeightLoader | None = None,
        weight_mapper: BaseWeightMapper | None = None,
        config_loader: Any | None = None,
    ) -> None:
        self._weight_loader = weight_loader or HfWeightLoader()
        self._config_loader = config_loader or HfConfigLoader()
        self._weight_mapper = weight_mapper
        self._checkpoint_format = "HF"

    def load_config(self, checkpoint_dir: str, **kwargs: Any) -> Any:
        return self._config_loader.load(checkpoint_dir, **kwargs)

    def load_weights(self, checkpoint_dir: str, mapping: Any, **kwargs: Any) -> Mapping[str, Any]:
        _double.record("checkpoint_read")
        return self._weight_loader.load_weights(checkpoint_dir, mapping=mapping, **kwargs)
