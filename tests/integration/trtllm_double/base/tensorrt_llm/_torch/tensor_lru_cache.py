# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``_torch/tensor_lru_cache.py``: encoder outputs by key, least recently used out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

import torch

K = TypeVar("K", bound=Hashable)


class TensorLRUCache(Generic[K]):
    def __init__(self, max_bytes: int, name: str = "") -> None:
        self.max_bytes, self.name = max_bytes, name
        self._tensors: OrderedDict[K, torch.Tensor] = OrderedDict()

    def commit(self, key: K, tensor: torch.Tensor) -> None:
        self._tensors[key] = tensor.clone()
        while sum(t.nbytes for t in self._tensors.values()) > self.max_bytes:
            self._tensors.popitem(last=False)

    def get(self, key: K, record_stats: bool = True) -> torch.Tensor | None:
        if key in self._tensors:
            self._tensors.move_to_end(key)
        return self._tensors.get(key)
