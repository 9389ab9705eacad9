# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The static-buffer backend shows on a CPU what a CUDA graph would do."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tensorrt_llm_ext.graphs import static_backend
from tensorrt_llm_ext.graphs.static_backend import CaptureUnsafeError, StaticGraphBackend


class Case:
    """A static input and output, and a graph of a function between them."""

    def __init__(self, function, *shape, warmup_steps=1, dtype=torch.float32):
        self.x = torch.randn(*(shape or (4, 6)), dtype=dtype)
        self.calls = 0
        self.out = torch.zeros_like(function(self.x))
        self.function = function
        self.graph = StaticGraphBackend().capture(self.body, warmup_steps=warmup_steps)

    def body(self):
        self.calls += 1
        self.out.copy_(self.function(self.x))

    def replay(self, x):
        self.x.copy_(x)
        self.out.fill_(float("nan") if self.out.is_floating_point() else -1)
        self.graph.replay()
        return self.out.clone()


@pytest.mark.parametrize("warmup_steps", [0, 1, 3])
def test_body_runs_for_warm_up_and_once_to_record(warmup_steps):
    case = Case(lambda x: x * 2, warmup_steps=warmup_steps)
    assert case.calls == warmup_steps + 1
    case.graph.replay()
    case.graph.replay()
    assert case.calls == warmup_steps + 1  # replays run the list, not the function


LINEAR = nn.Linear(6, 6)


def in_place(x):
    y = x.clone()
    y += 1
    y[:, 2:4].mul_(3)
    y.view(-1)[::5] = 0
    return y


def splits(x):
    a, b, c = torch.split(x, [1, 3, 2], dim=1)
    top, bottom = x.chunk(2)
    return torch.cat([c, a, b], dim=1) + torch.cat([bottom, top])


def attention(x):
    q = x.view(1, 1, 4, 6)
    return F.scaled_dot_product_attention(q, q * 2, q + 1).view(4, 6)


def top_k(x):
    values, indices = x.topk(3, dim=1)
    return values + indices


def returns_nothing(x):
    parts = [x.clone()]
    torch._foreach_add_(parts, 1.0)
    return parts[0] * 2


def overwritten_view(x):
    y = torch.zeros_like(x)
    row = y[1]  # taken before the write
    y.copy_(x)
    return y + row


def constants_after_dead_values(x):
    for i in range(4):
        dead = x * 100
        del dead  # its id is free for the constant that comes next
        x = x + torch.tensor([float(i)])
    return x


@pytest.mark.parametrize(
    "function",
    [
        in_place,
        constants_after_dead_values,
        splits,
        attention,
        top_k,
        returns_nothing,
        overwritten_view,
        lambda x: LINEAR(x).relu_(),
        lambda x: F.layer_norm(x, (6,)),
        lambda x: x[torch.tensor([3, 0, 0, 2])],  # integers: the shape is known
        lambda x: F.dropout(x, 0.5, training=False),
        lambda x: torch.where(x > 0, x, -x),
        lambda x: torch.add(x, x, out=torch.empty_like(x)),
        lambda x: x.unbind(0)[2],
        lambda x: torch.arange(6) + x,
    ],
)
def test_replay_computes_the_function_of_the_new_values(function):
    case = Case(function)
    for _ in range(2):  # twice: a replay leaves nothing of its own behind
        x = torch.randn(4, 6)
        with torch.no_grad():
            want = function(x)
        torch.testing.assert_close(case.replay(x), want, rtol=0, atol=0)


def test_body_may_write_to_external_buffers_in_place():
    total, x = torch.zeros(3), torch.ones(3)
    graph = StaticGraphBackend().capture(lambda: total.add_(x), warmup_steps=0)
    total.zero_()
    x.fill_(5)
    graph.replay()
    graph.replay()
    assert total.tolist() == [10, 10, 10]


# ---- what is baked stays baked ---------------------------------------------------------------


