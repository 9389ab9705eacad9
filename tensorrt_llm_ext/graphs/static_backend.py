# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The graph backend of machines without a GPU: same rules, no speed.

The captured function runs once while every tensor operation it makes is written down with its
scalars as they were. A replay runs only that list, on the very same external buffers. So a baked
Python value stays baked, an address that moved is not followed, and stale or aliased rows show,
as with a CUDA graph.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from .backends import CapturedGraph, plain_mode

_UNSAFE_TAGS = {
    torch.Tag.data_dependent_output: "reads a device value on the host",
    torch.Tag.dynamic_output_shape: "has an output shape that depends on device values",
    torch.Tag.nondeterministic_seeded: "draws random numbers",
}
_MASK_KINDS = (torch.bool, torch.uint8)
_HOST_READS = (torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.cpu)


class CaptureUnsafeError(RuntimeError):
    """The captured function did something that a graph cannot replay."""


def _why_unsafe(func: Any, args: Any) -> str | None:
    if func.overloadpacket in (torch.ops.aten.index, torch.ops.aten.index_put_):
        # Indexing carries the tag for masks; with integers its shape is known.
        masked = any(i is not None and i.dtype in _MASK_KINDS for i in args[1])
        return _UNSAFE_TAGS[torch.Tag.dynamic_output_shape] if masked else None
    for tag, what in _UNSAFE_TAGS.items():
        if tag in func.tags and not _without_dropout(func, args):
            return what
    return None


def _without_dropout(func: Any, args: Any) -> bool:
    """Attention carries the random tag for its dropout; without dropout it draws nothing.

    The dispatcher hands over by position what can have one, however it was given, and leaves
    defaults out.
    """
    for position, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            return bool(position >= len(args) or args[position] == 0.0)
    return False


class _Slot(NamedTuple):
    """Stands for the tensor that an earlier operation of the list made."""

    number: int


class _Operation(NamedTuple):
    func: Any
    leaves: list[Any]  # arguments: _Slot, external tensor or frozen scalar
    spec: Any
    outputs: list[int | None]  # slot of each output leaf
    dead: list[int]  # slots nobody reads after this operation


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations: list[_Operation] = []
        self._slots: dict[int, int] = {}
        self._alive: list[torch.Tensor] = []  # ids stay unique while everything is alive

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        what = _why_unsafe(func, args)
        if what is not None:
            raise CaptureUnsafeError(f"{func} {what}, inside the captured region")
        leaves, spec = tree_flatten((args, kwargs or {}))
        frozen = [self._freeze(x) for x in leaves]
        result = func(*args, **(kwargs or {}))
        outputs: list[int | None] = []
        for out in tree_flatten(result)[0]:
            if not isinstance(out, torch.Tensor):
                outputs.append(None)
                continue
            self._slots[id(out)] = len(self._alive)
            outputs.append(len(self._alive))
            self._alive.append(out)
        self.operations.append(_Operation(func, frozen, spec, outputs, []))
        return result

    def _freeze(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        slot = self._slots.get(id(leaf))
        # Detached: an external tensor that is rebound later (``x.data = y``) is not followed.
        return leaf.detach() if slot is None else _Slot(slot)

    def finish(self) -> list[_Operation]:
        """Notes after which operation each slot can be dropped."""
        last_use: dict[int, int] = {}
        for position, op in enumerate(self.operations):
            for slot in [x.number for x in op.leaves if isinstance(x, _Slot)]:
                last_use[slot] = position
            for made in op.outputs:
                if made is not None:
                    last_use[made] = position
        for slot, position in last_use.items():
            self.operations[position].dead.append(slot)
        return self.operations


class _NoHostReads(TorchFunctionMode):
    """Reads that never reach the dispatcher on a CPU, and would wait for the device elsewhere."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _HOST_READS:
            raise CaptureUnsafeError(
                f"Tensor.{func.__name__} reads a device value on the host, inside the captured "
                "region"
            )
        return func(*args, **(kwargs or {}))


class StaticGraph:
    """A recorded list of tensor operations."""

    def __init__(self, operations: list[_Operation]) -> None:
        """Takes the list over."""
        self._operations: list[_Operation] | None = operations

    @property
    def num_operations(self) -> int:
        """Operations in the list."""
        return len(self._operations or ())

    def replay(self) -> None:
        """See the protocol."""
        if self._operations is None:
            raise RuntimeError("replay of a graph that was reset; capture it again")
        values: dict[int, torch.Tensor] = {}
        with plain_mode(torch.device("cpu")):
            for op in self._operations:
                leaves = [values[x.number] if isinstance(x, _Slot) else x for x in op.leaves]
                args, kwargs = tree_unflatten(leaves, op.spec)
                results = tree_flatten(op.func(*args, **kwargs))[0]
                for slot, result in zip(op.outputs, results, strict=True):
                    if slot is not None:
                        values[slot] = result
                for slot in op.dead:
                    del values[slot]

    def reset(self) -> None:
        """See the protocol."""
        self._operations = None


class StaticGraphBackend:
    """Static buffers and a recorded list of operations; nothing is accelerated."""

    name = "static_buffers"
    accelerated = False

    def __init__(self) -> None:
        """Makes a backend; it holds a lock and nothing else."""
        self._lock = threading.RLock()

    def session(self) -> contextlib.AbstractContextManager[object]:
        """See the protocol."""
        return self._lock

    def run(self, body: Callable[[], object]) -> None:
        """See the protocol."""
        with self.session():
            body()

    def variants(self, num_tokens: int) -> tuple[str, ...]:
        """One."""
        return ("default",)

    def in_variant(self, variant: str) -> contextlib.AbstractContextManager[None]:
        """Nothing to choose."""
        return contextlib.nullcontext()

    def capture(self, body: Callable[[], None], *, warmup_steps: int) -> CapturedGraph:
        """See the protocol.

        Raises:
            CaptureUnsafeError: The body reads a value on the host, has a data-dependent shape or
                draws random numbers.
        """
        with self.session():
            for _ in range(warmup_steps):
                body()
            recorder = _Recorder()
            with _NoHostReads(), recorder:
                body()
        return StaticGraph(recorder.finish())

    def time_ms(self, body: Callable[[], object], *, repeats: int) -> float:
        """See the protocol."""
        times = []
        with self.session():
            for _ in range(repeats):
                start = time.perf_counter()
                body()
                times.append((time.perf_counter() - start) * 1e3)
        return statistics.median(times)

    def synchronize(self) -> None:
        """Nothing runs on its own here."""

    def memory_in_use(self, *, settled: bool = True) -> int:
        """Unknown; the runner counts its buffers."""
        return 0
