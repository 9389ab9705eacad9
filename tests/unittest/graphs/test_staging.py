# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""What static inputs hold: written where it differs, checked for the writes of strangers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorrt_llm_ext.graphs.layout import EncoderItem
from tensorrt_llm_ext.graphs.staging import HeldInputs, Placement

from .fakes import CPU, IN, make_adapter
from .test_adapter import item, runs_of

SIZE = 40  # tokens of the largest bucket


class Inputs:
    """Two static tensors; a step has rows and a layout, and both are numbers."""

    def __init__(self) -> None:
        self.x = torch.zeros(SIZE, 2)
        self.layout = torch.zeros(SIZE, 1, dtype=torch.int32)
        self.written: list[object] = []
        self.held = HeldInputs({"x": self.x, "view": self.x[:8], "layout": self.layout}, self.clear)

    def clear(self, first: int, end: int) -> None:
        assert first < end, "nothing to clear is nothing to call"
        self.written.append((first, end))
        self.x[first:end].zero_()
        self.layout[first:end].zero_()

    def stage(self, used: int, size: int, layout: int, value: float, *, fail: str = "") -> None:
        self.held.stage(Step(self, used, layout, value, fail), size, [])

    def check(self, used: int, size: int, layout: int, value: float) -> None:
        assert (self.x[:used] == value).all()
        assert not self.x[used:size].any()
        assert (self.layout[:used] == layout).all()
        assert not self.layout[used:size].any()


class Step(Placement):
    def __init__(self, inputs: Inputs, used: int, layout: int, value: float, fail: str) -> None:
        self.layout, self.num_tokens = (layout, used), used
        self.inputs, self.number, self.value, self.fail = inputs, layout, value, fail

    def write_layout(self) -> None:
        self.inputs.written.append("layout")
        self.inputs.layout[: self.num_tokens] = self.number
        if self.fail == "layout":
            raise RuntimeError("half-way")

    def write_rows(self, items: object) -> None:
        if self.fail == "early":
            raise RuntimeError("before a row was written")
        self.inputs.x[: self.num_tokens] = self.value
        if self.fail == "rows":
            raise RuntimeError("half-way")


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[int, int, int, str]]:
    events = []
    for _ in range(draw(st.integers(1, 8))):
        size = draw(st.sampled_from([8, 16, SIZE]))
        what = draw(
            st.sampled_from(["", "", "", "", "early", "rows", "layout", "x", "view", "pos"])
        )
        events.append((draw(st.integers(1, size)), size, draw(st.integers(1, 3)), what))
    return events


@given(histories())
@settings(max_examples=300, deadline=None)
def test_after_any_history_a_step_finds_what_it_needs(history):
    inputs = Inputs()
    for number, (used, size, layout, what) in enumerate(history, start=1):
        value = float("nan") if number % 2 else float(number)  # NaN rows reach no later step
        if what in ("early", "rows", "layout"):
            try:
                inputs.stage(used, size, layout, value, fail=what)
            except RuntimeError:
                continue
        else:
            inputs.stage(used, size, layout, value)
        if value == value:
            inputs.check(used, size, layout, value)
        if what == "x":
            inputs.x.fill_(torch.nan)
        elif what == "view":
            inputs.x[size - 3 : size].fill_(torch.inf)
        elif what == "pos":
            inputs.layout[-1] = 1 << 30
    inputs.stage(5, SIZE, 9, 1.0)
    inputs.check(5, SIZE, 9, 1.0)


def test_a_repeated_layout_writes_its_rows_and_nothing_else():
    inputs = Inputs()
    inputs.stage(10, 16, 1, 1.0)
    assert inputs.written == [(10, 16), "layout"]
    for value in (2.0, 3.0):
        inputs.stage(10, 16, 1, value)
        inputs.check(10, 16, 1, value)
    assert inputs.written == [(10, 16), "layout"]


