# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""A least-recently-used cache bounded by the total size of what it holds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class BoundedLRU(Generic[V]):
    """Keeps recent values up to a total size; the newest value is kept whatever its size."""

    def __init__(self, max_size: int, size_of: Callable[[V], int]) -> None:
        """Makes an empty cache.

        Args:
            max_size: Size above which the least recently used values go.
            size_of: Size of a value.
        """
        self._max_size = max_size
        self._size_of = size_of
        self._values: OrderedDict[Hashable, V] = OrderedDict()
        self.size = 0

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._values

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """Returns the value for a key, made on a miss."""
        if key in self._values:
            self._values.move_to_end(key)
            return self._values[key]
        value = self._values[key] = make()
        self.size += self._size_of(value)
        while self.size > self._max_size and len(self._values) > 1:
            _, dropped = self._values.popitem(last=False)
            self.size -= self._size_of(dropped)
        return value
