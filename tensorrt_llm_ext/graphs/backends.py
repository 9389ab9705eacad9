# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Graph backends: who records a function and replays it.

The protocol is small, so that another device's graphs (``torch.accelerator.Graph``) can become one
without a change to the runner. One backend instance is one pool, one lock and one order of replays;
towers that share it share their memory and never replay at the same time.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import statistics
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from .matmul_libraries import LIBRARIES, keep_workspaces, library

_MATMUL_MATTERS = 1024  # tokens (H200, widths 1152 and 1280)
LONG_MS = 10.0
"""A call is timed a third time, and so on, while all calls together took less."""
_AS_IT_IS = contextlib.nullcontext()


class CapturedGraph(Protocol):
    """A recorded function."""

    def replay(self) -> None:
        """Runs it again, on the very same buffers."""
        ...

    def reset(self) -> None:
        """Gives its memory back; it cannot be replayed after that."""
        ...


class GraphBackend(Protocol):
    """Records functions of one device.

    Attributes:
        name: Shown in reports.
        accelerated: A replay is meant to be faster than the eager call; where it is not, its
            timings decide nothing.
    """

    name: str
    accelerated: bool

    def session(self) -> contextlib.AbstractContextManager[object]:
        """Exclusive use of the pool, ordered after whoever used it before. Re-entrant."""
        ...

    def run(self, body: Callable[[], object]) -> None:
        """Runs the body once, where captures run."""
        ...

    def variants(self, num_tokens: int) -> tuple[str, ...]:
        """Forms in which a region of so many tokens is worth capturing, the usual one first."""
        ...

    def in_variant(self, variant: str) -> contextlib.AbstractContextManager[None]:
        """What runs inside runs in that form."""
        ...

    def capture(self, body: Callable[[], None], *, warmup_steps: int) -> CapturedGraph:
        """Runs the body ``warmup_steps`` times, then records it once."""
        ...

    def time_ms(self, body: Callable[[], object], *, repeats: int) -> float:
        """Median milliseconds of a call, the first of several left out; long ones are fewer."""
        ...

    def synchronize(self) -> None:
        """Waits for everything that replays, or reads what they made."""
        ...

    def memory_in_use(self, *, settled: bool = True) -> int:
        """Bytes taken on the device by everybody, as its driver counts them (0: unknown).

        Settled, the allocator has given back what nobody uses; that costs the next runs time.
        """
        ...


class StreamOrder:
    """Exclusive use of buffers on a CUDA device, ordered after the stream that used them before."""

    def __init__(self, device: torch.device) -> None:
        """Nobody has used them yet."""
        self.device = device
        self._lock = threading.RLock()
        self._guards: list[torch.cuda.device | None] = []  # of the sessions that are open
        self._last: tuple[int, torch.cuda.Stream] | None = None

    def session(self) -> contextlib.AbstractContextManager[object]:
        """Work of the current stream waits for that of the last; re-entrant."""
        return self if self.device.type == "cuda" else self._lock

    def __enter__(self) -> None:
        self._lock.acquire()
        self._guards.append(None)
        try:
            current, index = torch.cuda.current_device(), self.device.index
            if index is not None and index != current:
                guard = torch.cuda.device(index)
                guard.__enter__()
                self._guards[-1] = guard
            self._follow(current if index is None else index)
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def _follow(self, index: int) -> None:
        # The handle alone: making a Stream takes longer than all else here.
        handle = torch._C._cuda_getCurrentRawStream(index)
        if self._last is None or self._last[0] != handle:
            stream = torch.cuda.current_stream(index)
            if self._last is not None:
                stream.wait_stream(self._last[1])
            self._last = (handle, stream)

    def __exit__(self, *error: Any) -> None:
        guard = self._guards.pop()
        try:
            if guard is not None:
                guard.__exit__(*error)
        finally:
            self._lock.release()


