# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Finished encoder outputs, kept for media that come again.

All entries lie in one block of device memory, allocated once. What goes in and what comes out is
copied, so neither a caller that writes into its output nor another item can change an entry, and
no memory of an entry ever goes back to torch's allocator, where a small entry could hold a large
segment that the KV cache needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from ..graphs.backends import StreamOrder, plain_mode
from ..graphs.cache import BoundedLRU
from ..graphs.report import EncoderCacheStats
from ..towers.output import ItemOutput, map_output
from ..towers.weights import WeightVersions


class Sketch(NamedTuple):
    """What an output depends on, with but a glance at the content: who differs here differs.

    Attributes:
        tower: Key of the encoder.
        generation: How often its weights had changed.
        recipe: What is done to the content before the encoder.
        shape: Of the first array of the content.
        glance: A few bytes of it.
    """

    tower: str
    generation: int
    recipe: Hashable
    shape: tuple[int, ...]
    glance: bytes


class Key(NamedTuple):
    """All that an output depends on: a sketch, and a strong hash of the content."""

    sketch: Sketch
    digest: bytes


class _Stored(NamedTuple):
    """A tensor in the arena."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    pieces: list[tuple[int, int]]


@dataclass(frozen=True)
class _Entry:
    """An output in the arena: ``_Stored`` where it had tensors."""

    sketch: Sketch
    num_bytes: int
    output: ItemOutput


class EncoderCache:
    """Keeps outputs up to a number of bytes; the least recently used go first.

    May be used from several threads and CUDA streams.

    Attributes:
        max_bytes: Size of the block; 0 once closed.
    """

    def __init__(
        self, max_bytes: int, towers: Mapping[str, nn.Module], device: torch.device
    ) -> None:
        """Allocates the block.

        Args:
            max_bytes: Its size.
            towers: The encoders; outputs made with weights that have changed since are forgotten.
            device: Where the block lies.

        Raises:
            ValueError: There is not so much memory.
        """
        self.max_bytes = max_bytes
        self._device = device
        self._order = StreamOrder(device)
        with plain_mode(device):
            try:
                self._arena = _Arena(max_bytes, device)
            except RuntimeError as error:  # torch raises nothing more specific on a CPU
                raise ValueError(
                    f"multimodal_config.encoder_cache_max_bytes is {max_bytes:,}, and {device} has "
                    "not so much memory left; set a smaller one, or 0 for no cache"
                ) from error
        self._entries: BoundedLRU[_Entry] = BoundedLRU(
            max_bytes, lambda entry: entry.num_bytes, self._evict
        )
        self._sketches: Counter[Sketch] = Counter()
        self._weights = {name: WeightVersions(tower) for name, tower in towers.items()}
        self._towers, self._generations = dict(towers), dict.fromkeys(towers, 0)
        self._stats = EncoderCacheStats(max_bytes=max_bytes)

    def generation(self, tower: str) -> int:
        """How often an encoder's weights were seen to have changed; forgets what they made."""
        with self._order.session():
            if self._weights[tower].changed():
                self._weights[tower] = WeightVersions(self._towers[tower])
                self._generations[tower] += 1
                self.drop(tower)
            return self._generations[tower]

    def may_hold(self, sketch: Sketch) -> bool:
        """Whether an entry has this sketch; if none has, no digest is needed to know a miss."""
        with self._order.session():
            return self._sketches[sketch] > 0

    def find(self, key: Key) -> ItemOutput | None:
        """A copy of an entry, or None.

        Returns:
            Tensors [tokens, out] of the dtype and on the device that they were stored from.
        """
        with self._order.session(), plain_mode(self._device):
            entry = self._entries.find(key)
            return None if entry is None else map_output(entry.output, self._arena.load)

    def put(self, outputs: Mapping[Key, ItemOutput]) -> None:
        """Store copies of outputs, but of none that is larger than the cache.

        Args:
            outputs: Tensors [tokens, out], any dtype and device, and lists of such. Those of an
                encoder whose weights have changed since their keys were made are left out.
        """
        with self._order.session():
            now = {tower: self.generation(tower) for tower in {key.sketch.tower for key in outputs}}
            for key, output in outputs.items():
                if key.sketch.generation == now[key.sketch.tower]:
                    self._put(key, output)

    def _put(self, key: Key, output: ItemOutput) -> None:
        tensors: list[torch.Tensor] = []
        map_output(output, tensors.append)
        size = sum(tensor.nbytes for tensor in tensors)
        if size > self.max_bytes or self._entries.find(key) is not None:
            return
        self._entries.make_room(size)
        stored = map_output(output, self._arena.store)
        self._entries.get(key, lambda: _Entry(key.sketch, size, stored))
        self._sketches[key.sketch] += 1

    def count(self, *, hits: int = 0, misses: int = 0) -> None:
        """Count items that were, and were not, answered without their encoder."""
        with self._order.session():
            self._stats.hits += hits
            self._stats.misses += misses

    def drop(self, tower: str | None = None) -> None:
        """Forget all outputs, or those of one encoder."""
        with self._order.session():
            gone = self._entries.remove(lambda entry: tower in (None, entry.sketch.tower))
            for entry in gone:
                self._forget(entry)
            self._stats.dropped += len(gone)

    def close(self) -> None:
        """Give the memory back and keep nothing from now on."""
        with self._order.session():
            self.drop()
            if self._device.type == "cuda":  # other streams may still read the block
                torch.cuda.synchronize(self._device)
            self.max_bytes, self._arena = 0, _Arena(0, self._device)

    def stats(self) -> EncoderCacheStats:
        """A copy of the counters."""
        with self._order.session():
            now = {"entries": len(self._entries), "bytes": self._entries.size}
            return self._stats.model_copy(update=now)

    def _evict(self, entry: _Entry) -> None:
        self._forget(entry)
        self._stats.evictions += 1

    def _forget(self, entry: _Entry) -> None:
        self._sketches[entry.sketch] -= 1
        if not self._sketches[entry.sketch]:
            del self._sketches[entry.sketch]
        map_output(entry.output, self._arena.free)


