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

    def __init__(
        self,
        max_size: int,
        size_of: Callable[[V], int],
        on_evict: Callable[[V], None] = lambda value: None,
    ) -> None:
        """Makes an empty cache.

        Args:
            max_size: Size above which the least recently used values go.
            size_of: Size of a value.
            on_evict: Called with each value that goes.
        """
        self._max_size = max_size
        self._size_of = size_of
        self._on_evict = on_evict
        self._values: OrderedDict[Hashable, V] = OrderedDict()
        self.size = 0

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """Returns the value for a key, made on a miss."""
        found = self.find(key)
        if found is not None:
            return found
        value = self._values[key] = make()
        self.size += self._size_of(value)
        while self.size > self._max_size and len(self._values) > 1:
            self._evict_one()
        return value

    def find(self, key: Hashable) -> V | None:
        """Returns the value for a key, or None."""
        found = self._values.get(key)
        if found is not None:
            self._values.move_to_end(key)
        return found

    def make_room(self, size: int) -> None:
        """Evicts until a value of this size fits, or nothing is left."""
        while self.size + size > self._max_size and self._values:
            self._evict_one()

    def remove(self, unwanted: Callable[[V], bool]) -> list[V]:
        """Takes values out, least recently used first, and returns them; none is evicted."""
        gone = {key: value for key, value in self._values.items() if unwanted(value)}
        for key, value in gone.items():
            del self._values[key]
            self.size -= self._size_of(value)
        return list(gone.values())

    def _evict_one(self) -> None:
        _, dropped = self._values.popitem(last=False)
        self.size -= self._size_of(dropped)
        self._on_evict(dropped)