@pytest.mark.parametrize(
    ("steps", "cleared"),
    [
        ([(10, 16), (12, 16)], []),
        ([(10, 16), (4, 16)], [(4, 10)]),
        ([(10, 16), (4, 8)], [(4, 8)]),
        ([(10, 16), (4, 8), (4, 16)], [(4, 8), (8, 16)]),
        ([(10, 16), (4, 40)], [(4, 10), (16, 40)]),
        ([(16, 16), (10, 16)], [(10, 16)]),
        ([(10, 16), (40, 40), (10, 16), (10, 16)], [(10, 16)]),
        ([(10, 40), (4, 8), (4, 8)], [(4, 8)]),
    ],
)
def test_only_rows_that_somebody_wrote_are_cleared(steps, cleared):
    inputs = Inputs()
    used, size = steps[0]
    inputs.stage(used, size, 1, 1.0)
    inputs.written.clear()
    for used, size in steps[1:]:
        inputs.stage(used, size, 1, 2.0)
        inputs.check(used, size, 1, 2.0)
    assert [what for what in inputs.written if what != "layout"] == cleared


@pytest.mark.parametrize("what", ["x", "view", "layout", "view of another dtype", "inference mode"])
def test_a_strangers_write_is_noticed(what):
    inputs = Inputs()
    inputs.stage(10, 16, 1, 1.0)
    inputs.written.clear()
    if what == "inference mode":
        with torch.inference_mode():
            inputs.x[12] = torch.nan
    elif what == "view of another dtype":
        inputs.layout.view(torch.float32)[12] = torch.nan
    elif what == "view":
        inputs.x[10:20].detach().fill_(torch.nan)
    else:
        getattr(inputs, what)[12] = 7
    inputs.stage(10, 16, 1, 2.0)
    inputs.check(10, 16, 1, 2.0)
    assert inputs.written == [(10, 16), "layout"]


@pytest.mark.parametrize("fail", ["early", "rows", "layout"])
def test_nothing_is_taken_for_granted_after_a_failure(fail):
    inputs = Inputs()
    inputs.stage(10, 16, 1, 1.0)
    with pytest.raises(RuntimeError):
        inputs.stage(12, 16, 2, 5.0, fail=fail)
    inputs.written.clear()
    inputs.stage(10, 16, 1, 2.0)
    inputs.check(10, 16, 1, 2.0)
    assert inputs.written == [(10, 16), "layout"]


# ---- the packed placement --------------------------------------------------------------------


def test_a_placement_holds_for_every_batch_of_its_layout():
    adapter = make_adapter()
    first = [item((4, 8)), item((8,), tag=1)]
    inputs = adapter.allocate_inputs(32, CPU)
    placement = adapter.place(inputs, first, runs_of(first, (1, 0, 1), (0, 0, 2)))
    other = [
        EncoderItem(i.segment_lengths, {"x": i.rows["x"] + 7}, i.layout) for i in reversed(first)
    ][::-1]
    placement.write_layout()
    placement.write_rows(first)
    placement.write_rows(other)
    want = torch.cat([other[1].rows["x"], other[0].rows["x"]])
    torch.testing.assert_close(inputs["x"][:20], want, rtol=0, atol=0)


def test_layouts_with_other_gaps_are_others():
    """Learned rows at the end of segments: where they lie is part of what was written."""
    adapter = make_adapter(rowless_tokens=2, layout_specs={}, build_layout=None)
    inputs = adapter.allocate_inputs(16, CPU)
    held = HeldInputs(inputs, lambda first, end: adapter.clear(inputs, first, end))
    for lengths in ((4, 8), (8, 4)):
        items = [EncoderItem(lengths, {"x": torch.ones(8, IN)}, None)]
        held.stage(adapter.place(inputs, items, runs_of(items, (0, 0, 2))), 16, items)
        ends = [sum(lengths[: i + 1]) for i in range(2)]
        blank = [n for end in ends for n in (end - 2, end - 1)]
        assert (inputs["x"][:12, 0] == 0).nonzero().flatten().tolist() == blank


@pytest.mark.parametrize("where", ["rows of inference mode", "rows that want gradients"])
@pytest.mark.parametrize("batch", [1, 2])
def test_rows_from_other_modes(where, batch):
    adapter = make_adapter()
    inputs = adapter.allocate_inputs(32, CPU)
    if where == "rows of inference mode":
        with torch.inference_mode():
            rows = torch.ones(8, IN) * 3
    else:
        rows = (torch.ones(8, IN) * 3).requires_grad_()
    items = [EncoderItem((8,), {"x": rows}, ((8,), 0))] * batch
    with torch.no_grad():
        adapter.fill(inputs, items, runs_of(items, *((i, 0, 1) for i in range(batch))))
    assert inputs["x"][: 8 * batch].eq(3).all()
    assert not inputs["x"].requires_grad
