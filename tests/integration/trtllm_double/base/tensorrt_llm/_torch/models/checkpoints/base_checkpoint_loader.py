# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``checkpoints/base_checkpoint_loader.py``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .base_weight_mapper import BaseWeightMapper


class AutoCheckpointMapper:
    @staticmethod
    def get(format: str, name: str | None = None) -> BaseWeightMapper:
        from ..modeling_utils import MODEL_CLASS_MAPPER_MAPPING

        cls = MODEL_CLASS_MAPPER_MAPPING.get(f"{name}_{format}")
        return (cls or MODEL_CLASS_MAPPER_MAPPING[format])()


class BaseCheckpointLoader:
    _checkpoint_format = ""
    _weight_mapper: BaseWeightMapper | None = None

    @property
    def checkpoint_format(self) -> str:
        return self._checkpoint_format

    def load_config(self, checkpoint_dir: str, **kwargs: Any) -> Any:
        raise NotImplementedError

    def load_weights(self, checkpoint_dir: str, mapping: Any, **kwargs: Any) -> Mapping[str, Any]:
        raise NotImplementedError

    def get_initialized_weight_mapper(self, model: Any, config: Any) -> BaseWeightMapper:
        arch = config.pretrained_config.architectures[0]
        if self._weight_mapper is None:
            self._weight_mapper = AutoCheckpointMapper.get(self.checkpoint_format, arch)
        self._weight_mapper.init_model_and_config(model, config)
        return self._weight_mapper

    def cleanup(self) -> None:
        self._weight_mapper = None
