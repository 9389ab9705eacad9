# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The packed adapter: shapes, padding, offsets of what is copied in and out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from tensorrt_llm_ext.graphs import packed_placement
from tensorrt_llm_ext.graphs.adapter import EncoderGraphTensorSpec, PackedEncoderGraphIOAdapter
from tensorrt_llm_ext.graphs.buckets import Bucket, EagerReason, ladder
from tensorrt_llm_ext.graphs.layout import Eager, EncoderItem, SegmentRun
from tensorrt_llm_ext.graphs.packer import Packer

from .fakes import CPU, IN, OUT, UNIT, WIDTH, fake_layout, make_adapter


def item(segments, tag=0):
    """Rows that say which item and which token they are."""
    n = sum(segments)
    x = torch.arange(n, dtype=torch.float32)[:, None].expand(n, IN) + 1000 * tag
    return EncoderItem(tuple(segments), {"x": x.contiguous()}, (tuple(segments), tag))


def runs_of(items, *picked):
    """Runs of (item, first segment, number of segments)."""
    starts = np.cumsum([0, *(i.num_tokens for i in items)])
    runs = []
    for index, first, count in picked:
        lengths = items[index].segment_lengths
        at, n = sum(lengths[:first]), sum(lengths[first : first + count])
        runs.append(SegmentRun(index, first, count, at, int(starts[index]) + at, n))
    return tuple(runs)


# ---- buckets ---------------------------------------------------------------------------------


def planned(**kwargs):
    adapter = make_adapter(bakes_max_segment_len=kwargs.pop("bakes", False))
    defaults = {"explicit": None, "max_segments": None, "token_budget": 1024}
    return adapter.buckets(**{**defaults, "enable_padding": True, **kwargs})


def test_automatic_buckets_are_the_ladder():
    assert planned(max_segments=8) == ladder(1024, 8, unit=UNIT)


@pytest.mark.parametrize(
    ("explicit", "expected"),
    [
        ([(64, 1)], [(64, 1)]),
        ([(256, 8), (64, 2)], [(64, 2), (256, 8)]),
        ([(4096, 64)], [(4096, 64)]),  # beyond the eager budget is the user's choice
        ([(63, 1)], [(64, 1)]),
        ([(61, 1), (64, 1), (62, 2)], [(64, 1), (64, 2)]),
        ([(4, 4)], [(4, 4)]),
    ],
)
def test_explicit_buckets(explicit, expected):
    assert planned(explicit=explicit) == tuple(Bucket(*b) for b in expected)


@pytest.mark.parametrize(("tokens", "fix"), [(63, 64), (1, 4), (66, 68)])
def test_ragged_bucket_without_padding_is_refused(tokens, fix):
    with pytest.raises(ValueError, match=rf"bucket \({tokens}, 1\) can never .*Use {fix} tokens"):
        planned(explicit=[(tokens, 1)], enable_padding=False)
    assert planned(explicit=[(64, 1)], enable_padding=False) == (Bucket(64, 1),)


def test_neither_explicit_nor_automatic():
    with pytest.raises(ValueError, match="either explicit buckets or max_segments"):
        planned()


def test_baked_bound_is_part_of_the_bucket():
    assert planned(explicit=[(64, 2)], bakes=True) == (Bucket(64, 2, 64),)
    assert planned(max_segments=4, token_budget=128, bakes=True) == (
        Bucket(64, 4, 64),
        Bucket(128, 4, 128),
    )


def test_only_the_ladder_is_refined():
    size = {"enable_padding": True, "token_budget": 64}
    ladder_of, given_as = (
        {"explicit": None, "max_segments": 16},
        {"explicit": [(64, 16)], "max_segments": None},
    )
    short = make_adapter(short_segment_len=8)
    assert short.buckets(**ladder_of, **size) == (Bucket(64, 16, 8), Bucket(64, 16, 64))
    assert short.buckets(**given_as, **size) == (Bucket(64, 16),)
    assert make_adapter().buckets(**ladder_of, **size) == (Bucket(64, 16),)
    many = {**size, "token_budget": 128}
    baked = make_adapter(bakes_max_segment_len=True)
    ladder_of, given_as = {**ladder_of, "max_segments": 20}, {"explicit": [(128, 20)]}
    assert len(baked.buckets(**ladder_of, **many)) == 3  # 64, and 128 in two
    assert baked.buckets(**given_as, max_segments=None, **many) == (Bucket(128, 20, 128),)


