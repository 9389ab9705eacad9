# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Which backend a device has, the modes that a capture is kept free of, the order of streams."""

from __future__ import annotations

import contextlib
import gc
import threading
from types import SimpleNamespace

import pytest
import torch

from tensorrt_llm_ext.graphs import backends
from tensorrt_llm_ext.graphs.backends import (
    StreamOrder,
    can_capture,
    graph_backend_for,
    plain_mode,
    profiler_range,
)
from tensorrt_llm_ext.graphs.static_backend import StaticGraphBackend


@pytest.mark.parametrize(("device", "yes"), [("cpu", True), ("cuda", True), ("meta", False)])
def test_can_capture(device, yes):
    assert can_capture(torch.device(device)) is yes


def test_backend_of_a_device():
    assert isinstance(graph_backend_for(torch.device("cpu")), StaticGraphBackend)
    assert graph_backend_for(torch.device("meta")) is None
    first, second = (graph_backend_for(torch.device("cpu")) for _ in range(2))
    assert first is not second  # a pool of its own


def test_backend_of_a_gpu(monkeypatch):
    device, owner = torch.device("cuda", 1), object()
    monkeypatch.setattr(backends, "CudaGraphBackend", lambda *given: given)
    assert graph_backend_for(device, owner) == (device, owner)


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_not_collected_during_a_capture(enabled):
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with backends._quiet_gc():
            assert not gc.isenabled()
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_plain_mode():
    a = torch.randn(4, 4, requires_grad=True)
    with (
        torch.enable_grad(),
        torch.autocast("cpu", dtype=torch.bfloat16),
        plain_mode(torch.device("cpu")),
    ):
        product = a @ a
        assert product.dtype is torch.float32
        assert not product.requires_grad
    with torch.inference_mode():
        with plain_mode(torch.device("cpu")):
            buffer = torch.zeros(2)
        assert torch.is_inference_mode_enabled()
    buffer.copy_(torch.ones(2))  # not an inference tensor: it can be written out here
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("inside", ["grad", "no grad", "inference", "autocast"])
def test_plain_mode_gives_the_callers_modes_back(inside):
    modes = {
        "grad": torch.enable_grad,
        "no grad": torch.no_grad,
        "inference": torch.inference_mode,
        "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    }

    def now():
        return (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled("cpu"),
        )

    with modes[inside]():
        before = now()
        with plain_mode(torch.device("cpu")):
            assert now() == (False, False, False)
            with plain_mode(torch.device("cpu")):
                assert now() == (False, False, False)
            assert now() == (False, False, False)
        assert now() == before
        with pytest.raises(ZeroDivisionError), plain_mode(torch.device("cpu")):
            _ = 1 / 0
        assert now() == before


# ---- streams, without a device ---------------------------------------------------------------


class FakeCuda:
    """The few functions that order streams, and what they were asked."""

    def __init__(self, monkeypatch):
        self.device, self.handle, self.waits, self.broken = 0, 10, [], False
        cuda = self

        class Stream:
            def __init__(self, handle):
                self.handle = handle

            def wait_stream(self, other):
                cuda.waits.append((self.handle, other.handle))

        class Device:
            def __init__(self, index):
                self.index = index

            def __enter__(self):
                self.before, cuda.device = cuda.device, self.index

            def __exit__(self, *error):
                cuda.device = self.before

        def handle_of(index):
            if self.broken:
                raise RuntimeError("device lost")
            assert index == self.device
            return self.handle

        monkeypatch.setattr(torch.cuda, "current_device", lambda: self.device)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda index: Stream(self.handle))
        monkeypatch.setattr(torch.cuda, "device", Device)
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", handle_of, raising=False)


@pytest.fixture
def cuda(monkeypatch):
    return FakeCuda(monkeypatch)


def test_a_stream_waits_for_the_one_before(cuda):
    order = StreamOrder(torch.device("cuda"))
    for handle in (10, 10, 11, 11, 10):
        cuda.handle = handle
        with order.session(), order.session():
            pass
    assert cuda.waits == [(11, 10), (10, 11)]


def test_each_session_leaves_the_device_as_it_was(cuda):
    order = StreamOrder(torch.device("cuda", 1))
    cuda.device = 1
    with order.session():
        cuda.device = 2  # what runs inside goes elsewhere for a while
        with order.session():
            assert cuda.device == 1
        assert cuda.device == 2
        cuda.device = 1
    assert cuda.device == 1


def test_a_session_is_on_its_device(cuda):
    order = StreamOrder(torch.device("cuda", 1))
    with order.session():
        assert cuda.device == 1
        with order.session():
            assert cuda.device == 1
        assert cuda.device == 1
    assert cuda.device == 0
    with pytest.raises(ZeroDivisionError), order.session():
        _ = 1 / 0
    assert cuda.device == 0