class _Arena:
    """A block of bytes. A tensor may lie in several pieces, so that gaps are never lost."""

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        self._bytes = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        self._gaps = [(0, num_bytes)]  # start and end, ascending

    def store(self, tensor: torch.Tensor) -> _Stored:
        """Copy a tensor [...] of any dtype and device in. There has to be room for it."""
        flat, pieces, left = _flat_bytes(tensor.contiguous()), [], tensor.nbytes
        while left:
            start, end = self._gaps.pop(0)
            cut = min(end, start + left)
            if cut < end:
                self._gaps.insert(0, (cut, end))
            pieces.append((start, cut))
            left -= cut - start
        stored = _Stored(tensor.shape, tensor.dtype, tensor.device, pieces)
        for own, given in self._views(stored, flat):
            own.copy_(given)
        return stored

    def load(self, stored: _Stored) -> torch.Tensor:
        """Copy a tensor [...] out, of the dtype and on the device it came from."""
        tensor = torch.empty(stored.shape, dtype=stored.dtype, device=stored.device)
        for own, wanted in self._views(stored, _flat_bytes(tensor)):
            wanted.copy_(own)
        return tensor

    def free(self, stored: _Stored) -> None:
        """Make its place a gap again."""
        gaps: list[tuple[int, int]] = []
        for start, end in sorted([*self._gaps, *stored.pieces]):
            if gaps and gaps[-1][1] == start:
                start = gaps.pop()[0]
            gaps.append((start, end))
        self._gaps = gaps

    def _views(
        self, stored: _Stored, flat: torch.Tensor
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Each piece of the block and the bytes of the tensor that belong there."""
        sizes = [end - start for start, end in stored.pieces]
        own = [self._bytes[start:end] for start, end in stored.pieces]
        return list(zip(own, flat.split(sizes), strict=True))


def _flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor, uint8 [bytes], without a copy."""
    return tensor.view(-1).view(torch.uint8)