@given(budget=st.integers(4, 5000), segments=st.integers(1, 600))
@settings(max_examples=40, deadline=None)
def test_baked_ladder_leaves_no_load_of_the_plain_one_without_a_step(budget, segments):
    """Two shapes where many segments fit: together they take what one unbounded would take."""
    baked = planned(max_segments=segments, token_budget=budget, bakes=True)
    plain = planned(max_segments=segments, token_budget=budget)
    assert {b.num_tokens for b in baked} == {b.num_tokens for b in plain}
    for bucket in baked:
        assert bucket.max_segment_len is not None
        assert bucket.max_segment_len % UNIT == 0
        assert bucket.max_segments * bucket.max_segment_len >= bucket.num_tokens
    top = plain[-1].num_tokens
    packer = Packer(baked, eager_token_budget=budget)
    for lengths in [(top,), (UNIT,) * (top // UNIT), (top // 8 * 4 // UNIT * UNIT or UNIT,) * 2]:
        assert not any(isinstance(step, Eager) for step in packer.plan([lengths])), lengths


# ---- padding ---------------------------------------------------------------------------------

bucket_shapes = st.builds(
    Bucket, st.integers(1, 3000), st.integers(1, 64), st.none() | st.integers(1, 700)
)


@given(bucket_shapes, st.data())
@settings(deadline=None)
def test_padding_fills_the_bucket_within_its_slots_and_bound(bucket, data):
    adapter = make_adapter(unit=1)
    lengths: list[int] = []
    free, longest = bucket.num_tokens, bucket.max_segment_len or bucket.num_tokens
    for _ in range(data.draw(st.integers(0, bucket.max_segments))):
        if free:
            lengths.append(data.draw(st.integers(1, min(free, longest))))
            free -= lengths[-1]
    padded = adapter.pad(bucket, lengths)
    assert padded[: len(lengths)] == tuple(lengths)
    assert sum(padded) == bucket.num_tokens
    assert all(0 < n <= longest for n in padded)
    assert len(padded) <= adapter.num_segment_slots(bucket)


@pytest.mark.parametrize("tokens", [1, 4, 64, 65, 100, 511, 512, 513, 4096, 16384])
@pytest.mark.parametrize("longest", [None, 1, 16, 64])
def test_slots_suffice_for_one_token_in_a_bucket(tokens, longest):
    adapter = make_adapter()
    for segments in (1, 8):
        bucket = Bucket(tokens, segments, longest)
        # The worst layout: every real slot used by the smallest segments, all the rest slack.
        real = [1] * min(segments, tokens)
        padded = adapter.pad(bucket, real)
        assert sum(padded) == tokens
        assert len(padded) <= adapter.num_segment_slots(bucket)


def test_slack_is_in_pieces_not_in_one_segment():
    """Attention in slack is wasted work, and grows with the square of a piece."""
    pieces = make_adapter().pad(Bucket(4096, 8), (4,))[1:]
    assert len(pieces) > 1
    assert max(pieces) <= 4096 / 4


@pytest.mark.parametrize(
    ("num_tokens", "slack"), [(4096, 4), (1001, 4), (256, 4), (255, 4), (192, 3), (64, 1), (4, 1)]
)
def test_slack_takes_four_slots_at_most(num_tokens, slack):
    assert make_adapter().num_segment_slots(Bucket(num_tokens, 8)) == 8 + slack


# ---- arenas ----------------------------------------------------------------------------------


def test_one_int32_arena_under_all_layout_inputs():
    inputs = make_adapter().allocate_inputs(16, CPU)
    assert inputs["layout"].shape == (16, 3)
    assert {n: (tuple(t.shape), t.dtype) for n, t in inputs.items() if n != "layout"} == {
        "x": ((16, IN), torch.float32),
        "position": ((16, 1), torch.int32),
        "gain": ((16, 2), torch.float32),
    }
    inputs["gain"][3, 1] = 1.5
    inputs["position"][3, 0] = -7
    assert inputs["layout"][3].tolist() == [-7, 0, np.float32(1.5).view(np.int32)]
    storages = {inputs[n].untyped_storage().data_ptr() for n in ("layout", "position", "gain")}
    assert len(storages) == 1


def test_views_share_the_arena():
    adapter = make_adapter()
    arena = adapter.allocate_inputs(64, CPU)
    inputs = adapter.view_inputs(arena, Bucket(16, 1))
    for name, tensor in inputs.items():
        assert tensor.data_ptr() == arena[name].data_ptr()
        assert len(tensor) == 16
    outputs = adapter.allocate_outputs(64, CPU)
    views = adapter.view_outputs(outputs, 16)
    assert views["features"].shape == (16 // UNIT, OUT)
    assert views["tokens"].shape == (16, WIDTH)
    assert all(t.data_ptr() == outputs[n].data_ptr() for n, t in views.items())


def test_fresh_buffers_are_finite():
    adapter = make_adapter()
    for tensors in (adapter.allocate_inputs(32, CPU), adapter.allocate_outputs(32, CPU)):
        assert all(not t.any() for t in tensors.values())


@pytest.mark.parametrize(
    "spec",
    [
        EncoderGraphTensorSpec((2,), torch.int64),
        EncoderGraphTensorSpec((2,), torch.bfloat16),
        EncoderGraphTensorSpec((2, 2), torch.int32),
        EncoderGraphTensorSpec((), torch.int32),
        EncoderGraphTensorSpec((2,), torch.int32, 4),
    ],
)
def test_layout_input_that_does_not_fit_the_arena(spec):
    with pytest.raises(ValueError, match=r"layout input 'bad' is .* it needs shape"):
        make_adapter(layout_specs={"bad": spec})


def test_layout_inputs_need_somebody_who_builds_them():
    with pytest.raises(ValueError, match=r"\['gain', 'position'\] need build_layout"):
        make_adapter(build_layout=None)


def test_an_encoder_without_layout_merger_or_learned_tokens():
    spec = EncoderGraphTensorSpec((IN,), torch.float32)
    adapter = PackedEncoderGraphIOAdapter(row_specs={"x": spec}, output_specs={"y": spec})
    (bucket,) = adapter.buckets(
        explicit=[(7, 2)], max_segments=None, token_budget=7, enable_padding=False
    )
    assert bucket == Bucket(7, 2)
    assert adapter.buckets(explicit=None, max_segments=9, token_budget=3, enable_padding=True) == (
        Bucket(3, 3),
    )
    inputs = adapter.allocate_inputs(7, CPU)
    items = [item((3,))]
    adapter.fill(inputs, items, runs_of(items, (0, 0, 1)))
    assert inputs["x"][:, 0].tolist() == [0, 1, 2, 0, 0, 0, 0]


# ---- fill and read ---------------------------------------------------------------------------


def poison(inputs, value):
    inputs["x"].fill_(value)
    inputs["layout"].fill_(0x7FC00000 if value != value else 0x7F000000)


@pytest.mark.parametrize("value", [1e30, float("nan")])
def test_fill_reads_each_runs_own_rows_and_clears_the_slack(value):
    adapter = make_adapter()
    items = [item((4, 8)), item((8, 4, 8), tag=1), item((4,), tag=2)]
    inputs = adapter.allocate_inputs(64, CPU)
    poison(inputs, value)
    # The second video from its second segment on, then the last item, then the first one's tail.
    runs = runs_of(items, (1, 1, 2), (2, 0, 1), (0, 1, 1))
    adapter.fill(inputs, items, runs)
    want_x = [items[1].rows["x"][8:20], items[2].rows["x"], items[0].rows["x"][4:12]]
    torch.testing.assert_close(inputs["x"][:24], torch.cat(want_x), rtol=0, atol=0)
    for name in ("position", "gain"):
        parts = [
            fake_layout(items[r.item].layout, r.first_segment, r.num_segments)[name] for r in runs
        ]
        want = torch.from_numpy(np.concatenate(parts))
        torch.testing.assert_close(inputs[name][:24], want, rtol=0, atol=0)
    assert not inputs["x"][24:].any()
    assert not inputs["layout"][24:].any()


def test_fill_takes_strided_rows_of_another_dtype():
    adapter = make_adapter()
    wide = torch.arange(8 * IN * 2, dtype=torch.float64).reshape(8, IN * 2)
    strided = EncoderItem((8,), {"x": wide[:, ::2]}, ((8,), 0))
    inputs = adapter.allocate_inputs(8, CPU)
    adapter.fill(inputs, [strided], runs_of([strided], (0, 0, 1)))
    torch.testing.assert_close(inputs["x"], wide[:, ::2].float())


def test_read_puts_each_run_in_its_place():
    adapter = make_adapter()
    items = [item((4, 8)), item((8, 4, 8), tag=1)]
    outputs = adapter.allocate_outputs(64, CPU)
    outputs["tokens"] += torch.arange(64.0)[:, None]
    outputs["features"] += torch.arange(16.0)[:, None]
    sinks = {"features": torch.full((8, OUT), -1.0), "tokens": torch.full((32, WIDTH), -1.0)}
    runs = runs_of(items, (1, 2, 1), (0, 1, 1), (1, 0, 1))  # 8 tokens each; the last two join
    adapter.read(outputs, runs, sinks)
    tokens = [-1.0] * 4 + [*range(8, 16), *range(16, 24)] + [-1.0] * 4 + [*range(8)]
    assert sinks["tokens"][:, 0].tolist() == tokens
    assert sinks["features"][:, 0].tolist() == [-1.0, 2, 3, 4, 5, -1.0, 0, 1]
    assert (sinks["tokens"] == sinks["tokens"][:, :1]).all()


def test_read_joins_only_neighbours():
    adapter = make_adapter()
    items = [item((4, 4, 4))]
    outputs = adapter.allocate_outputs(8, CPU)
    outputs["tokens"] += torch.arange(8.0)[:, None]
    sinks = {"features": torch.zeros(3, OUT), "tokens": torch.full((12, WIDTH), -1.0)}
    adapter.read(outputs, runs_of(items, (0, 2, 1), (0, 0, 1)), sinks)
    assert sinks["tokens"][:, 0].tolist() == [4, 5, 6, 7, -1, -1, -1, -1, 0, 1, 2, 3]


class Writes(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.is_mutable:
            self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("picked", "change", "names"),
    [
        ([(0, 0, 8)], torch.Tensor.clone, ["copy_"]),
        ([(0, 0, 8), (1, 1, 3)], torch.Tensor.clone, ["cat"]),
        ([(0, 0, 8), (1, 1, 3)], torch.Tensor.double, ["_foreach_copy_"]),  # converted
    ],
)
def test_rows_are_staged_by_one_call(picked, change, names):
    adapter = make_adapter()
    items = [item((4,) * 8), item((4,) * 4, tag=1)]
    items = [EncoderItem(i.segment_lengths, {"x": change(i.rows["x"])}, i.layout) for i in items]
    inputs = adapter.allocate_inputs(64, CPU)
    placement = adapter.place(inputs, items, runs_of(items, *picked))
    with Writes() as layout:
        placement.write_layout()
    with Writes() as rows:
        placement.write_rows(items)
    assert rows.names == names
    assert layout.names == ["copy_"]
    want = torch.cat([items[i].rows["x"][4 * a : 4 * (a + n)] for i, a, n in picked])
    torch.testing.assert_close(inputs["x"][: len(want)], want.float(), rtol=0, atol=0)


@pytest.mark.parametrize("rows", [0, 1, 4, 7, 9])
@pytest.mark.parametrize("batch", [1, 2])
def test_rows_that_are_not_what_the_segments_say(rows, batch):
    """Nothing is broadcast, and nothing that was prepared is resized."""
    adapter = make_adapter()
    good = item((4, 4))
    bad = EncoderItem((4, 4), {"x": torch.ones(rows, IN)}, good.layout)
    items = [good] * (batch - 1) + [bad]
    inputs = adapter.allocate_inputs(64, CPU)
    runs = runs_of(items, *((i, 0, 2) for i in range(batch)))
    if rows > 8:  # the first rows are the segments'
        adapter.fill(inputs, items, runs)
        assert inputs["x"][8 * batch - 8 : 8 * batch].eq(1).all()
        return
    with pytest.raises(RuntimeError, match=rf"'x' of item {batch - 1} have size \[{rows}, 6\]"):
        adapter.fill(inputs, items, runs)
    tail = [EncoderItem(i.segment_lengths, i.rows, i.layout) for i in items]
    with pytest.raises(RuntimeError, match="from row 4 on"):
        adapter.fill(inputs, tail, runs_of(tail, (batch - 1, 1, 1)))
    assert inputs["x"].shape == (64, IN)


def test_rows_of_another_width():
    adapter = make_adapter()
    items = [EncoderItem((8,), {"x": torch.ones(8, IN + 1)}, ((8,), 0))] * 2
    inputs = adapter.allocate_inputs(64, CPU)
    with pytest.raises(RuntimeError, match=r"size \[8, 7\]; its segments need \[8, 6\]"):
        adapter.fill(inputs, items, runs_of(items, (0, 0, 1), (1, 0, 1)))
    assert inputs["x"].shape == (64, IN)


def test_adapter_without_layout_inputs():
    adapter = make_adapter(layout_specs={}, build_layout=lambda *_: {})
    inputs = adapter.allocate_inputs(8, CPU)
    poison(inputs, float("nan"))
    items = [item((4,))]
    adapter.fill(inputs, items, runs_of(items, (0, 0, 1)))
    torch.testing.assert_close(inputs["x"][:4], items[0].rows["x"])
    assert not inputs["x"][4:].any()


def test_attention_segments_of_runs():
    items = [item((4, 8)), item((8, 4, 12), tag=1)]
    runs = runs_of(items, (1, 1, 2), (0, 0, 1), (1, 0, 1))
    assert make_adapter().segment_lengths(items, runs) == (4, 12, 4, 8)


@pytest.mark.parametrize("value", [1e30, float("nan")])
def test_rowless_tokens_are_cleared_and_shift_the_rows(value):
    """Two learned tokens end every segment: a segment of 8 brings 6 rows."""
    adapter = make_adapter(rowless_tokens=2)
    rows = [torch.arange(float(n))[:, None].expand(-1, IN) + 1 for n in (2 + 6 + 6, 6)]
    lengths = [(4, 8, 8), (8,)]
    items = [
        EncoderItem(own, {"x": x + 100 * tag}, (own, tag))
        for tag, (own, x) in enumerate(zip(lengths, rows, strict=True))
    ]
    inputs = adapter.allocate_inputs(40, CPU)
    poison(inputs, value)
    adapter.fill(inputs, items, runs_of(items, (1, 0, 1), (0, 1, 2)))
    want = [*range(101, 107), 0, 0, *range(3, 9), 0, 0, *range(9, 15), 0, 0] + [0] * 16
    assert inputs["x"][:, 0].tolist() == want
    adapter.fill(inputs, items, runs_of(items, (0, 0, 1), (1, 0, 1)))
    want = [1, 2, 0, 0, *range(101, 107), 0, 0] + [0] * 28
    assert inputs["x"][:, 0].tolist() == want


# ---- layout cache ----------------------------------------------------------------------------


class CountingLayout:
    def __init__(self):
        self.calls = []

    def __call__(self, *args):
        self.calls.append(args)
        return fake_layout(*args)


def test_clear_zeroes_the_rows_of_those_tokens():
    coarse = EncoderGraphTensorSpec((IN,), torch.float32, 4)
    adapter = make_adapter(row_specs={"x": coarse})
    inputs = adapter.allocate_inputs(16, CPU)
    inputs["x"].fill_(1)
    inputs["layout"].fill_(1)
    adapter.clear(inputs, 4, 12)
    assert inputs["x"].any(1).tolist() == [True, False, False, True]
    assert (inputs["layout"] == 1).all()  # a step writes it for all tokens of its bucket


def test_layout_behind_a_step_is_zeros():
    adapter = make_adapter()
    inputs = adapter.allocate_inputs(64, CPU)
    poison(inputs, 7)
    bucket = adapter.view_inputs(inputs, Bucket(32, 4))
    items = [item((8,))]
    placement = adapter.place(bucket, items, runs_of(items, (0, 0, 1)))
    placement.write_layout()
    assert inputs["layout"][:8].any(1).all()
    assert not inputs["layout"][8:32].any()
    assert inputs["layout"][32:].all()
    whole = adapter.place(inputs, items, runs_of(items, (0, 0, 1)))
    assert whole.layout != placement.layout  # more of it is zeros
    whole.write_layout()
    assert not inputs["layout"][8:].any()


def test_fill_clears_all_behind_a_step_of_coarse_rows():
    adapter = make_adapter(row_specs={"x": EncoderGraphTensorSpec((IN,), torch.float32, 4)})
    inputs = adapter.allocate_inputs(64, CPU)
    inputs["x"].fill_(2)
    items = [EncoderItem((8,), {"x": torch.ones(2, IN)}, ((8,), 0))]
    adapter.fill(inputs, items, runs_of(items, (0, 0, 1)))
    assert inputs["x"][:, 0].tolist() == [1, 1] + [0] * 14


def test_layout_is_built_once_per_geometry():
    build = CountingLayout()
    adapter = make_adapter(build_layout=build)
    inputs = adapter.allocate_inputs(64, CPU)
    for tag in (0, 1, 0, 1):
        items = [item((8, 8), tag)]
        adapter.fill(inputs, items, runs_of(items, (0, 1, 1)))
        assert inputs["position"][0, 0] == 8 + tag
    assert build.calls == [(((8, 8), 0), 1, 1), (((8, 8), 1), 1, 1)]


def test_layout_of_two_items_of_one_geometry_is_built_once():
    build = CountingLayout()
    adapter = make_adapter(build_layout=build)
    inputs = adapter.allocate_inputs(64, CPU)
    items = [item((8,)), item((12,)), item((8,))]
    adapter.fill(inputs, items, runs_of(items, (0, 0, 1), (1, 0, 1), (2, 0, 1)))
    assert build.calls == [(((8,), 0), 0, 1), (((12,), 0), 0, 1)]
    assert inputs["position"][:28, 0].tolist() == [*range(8), *range(12), *range(8)]


def test_layout_cache_is_bounded(monkeypatch):
    monkeypatch.setattr(packed_placement, "LAYOUT_CACHE_BYTES", 3 * 4 * 8 * 2)  # two of 8 tokens
    build = CountingLayout()
    adapter = make_adapter(build_layout=build)
    inputs = adapter.allocate_inputs(64, CPU)
    for tag in (0, 1, 0, 1, 2, 0):
        items = [item((8,), tag)]
        adapter.fill(inputs, items, runs_of(items, (0, 0, 1)))
    assert [tag for (_, tag), _, _ in build.calls] == [0, 1, 2, 0]


def test_layout_that_goes_while_the_step_is_put_together_is_built_again(monkeypatch):
    monkeypatch.setattr(packed_placement, "LAYOUT_CACHE_BYTES", 3 * 4 * 8 * 2)  # two of 8 tokens
    adapter = make_adapter()
    inputs = adapter.allocate_inputs(64, CPU)
    first, *others = [item((8,), tag) for tag in (0, 1, 2)]
    adapter.fill(inputs, [first], runs_of([first], (0, 0, 1)))
    items = [*others, first]
    adapter.fill(inputs, items, runs_of(items, (0, 0, 1), (1, 0, 1), (2, 0, 1)))
    assert inputs["position"][::8, 0].tolist() == [1, 2, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("name", "change", "what"),
    [
        ("position", lambda a: a.astype(np.float32), r"'position' as float32 \[8, 1\]"),
        ("position", lambda a: a.astype(np.int64), r"'position' as int64 \[8, 1\]"),
        ("gain", lambda a: a.astype(np.float64), r"'gain' as float64 \[8, 2\].*need float32"),
        ("gain", lambda a: a[:1], r"'gain' as float32 \[1, 2\]"),  # would be broadcast
        ("gain", lambda a: a[:, :1], r"'gain' as float32 \[8, 1\]"),
    ],
)
def test_layout_that_is_not_as_declared(name, change, what):
    def build(*args):
        return {n: change(a) if n == name else a for n, a in fake_layout(*args).items()}

    adapter = make_adapter(build_layout=build)
    items = [item((8,))]
    with pytest.raises(ValueError, match=what):
        adapter.fill(adapter.allocate_inputs(8, CPU), items, runs_of(items, (0, 0, 1)))


def test_reason_values_are_labels():
    assert all(reason.value.replace("_", "").isalpha() for reason in EagerReason)