class PoolOwner(Protocol):
    """A host's ties to a pool, such as communication windows that captures ask for."""

    def binding(self, pool: tuple[int, int]) -> contextlib.AbstractContextManager[object]:
        """Around a capture into the pool."""
        ...

    def release(self, pool: tuple[int, int]) -> None:
        """After the last graph of the pool is gone."""
        ...


class _PooledGraph:
    """A CUDA graph that its backend counts as alive until it is reset."""

    def __init__(
        self, graph: torch.cuda.CUDAGraph, alive: set[_PooledGraph], after: Callable[[], None]
    ) -> None:
        self.replay = graph.replay
        self._graph = graph
        self._alive = alive
        self._after = after
        alive.add(self)

    def reset(self) -> None:
        was_alive = self in self._alive
        self._alive.discard(self)
        self._graph.reset()
        if was_alive and not self._alive:
            self._after()


class CudaGraphBackend:
    """CUDA graphs in one private pool."""

    name = "cuda_graph"
    accelerated = True

    def __init__(self, device: torch.device, owner: PoolOwner | None = None) -> None:
        """Opens a pool on a CUDA device, for an owner to bind."""
        self._device = device
        self._owner = owner
        self._order = StreamOrder(device)
        self._stream = _capture_stream(device)
        self._alive: set[_PooledGraph] = set()
        # Explicit, because a failed capture without one cannot name its pool.
        self._pool = torch.cuda.graph_pool_handle()

    def session(self) -> contextlib.AbstractContextManager[object]:
        """See the protocol. Two replays from one pool at once corrupt each other."""
        return self._order.session()

    def run(self, body: Callable[[], object]) -> None:
        """See the protocol."""
        with self.session(), self._on_capture_stream():
            body()

    @contextlib.contextmanager
    def _on_capture_stream(self) -> Iterator[None]:
        current = torch.cuda.current_stream(self._device)
        # Those of eager runs too: made in the midst of one, they would take a part of a block that
        # activations had, and what is left of it could not be given back.
        keep_workspaces(self._device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                keep_workspaces(self._device)
                yield
        finally:
            current.wait_stream(self._stream)

    def capture(self, body: Callable[[], None], *, warmup_steps: int) -> CapturedGraph:
        """See the protocol. Host reads in the body are errors in the warm-up already.

        Nothing else in the process may synchronise meanwhile: it would be an error there.
        """
        graph = torch.cuda.CUDAGraph()
        with self.session(), _quiet_gc():
            if not self._alive:
                self._pool = torch.cuda.graph_pool_handle()  # a pool dies with its last graph
            bound = _AS_IT_IS if self._owner is None else self._owner.binding(self._pool)
            with bound, self._on_capture_stream():
                with _host_reads_are_errors():
                    for _ in range(warmup_steps):
                        body()
                self._stream.synchronize()
                # Not torch.cuda.graph(): after a failure it leaves its stream current, and it
                # empties the allocator's cache around every capture.
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                ended = False
                try:
                    with _host_reads_are_errors():
                        body()
                    ended = True
                    graph.capture_end()
                except BaseException:
                    self._abandon(graph, ended=ended)
                    raise
        return _PooledGraph(graph, self._alive, functools.partial(self._release, self._pool))

    def _release(self, pool: tuple[int, int]) -> None:
        if self._owner is not None:
            self._owner.release(pool)

    def variants(self, num_tokens: int) -> tuple[str, ...]:
        """See the protocol: libraries that multiply matrices. Above, none is always faster."""
        return LIBRARIES if num_tokens <= _MATMUL_MATTERS else LIBRARIES[:1]

    def in_variant(self, variant: str) -> contextlib.AbstractContextManager[None]:
        """See the protocol."""
        return library(variant)

    def _abandon(self, graph: torch.cuda.CUDAGraph, *, ended: bool) -> None:
        """Ends a capture that failed.

        When CUDA itself invalidated it (a synchronisation nobody caught), ``capture_end`` raises
        before torch has tidied up: allocations would still go to the pool, the cache could never
        be emptied, and the random generator would count as captured. (torch 2.11, 2.13)
        """
        if not ended:
            try:
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
                    graph.capture_end()
            except RuntimeError:  # says no more than the cause that is on its way up
                ended = True
        if ended:
            index = self._device.index
            index = torch.cuda.current_device() if index is None else index
            torch._C._cuda_endAllocateToPool(index, self._pool)
            torch._C._cuda_releasePool(index, self._pool)
            generator = torch.cuda.default_generators[index]
            generator.graphsafe_set_state(generator.clone_state())

    def time_ms(self, body: Callable[[], object], *, repeats: int) -> float:
        """See the protocol: wall time from a call to an idle device, device idle before."""
        times: list[float] = []
        with self.session():
            while len(times) < repeats and (len(times) < 2 or sum(times) < LONG_MS):
                torch.cuda.synchronize(self._device)
                start = time.perf_counter()
                body()
                torch.cuda.synchronize(self._device)
                times.append((time.perf_counter() - start) * 1e3)
        # The first launch of a graph uploads it, which would make long replays look dear.
        return statistics.median(times[1:] or times)

    def synchronize(self) -> None:
        """See the protocol."""
        torch.cuda.synchronize(self._device)

    def memory_in_use(self, *, settled: bool = True) -> int:
        """See the protocol."""
        if settled:
            self.synchronize()
            torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self._device)
        return total - free