def test_baked_int_stays_baked():
    layout = {"rows": 2}
    case = Case(lambda x: x.narrow(0, 0, layout["rows"]).sum(0))
    layout["rows"] = 4
    got = case.replay(torch.ones(4, 6))
    assert got.tolist() == [2.0] * 6  # stale, as it would be in a CUDA graph
    assert case.function(case.x).tolist() == [4.0] * 6


def test_baked_branch_stays_baked():
    switch = {"negate": False}
    case = Case(lambda x: -x if switch["negate"] else x * 1)
    switch["negate"] = True
    assert torch.equal(case.replay(torch.ones(4, 6)), torch.ones(4, 6))


def test_rebound_input_is_not_followed():
    buffers = {"x": torch.ones(3)}
    old, out = buffers["x"], torch.zeros(3)
    graph = StaticGraphBackend().capture(lambda: out.copy_(buffers["x"] * 2), warmup_steps=1)
    buffers["x"] = torch.full((3,), 7.0)
    graph.replay()
    assert out.tolist() == [2, 2, 2]
    old.fill_(4)
    graph.replay()
    assert out.tolist() == [8, 8, 8]


def test_weights_in_place_are_seen_and_rebound_ones_are_not():
    linear, x, out = nn.Linear(3, 3, bias=False), torch.ones(1, 3), torch.zeros(1, 3)
    with torch.no_grad():
        graph = StaticGraphBackend().capture(lambda: out.copy_(linear(x)), warmup_steps=1)
        linear.weight.fill_(1)
        graph.replay()
        assert out.tolist() == [[3, 3, 3]]
        linear.weight.data = torch.full((3, 3), 5.0)
        graph.replay()
        assert out.tolist() == [[3, 3, 3]]  # stale, as it would be in a CUDA graph


def test_replay_ignores_the_modes_around_it():
    case = Case(lambda x: x @ x.T, 4, 6)
    x = torch.randn(4, 6)
    with torch.no_grad():
        want = x @ x.T
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(case.replay(x), want)
    with torch.inference_mode():
        assert torch.equal(case.replay(x), want)
    with torch.enable_grad():
        assert not case.replay(x).requires_grad


def test_memory_of_dead_intermediates_goes_during_the_replay():
    alive, seen = [], []

    x, out = torch.ones(4), torch.zeros(4)

    def body():
        y = x
        for _ in range(5):
            y = y + 1
        out.copy_(y)

    graph = StaticGraphBackend().capture(body, warmup_steps=0)
    original = [op.func for op in graph._operations]

    def watched(func):
        def run(*args, **kwargs):
            result = func(*args, **kwargs)
            alive.append(weakref.ref(result))
            seen.append(sum(ref() is not None for ref in alive))
            return result

        return run

    graph._operations = [
        op._replace(func=watched(func))
        for op, func in zip(graph._operations, original, strict=True)
    ]
    graph.replay()
    assert out.tolist() == [6] * 4
    assert max(seen) <= 3


def test_results_nobody_reads_are_dropped_at_once():
    graph = Case(lambda x: x.topk(3, dim=1)[0]).graph
    (made,) = [op.outputs for op in graph._operations if len(op.outputs) == 2]
    (dead,) = [op.dead for op in graph._operations if len(op.outputs) == 2]
    assert dead == made[1:]