def test_a_session_that_cannot_begin_blocks_nobody(cuda):
    order = StreamOrder(torch.device("cuda", 1))
    cuda.broken = True
    with pytest.raises(RuntimeError, match="device lost"), order.session():
        pytest.fail("it began")
    assert cuda.device == 0
    cuda.broken = False
    done = threading.Event()

    def other():
        with order.session():
            done.set()

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(10)
    assert done.is_set()


def test_one_session_at_a_time(cuda):
    order = StreamOrder(torch.device("cuda"))
    entered = threading.Event()

    def other():
        with order.session():
            entered.set()

    thread = threading.Thread(target=other)
    with order.session():
        thread.start()
        assert not entered.wait(0.1)
    thread.join(10)
    assert entered.is_set()


def test_profiler_range_is_left_whatever_happens(monkeypatch):
    seen = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", lambda name: seen.append(name))
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: seen.append("pop"))
    with profiler_range(torch.device("cpu"), "nothing"):
        pass
    with pytest.raises(ZeroDivisionError), profiler_range(torch.device("cuda"), "a replay"):
        _ = 1 / 0
    assert seen == ["a replay", "pop"]


class FakeGraph:
    """A CUDA graph of nobody's device."""

    def capture_begin(self, **how):
        self.pool = how["pool"]

    def capture_end(self):
        pass

    def replay(self):
        pass

    def reset(self):
        pass


@pytest.fixture
def fake_cuda(monkeypatch):
    """CUDA graphs without CUDA: what a backend asks torch for, counted up."""
    handles = iter((0, n) for n in range(9))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(handles))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    stream = SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(backends, "_capture_stream", lambda device: stream)
    monkeypatch.setattr(backends, "_host_reads_are_errors", contextlib.nullcontext)
    on_stream = lambda self: contextlib.nullcontext()  # noqa: E731
    monkeypatch.setattr(backends.CudaGraphBackend, "_on_capture_stream", on_stream)


def test_owner_binds_captures_and_is_told_of_the_last_graph(fake_cuda):
    log = []

    class Owner:
        @contextlib.contextmanager
        def binding(self, pool):
            log.append(("bound", pool))
            yield
            log.append(("unbound", pool))

        def release(self, pool):
            log.append(("released", pool))

    backend = backends.CudaGraphBackend(torch.device("cpu"), Owner())
    graphs = [backend.capture(lambda: log.append("body"), warmup_steps=1) for _ in range(2)]
    pool = log[0][1]
    assert log == [("bound", pool), "body", "body", ("unbound", pool)] * 2
    log.clear()
    graphs[0].reset()
    graphs[0].reset()
    assert log == []
    graphs[1].reset()
    graphs[1].reset()
    assert log == [("released", pool)]
    log.clear()
    backend.capture(lambda: None, warmup_steps=0).reset()
    assert [what for what, _ in log] == ["bound", "unbound", "released"]
    assert log[0][1] != pool  # a pool dies with its last graph


def test_backend_without_an_owner(fake_cuda):
    backends.CudaGraphBackend(torch.device("cpu")).capture(lambda: None, warmup_steps=0).reset()


@pytest.mark.parametrize(
    ("milliseconds", "repeats", "calls", "median"),
    [
        ([3, 1, 2, 1, 2], 5, 5, 1.5),  # the first is left out
        ([3, 6, 4, 1, 1], 5, 3, 5),  # 13 ms are enough
        ([30, 20, 1, 1, 1], 5, 2, 20),  # two at least, or the first would be all there is
        ([30, 1, 1, 1, 1], 1, 1, 30),
    ],
)
def test_first_launch_is_left_out_of_a_time(
    fake_cuda, monkeypatch, milliseconds, repeats, calls, median
):
    now = [8.0]
    left = iter(milliseconds)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(backends.time, "perf_counter", lambda: now[-1])
    backend = backends.CudaGraphBackend(torch.device("cpu"))
    ms = backend.time_ms(lambda: now.append(now[-1] + next(left) / 1e3), repeats=repeats)
    assert ms == pytest.approx(median)
    assert len(now) == 1 + calls


def test_what_runs_on_the_capture_stream_finds_its_workspaces_kept(monkeypatch):
    """A first product there would have them made where anybody gets memory from.

    So would the first eager one, in a block that cannot be given back any more.
    """
    log = []

    class Stream(SimpleNamespace):
        def wait_stream(self, other):
            log.append(f"{self.name} waits for {other.name}")

    @contextlib.contextmanager
    def on(stream):
        log.append(f"on {stream.name}")
        yield
        log.append(f"off {stream.name}")

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(name="caller's"))
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(backends, "_capture_stream", lambda device: Stream(name="own"))
    monkeypatch.setattr(backends, "keep_workspaces", lambda device: log.append(f"kept on {device}"))
    backends.CudaGraphBackend(torch.device("cpu")).run(lambda: log.append("body"))
    assert log == [
        "kept on cpu",
        "own waits for caller's",
        "on own",
        "kept on cpu",
        "body",
        "off own",
        "caller's waits for own",
    ]
