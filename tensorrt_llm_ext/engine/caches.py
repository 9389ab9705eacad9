# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The caches of running requests: one padded for all, or one each.

Requests whose decoder layers all hold plain keys and values share one ``DynamicCache``, padded on
the left to its longest row:

    row 0   . . . a b c d        columns: cache positions, newest last
    row 1   e f g h i j k        "."    : padding, masked

A request joins by being written into a wider cache, and leaves by selecting the other rows and
cutting the columns that are now padding everywhere.

Recurrent states (linear attention in Qwen3.5 and GLM-5.3) have no columns to pad, and the key index
of sparse attention (GLM-5.3) has its own; requests of such models keep a cache each and are
decoded one after another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer


class RunningCaches(Protocol):
    """What the engine needs of the caches of running requests.

    Attributes:
        lengths: Cached tokens of each request, without padding.
    """

    lengths: list[int]

    def join(self, newcomers: Sequence[DynamicCache]) -> None:
        """Append requests, one cache each."""
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these requests, in this order."""
        ...

    def groups(
        self, device: torch.device
    ) -> Iterator[tuple[slice, DynamicCache, torch.Tensor | None]]:
        """Requests that one forward can serve, with their cache and attention mask.

        Returns:
            Rows, cache, and an int64 mask [rows, width + 1] or None, of each group.
        """
        ...


def can_share(config: Any) -> bool:
    """Whether requests of a model can share a padded cache.

    Args:
        config: Its text configuration.
    """
    return all(type(layer) is DynamicLayer for layer in DynamicCache(config=config).layers)


class SeparateCaches:
    """A cache for each running request."""

    def __init__(self) -> None:
        self.caches: list[DynamicCache] = []
        self.lengths: list[int] = []

    def join(self, newcomers: Sequence[DynamicCache]) -> None:
        """Append requests, one cache each."""
        self.caches += newcomers
        self.lengths += [cache.get_seq_length() for cache in newcomers]

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these requests, in this order."""
        self.caches = [self.caches[row] for row in rows]
        self.lengths = [self.lengths[row] for row in rows]

    def groups(
        self, device: torch.device
    ) -> Iterator[tuple[slice, DynamicCache, torch.Tensor | None]]:
        """Every request alone.

        Returns:
            As in :class:`RunningCaches`; the mask (int64 [rows, width + 1]) is None.
        """
        for row, cache in enumerate(self.caches):
            yield slice(row, row + 1), cache, None


class BatchCache:
    """The KV cache of the running requests, one row each.

    Attributes:
        cache: The transformers cache, or None when nobody runs.
        lengths: Cached tokens of each row, without padding.
    """

    def __init__(self) -> None:
        self.cache: DynamicCache | None = None
        self.lengths: list[int] = []

    @property
    def width(self) -> int:
        """Columns, padding included."""
        return max(self.lengths, default=0)

    def join(self, newcomers: Sequence[DynamicCache]) -> None:
        """Append rows.

        Args:
            newcomers: Caches of one request each, keys and values [1, heads, length, head_dim].
        """
        if not newcomers:
            return
        old = [] if self.cache is None else [self.cache]
        lengths = self.lengths + [cache.get_seq_length() for cache in newcomers]
        width = max(lengths)
        parts = [*old, *newcomers]
        if len(parts) == 1:
            self.cache, self.lengths = parts[0], lengths
            return
        target = parts[0]
        for index, layer in enumerate(_layers(target)):
            layers = [_layers(part)[index] for part in parts]
            # Layer by layer, so that only one layer exists twice at a time.
            layer.keys = _stack_left_padded([other.keys for other in layers], width)
            layer.values = _stack_left_padded([other.values for other in layers], width)
            for other in layers[1:]:
                other.keys = other.values = None
        self.cache, self.lengths = target, lengths

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order, and cut columns that only the others used."""
        if list(rows) == list(range(len(self.lengths))):
            return
        self.lengths = [self.lengths[row] for row in rows]
        if not rows or self.cache is None:
            self.cache = None
            return
        width = self.width
        index: torch.Tensor | None = None
        for layer in _layers(self.cache):
            if index is None:
                index = torch.tensor(list(rows), device=layer.keys.device)
            layer.keys = layer.keys[index, :, -width:].contiguous()
            layer.values = layer.values[index, :, -width:].contiguous()

    def mask(self, device: torch.device) -> torch.Tensor | None:
        """Attention mask of the next decode step.

        Returns:
            Int64 tensor [rows, width + 1], 1 where there is a token (the new one included), or
            None when no row is padded.
        """
        width = self.width
        if all(length == width for length in self.lengths):
            return None
        columns = torch.arange(width + 1, device=device)
        first = torch.tensor([width - length for length in self.lengths], device=device)
        return (columns[None, :] >= first[:, None]).long()

    def groups(
        self, device: torch.device
    ) -> Iterator[tuple[slice, DynamicCache, torch.Tensor | None]]:
        """All requests at once.

        Returns:
            As in :class:`RunningCaches`; the mask is int64 [rows, width + 1].
        """
        if self.cache is not None:
            yield slice(None), self.cache, self.mask(device)


def _layers(cache: DynamicCache) -> list[Any]:
    """Layers of a cache; the loader accepts only models whose layers hold keys and values."""
    return list(cache.layers)


def _stack_left_padded(parts: Sequence[torch.Tensor], width: int) -> torch.Tensor:
    """Concatenate [rows, heads, length, dim] tensors of different lengths along the rows."""
    rows = sum(part.shape[0] for part in parts)
    out = parts[0].new_zeros(rows, parts[0].shape[1], width, parts[0].shape[3])
    start = 0
    for part in parts:
        out[start : start + part.shape[0], :, width - part.shape[2] :] = part
        start += part.shape[0]
    return out