# ---- what a graph cannot replay --------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (lambda x: x * x.sum().item(), "reads a device value"),
        (lambda x: x if x.sum() > 0 else -x, "reads a device value"),
        (lambda x: x * int(x[0, 0]), "reads a device value"),
        (lambda x: x if torch.equal(x, x) else -x, "reads a device value"),
        (lambda x: x * x.tolist()[0][0], "tolist reads a device value"),
        (lambda x: x * float(x.detach().numpy()[0, 0]), "numpy reads a device value"),
        (lambda x: x * float(np.asarray(x.detach())[0, 0]), "reads a device value"),
        (lambda x: x * x.cpu(), "cpu reads a device value"),
        (lambda x: x[x > 0], "output shape"),
        (lambda x: x[:, x[0] > 0], "output shape"),
        (lambda x: x.clone().index_put_((x > 0,), torch.tensor(1.0)), "output shape"),
        (lambda x: x.nonzero(), "output shape"),
        (lambda x: x.unique(), "output shape"),
        (lambda x: x.repeat_interleave(torch.ones(4, dtype=torch.int64), 0), "output shape"),
        (lambda x: torch.rand_like(x), "random"),
        (lambda x: F.dropout(x, 0.5, training=True), "random"),
        (lambda x: x.clone().normal_(), "random"),
        (
            lambda x: F.scaled_dot_product_attention(
                x[None, None], x[None, None], x[None, None], dropout_p=0.5
            ),
            "random",
        ),
    ],
)
def test_unsafe_operations_are_refused(function, what):
    with pytest.raises(CaptureUnsafeError, match=rf"{what}.*inside the captured region"):
        Case(function)


def test_fused_attention_with_dropout_is_refused():
    """Carries the tag for random numbers either way: the probability decides."""
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    q, out = torch.randn(1, 1, 4, 8), torch.zeros(1, 1, 4, 8)
    backend = StaticGraphBackend()
    for kwargs in ({}, {"dropout_p": 0.0}, {"dropout_p": 0.0, "is_causal": True}):
        backend.capture(
            lambda kwargs=kwargs: out.copy_(fused(q, q, q, **kwargs)[0]), warmup_steps=0
        )
    for args, kwargs in (((0.5,), {}), ((), {"dropout_p": 0.5})):
        with pytest.raises(CaptureUnsafeError, match="random"):
            backend.capture(
                lambda args=args, kwargs=kwargs: fused(q, q, q, *args, **kwargs), warmup_steps=0
            )


def test_refusal_leaves_no_mode_behind():
    with pytest.raises(CaptureUnsafeError):
        Case(lambda x: x.nonzero())
    x = torch.ones(2)
    assert x.tolist() == [1, 1]
    assert x[x > 0].sum().item() == 2


def test_error_of_the_body_comes_out_as_it_is():
    def body():
        raise KeyError("mine")

    backend = StaticGraphBackend()
    with pytest.raises(KeyError, match="mine"):
        backend.capture(body, warmup_steps=0)
    backend.capture(lambda: None, warmup_steps=0).replay()


# ---- lifecycle -------------------------------------------------------------------------------


def test_replay_after_reset():
    case = Case(lambda x: x * 2)
    assert case.graph.num_operations > 0
    case.graph.reset()
    case.graph.reset()
    assert case.graph.num_operations == 0
    with pytest.raises(RuntimeError, match="reset; capture it again"):
        case.graph.replay()


def test_reset_lets_go_of_the_buffers():
    case = Case(lambda x: x * 2)
    buffer = weakref.ref(case.x)
    case.graph.reset()
    del case.x
    gc.collect()
    assert buffer() is None


def test_session_is_exclusive_and_re_entrant():
    backend = StaticGraphBackend()
    entered = threading.Event()

    def other():
        with backend.session():
            entered.set()

    thread = threading.Thread(target=other)
    with backend.session(), backend.session():
        thread.start()
        assert not entered.wait(0.05)
    thread.join(5)
    assert entered.is_set()


def test_timing_is_a_median_of_calls(monkeypatch):
    seconds, now = iter((5.0, 0.001, 0.002, 0.003, 0.0)), [8.0]
    monkeypatch.setattr(static_backend.time, "perf_counter", lambda: now[-1])
    ms = StaticGraphBackend().time_ms(lambda: now.append(now[-1] + next(seconds)), repeats=5)
    assert ms == pytest.approx(2.0)
    assert next(seconds, None) is None


def test_says_that_nothing_is_accelerated():
    backend = StaticGraphBackend()
    assert (backend.name, backend.accelerated) == ("static_buffers", False)
    assert backend.memory_in_use() == 0
