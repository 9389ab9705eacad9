# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``checkpoints/base_weight_loader.py``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


class ConsumableWeightsDict(Mapping[str, Any]):
    """Weights that a loader may drop once they are used."""

    def __init__(self, weights: dict[str, Any]) -> None:
        self._weights = weights

    def __getitem__(self, key: str) -> Any:
        return self._weights[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def mark_consumed(self, prefix: str) -> int:
        gone = [key for key in self._weights if key.startswith(prefix)]
        for key in gone:
            del self._weights[key]
        return len(gone)


class BaseWeightLoader:
    def load_weights(self, checkpoint_dir: str, mapping: Any, **kwargs: Any) -> Mapping[str, Any]:
        raise NotImplementedError

    def cleanup(self) -> None:
        pass
