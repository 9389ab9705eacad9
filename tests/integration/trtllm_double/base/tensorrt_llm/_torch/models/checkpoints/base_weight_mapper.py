# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``checkpoints/base_weight_mapper.py``."""

from __future__ import annotations

from typing import Any


class BaseWeightMapper:
    def __init__(self) -> None:
        self._model: Any = None
        self._config: Any = None

    def init_model_and_config(self, model: Any, config: Any) -> None:
        self._model, self._config = model, config

    @property
    def model(self) -> Any:
        if self._model is None:
            raise RuntimeError("model is not set")
        return self._model

    @property
    def config(self) -> Any:
        return self._config

    def cleanup(self) -> None:
        self._model = self._config = None