def plain_mode(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """No autograd, autocast or inference mode of the caller: a capture would bake them in.

    Static tensors made in inference mode could not be written outside of it. What is off already
    is left alone: entering all three takes 10 us.
    """
    if torch.is_inference_mode_enabled() or torch.is_autocast_enabled(device.type):
        return _all_modes_off(device)
    return _NoGrad() if torch.is_grad_enabled() else _AS_IT_IS


class _NoGrad:
    """``torch.no_grad`` where gradients are on, at a fifth of its time."""

    def __enter__(self) -> None:
        torch._C._set_grad_enabled(False)

    def __exit__(self, *error: object) -> None:
        torch._C._set_grad_enabled(True)


@contextlib.contextmanager
def _all_modes_off(device: torch.device) -> Iterator[None]:
    with torch.inference_mode(False), torch.no_grad(), torch.autocast(device.type, enabled=False):
        yield


def profiler_range(device: torch.device, name: str) -> contextlib.AbstractContextManager[object]:
    """An NVTX range on a CUDA device; elsewhere nothing."""
    return _NvtxRange(name) if device.type == "cuda" else _AS_IT_IS


class _NvtxRange:
    """``torch.cuda.nvtx.range`` without its generator."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        torch.cuda.nvtx.range_push(self._name)

    def __exit__(self, *error: object) -> None:
        torch.cuda.nvtx.range_pop()


@functools.lru_cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """One for the process: every stream that multiplies matrices keeps a workspace for good."""
    return torch.cuda.Stream(device)


@contextlib.contextmanager
def _host_reads_are_errors() -> Iterator[None]:
    """Turns a hidden device read into a Python error with its own traceback."""
    before = torch.cuda.get_sync_debug_mode()
    _set_sync_debug_mode(2)
    try:
        yield
    finally:
        _set_sync_debug_mode(before)


def _set_sync_debug_mode(mode: int) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode(mode)


@contextlib.contextmanager
def _quiet_gc() -> Iterator[None]:
    """No garbage collection: a finaliser that frees device memory would end the capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def graph_backend_for(device: torch.device, owner: PoolOwner | None = None) -> GraphBackend | None:
    """A new backend for a device, or None where there is none.

    Args:
        device: The device the encoder runs on.
        owner: Of its pool, if it has one.

    Returns:
        CUDA graphs on CUDA, the static-buffer backend on CPU, None elsewhere.
    """
    from .static_backend import StaticGraphBackend

    if device.type == "cuda":
        return CudaGraphBackend(device, owner)
    if device.type == "cpu":
        return StaticGraphBackend()
    return None


def can_capture(device: torch.device) -> bool:
    """Whether there is a graph backend for a device."""
    return device.type in ("cuda", "cpu")
