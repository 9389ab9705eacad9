# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""What a function would take from a CUDA device, worked out on a machine that has none.

The function runs on fake tensors while every storage that it makes and drops is written down; the
list is then fed to a model of torch's caching allocator, which turns sizes into what the driver
hands out. Nothing is computed and no memory of the tensors' size is needed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

MIB = 1 << 20
_ROUND = 512
_SMALL = MIB  # requests up to it share small segments
_SMALL_SEGMENT = 2 * MIB
_MIDDLE_SEGMENT = 20 * MIB
_LARGE = 10 * MIB  # requests from it on get a segment of their own,
_LARGE_ROUND = 2 * MIB  # rounded up to this


class MemoryEvent(NamedTuple):
    """A storage comes or goes.

    Attributes:
        storage: Number of the storage, from 1.
        num_bytes: Its size when it comes, 0 when it goes.
    """

    storage: int
    num_bytes: int


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.events: list[MemoryEvent] = []
        self._alive: dict[int, int] = {}
        self._count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = [t.untyped_storage() for t in _tensors((args, kwargs))]
        known = {s._cdata for s in given} | self._alive.keys()
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if storage._cdata not in known and storage.nbytes():
                known.add(storage._cdata)
                self._alive[storage._cdata] = self._come(storage.nbytes())
                weakref.finalize(storage, self._go, storage._cdata)
        return result

    def _come(self, num_bytes: int) -> int:
        self._count += 1
        self.events.append(MemoryEvent(self._count, num_bytes))
        return self._count

    def _go(self, cdata: int) -> None:
        self.events.append(MemoryEvent(self._alive.pop(cdata), 0))


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def memory_events(body: Callable[[], object]) -> list[MemoryEvent]:
    """Runs a function, best on fake tensors, and writes down the storages it makes.

    Args:
        body: The function; what it returns lives until it is done.

    Returns:
        Storages as they come and go. Those that live on do not go.
    """
    with _Recorder() as recorder:
        result = body()
        del result
    return list(recorder.events)


def peak_bytes(events: Sequence[MemoryEvent]) -> int:
    """Most bytes alive at the same time."""
    sizes: dict[int, int] = {}
    now = peak = 0
    for storage, num_bytes in events:
        if num_bytes:
            sizes[storage] = num_bytes
            now += num_bytes
            peak = max(peak, now)
        else:
            now -= sizes.pop(storage)
    return peak


@dataclass(eq=False)
class _Block:
    size: int
    small: bool
    free: bool = False
    before: _Block | None = None  # neighbours in the same segment
    after: _Block | None = None


class CachingAllocator:
    """torch's CUDA allocator with its default settings: one stream, nothing given back.

    Sizes are rounded to 512 bytes. Up to 1 MiB they share segments of 2 MiB, up to 10 MiB segments
    of 20 MiB, and larger ones get a segment in steps of 2 MiB. The smallest free block that is
    large enough is taken and split; free neighbours are joined.
    """

    def __init__(self) -> None:
        """Starts without any memory."""
        self.reserved_bytes = 0
        self._free: list[_Block] = []

    def allocate(self, num_bytes: int) -> _Block:
        """Takes a block.

        Args:
            num_bytes: At least 1.

        Returns:
            What ``free`` takes back.
        """
        size = -(-num_bytes // _ROUND) * _ROUND
        small = size <= _SMALL
        fitting = [b for b in self._free if b.small == small and b.size >= size]
        if fitting:
            block = min(fitting, key=lambda b: b.size)
            self._free.remove(block)
        else:
            block = self._new_segment(size, small)
        rest = block.size - size
        if rest:  # torch leaves up to 1 MiB with a large block: nobody could use it anyway
            tail = _Block(rest, small, True, block, block.after)
            if block.after is not None:
                block.after.before = tail
            block.after, block.size = tail, size
            self._free.append(tail)
        block.free = False
        return block

    def _new_segment(self, size: int, small: bool) -> _Block:
        if small:
            segment = _SMALL_SEGMENT
        elif size < _LARGE:
            segment = _MIDDLE_SEGMENT
        else:
            segment = -(-size // _LARGE_ROUND) * _LARGE_ROUND
        self.reserved_bytes += segment
        return _Block(segment, small)

    def free(self, block: _Block) -> None:
        """Gives a block back to the allocator, which keeps its segment."""
        block.free = True
        if block.before is not None and block.before.free:
            self._free.remove(block.before)
            block = self._join(block.before, block)
        if block.after is not None and block.after.free:
            self._free.remove(block.after)
            block = self._join(block, block.after)
        self._free.append(block)

    def _join(self, first: _Block, second: _Block) -> _Block:
        first.size += second.size
        first.after = second.after
        if second.after is not None:
            second.after.before = first
        return first

    def play(self, events: Sequence[MemoryEvent]) -> int:
        """Serves storages as they come and go; what has not gone at the end is freed.

        Args:
            events: As ``memory_events`` returns them.

        Returns:
            Bytes that the allocator took from the driver on top.
        """
        before = self.reserved_bytes
        blocks: dict[int, _Block] = {}
        for storage, num_bytes in events:
            if num_bytes:
                blocks[storage] = self.allocate(num_bytes)
            else:
                self.free(blocks.pop(storage))
        for block in blocks.values():
            self.free(block)
        return self.reserved_bytes - before
