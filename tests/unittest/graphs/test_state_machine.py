# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Any order of calls: configure, set up, capture, encode, change weights, release, recapture.

Hypothesis draws the calls. Beside the tower runs a model of a few fields that says what must come
out: which error, which reason, how many replays, how much memory; and every output has to be the
item's alone, from the weights as they are at that moment.
"""

from __future__ import annotations

import contextlib
import shutil
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tensorrt_llm_ext.graphs.buckets import EagerReason
from tensorrt_llm_ext.graphs.layout import Eager, Replay, Step
from tensorrt_llm_ext.graphs.runner import CaptureError
from tensorrt_llm_ext.graphs.variants import cache_dir
from tensorrt_llm_ext.llmapi.mm_config import MultimodalConfig

from .fakes import SpyBackend, close
from .kinds import Audio, Item, Packed, Setting

MODES: dict[str, Callable[[], Any]] = {
    "plain": contextlib.nullcontext,
    "grad": torch.enable_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}
OPTIONS = st.fixed_dictionaries(
    {
        "warmup_steps": st.just(1),
        "on_capture_failure": st.sampled_from(["eager", "raise"]),
        "prune_slower_than_eager": st.sampled_from([True, True, False]),
        "self_check": st.booleans(),
    }
)
KEPT_CALLS = 4


def forget_what_was_found() -> None:
    """By captures before: which buckets larger ones replace."""
    shutil.rmtree(cache_dir(), ignore_errors=True)


class Pool(SpyBackend):
    """A backend whose memory is what the adapters' buffers take, by the storages still alive."""

    def __init__(self, tower: Any, tokens_per_row: int) -> None:
        super().__init__()
        self._buffers: list[weakref.ref[torch.UntypedStorage]] = []
        self._tokens_per_row = tokens_per_row
        self.times = self.times_of
        self.losers: set[int] = set()  # tokens of buckets that are slower than eager
        make_adapter = tower.make_io_adapter

        def watched() -> Any:
            adapter = make_adapter()
            adapter.allocate_inputs = self._noting(adapter.allocate_inputs)
            adapter.allocate_outputs = self._noting(adapter.allocate_outputs)
            return adapter

        tower.make_io_adapter = watched

    def _noting(self, allocate: Callable[..., dict[str, torch.Tensor]]) -> Callable[..., Any]:
        def noting(*args: Any) -> dict[str, torch.Tensor]:
            made = allocate(*args)
            storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in made.values()}
            self._buffers += map(weakref.ref, storages.values())
            return made

        return noting

    def memory_in_use(self, *, settled: bool = True) -> int:
        self._buffers = [ref for ref in self._buffers if ref() is not None]
        return sum(s.nbytes() for ref in self._buffers if (s := ref()) is not None)

    def times_of(self, rows: int) -> tuple[float, float]:
        """Milliseconds of a replay and of an eager run."""
        tokens = rows * self._tokens_per_row
        return tokens, tokens * (0.5 if tokens in self.losers else 3)


class EncoderMachine(RuleBasedStateMachine):
    """The model: the fields set here, and nothing of the tower's."""

    kind: Any
    seen: Counter[str]  # over all runs: what was met at least once

    def __init__(self) -> None:
        super().__init__()
        forget_what_was_found()
        self.tower = self.kind.make()
        self.pool = Pool(self.tower, self.kind.tokens_per_row)
        self.setting = Setting(None)
        self.options: dict[str, Any] = {}
        self.limit: int | None = None  # configure's max_num_tokens
        self.budget: int | None = None  # setup_attn_metadata's
        self.report: Any = None
        self.live = False  # there are graphs, or were until all lost to eager
        self.pooled = False  # a capture succeeded once
        self.moved = False  # weights were rebound since
        self.unseen = False  # and no call looked: the next one launches, and then throws it away
        self.buckets: tuple[Any, ...] = ()
        self.why_off = "graphs_off"
        self.stats = dict.fromkeys(("items", "segments", "real_tokens", "padded_tokens"), 0)
        self.replays: Counter[str] = Counter()
        self.eager: Counter[str] = Counter()
        self.turn = 0
        self.kept: list[tuple[list[Any], list[dict[str, torch.Tensor]]]] = []

    # ---- lifecycle -------------------------------------------------------------------------

    @initialize(data=st.data(), served=st.sampled_from([True, True, False]))
    def start(self, data: Any, served: bool) -> None:
        if served:
            self.serve(data)

    @rule(data=st.data())
    def serve(self, data: Any) -> None:
        """What a service does at its start, in one: most calls should meet graphs."""
        self.release()
        self.setup_attn_metadata(data)
        useful = [s for s in self.kind.settings if s.entry and s.least_budget <= self.budget]
        self.check_configure(data, useful, limit=None)
        self.capture(data)

    @rule(data=st.data(), limit=st.sampled_from([None, None, 1, 20, 64]))
    def configure(self, data: Any, limit: int | None) -> None:
        self.check_configure(data, self.kind.settings, limit)

    def check_configure(self, data: Any, choice: Sequence[Setting], limit: int | None) -> None:
        setting = data.draw(st.sampled_from(choice), "setting")
        options = data.draw(OPTIONS, "options")
        if self.live and data.draw(st.booleans(), "the same again"):
            setting, options, limit = self.setting, self.options, self.limit
        entries = {} if setting.entry is None else {self.kind.modality: setting.entry | options}
        config = MultimodalConfig.model_validate({"encoder_cuda_graph": entries})
        if setting.entry is None:
            options = {}
        same = (setting, options, limit) == (self.setting, self.options, self.limit)
        if self.live and not same:
            self.refused(
                RuntimeError,
                r"call release_encoder_cuda_graphs\(\) before",
                lambda: self.tower.configure_encoder_cuda_graph(config, limit),
            )
            return
        self.tower.configure_encoder_cuda_graph(config, limit)
        if not self.live:
            self.setting, self.options, self.limit = setting, options, limit
            self.report, self.why_off = None, "graphs_off"

    @rule(data=st.data())
    def setup_attn_metadata(self, data: Any) -> None:
        self.budget = data.draw(st.sampled_from(self.kind.budgets), "budget")
        capacity = data.draw(st.sampled_from([None, {"attention": 2}]), "capacity")
        self.tower.setup_attn_metadata(self.budget, capacity)

    @rule(data=st.data())
    def capture(self, data: Any) -> None:
        self.check_capture(data, lambda: self.tower.capture_encoder_cuda_graphs(self.pool))

    @rule(data=st.data())
    def recapture(self, data: Any) -> None:
        if not self.pooled:
            self.refused(
                RuntimeError, r"capture_encoder_cuda_graphs\(\) first", self.tower.recapture
            )
            return
        self.released()
        self.check_capture(data, self.tower.recapture)

    @rule()
    def release(self) -> None:
        self.tower.release_encoder_cuda_graphs()
        self.released()

    def released(self) -> None:
        if self.live:
            self.why_off = "released"
        self.live = self.moved = self.unseen = False
        self.report, self.buckets = None, ()

    def check_capture(self, data: Any, capture: Callable[[], Any]) -> None:
        """What a capture has to do, be it the first or another."""
        if self.report is not None:
            assert capture() is self.report
            return
        entry, budget = self.setting.entry, self.limit or self.budget
        if entry is None:
            self.report = capture()
            assert (self.report.status, self.report.buckets) == ("off", [])
            return
        if "max_num_tokens" not in entry and budget is None:
            self.refused(RuntimeError, r"call setup_attn_metadata\(max_num_tokens", capture)
            return
        if (budget or 0) < self.setting.least_budget:
            self.refused(ValueError, "budget|multiples|chunks take", capture)
            return
        planned = self.tower.planned_buckets()
        sizes = sorted({b.num_tokens for b in planned})
        self.pool.accelerated = data.draw(st.sampled_from([True, False]), "accelerated")  # type: ignore[misc]
        losers = data.draw(st.sampled_from([[], sizes[-1:], sizes[:1], sizes]), "losers")
        self.pool.losers = set(losers)
        done = len(self.pool.captured)
        if data.draw(st.integers(0, 5), "fails if 5") == 5:
            forget_what_was_found()  # or some are not captured, and it may not come to the failure
            self.pool.fail_at = done + data.draw(st.integers(0, len(planned) - 1), "bucket")
            self.check_failure(capture)
            self.pool.fail_at = None
            return
        self.report = report = capture()
        self.buckets = planned
        if self.pool.accelerated and self.options["prune_slower_than_eager"]:
            # Of two shapes of one size, equally fast, the one for long segments serves both.
            largest = {b.num_tokens: b for b in planned if b.num_tokens not in losers}
            self.buckets = tuple(largest.values())
        self.live = self.pooled = True
        self.why_off = "slower_than_eager"  # meant for the case that none is left
        lines = [(b.num_tokens, b.max_segments, b.max_segment_len, b.kept) for b in report.buckets]
        assert lines == [(*b, b in self.buckets) for b in planned]
        assert report.status == ("captured" if self.buckets else "eager")
        assert report.graph_memory_bytes == self.pool.memory_in_use()

    def check_failure(self, capture: Callable[[], Any]) -> None:
        if self.options["on_capture_failure"] == "raise":
            self.refused(CaptureError, "failed: RuntimeError: no memory for this one", capture)
            return
        self.report = capture()
        assert self.report.status == "eager"
        assert "no memory for this one" in self.report.reason
        self.why_off = "capture_failed"

    # ---- encoding --------------------------------------------------------------------------

    @rule(data=st.data(), mode=st.sampled_from(list(MODES)), eager=st.booleans())
    def encode(self, data: Any, mode: str, eager: bool) -> None:
        items = data.draw(st.lists(self.kind.items, max_size=4), "items")
        if data.draw(st.booleans(), "strided"):
            items = [self.kind.strided(item) for item in items]
        self.check_encode(items, mode, eager=eager)

    @invariant()
    def encodes(self) -> None:
        """In whatever state the last call has left the tower."""
        self.turn += 1
        if self.buckets and not self.unseen:
            # Nobody asks what comes out of this one; it must leave nothing behind.
            size = self.buckets[self.turn % len(self.buckets)].num_tokens
            spare = self.kind.unit * (self.turn % 2) if size > self.kind.unit else 0
            self.encoded([self.kind.filled(size - spare, float("nan"))], "plain", eager=False)
        self.check_encode(self.kind.batch(self.turn), "plain")

    def check_encode(self, items: Sequence[Item], mode: str, *, eager: bool = False) -> None:
        outs = self.encoded(items, mode, eager=eager)
        for item, out in zip(items, outs, strict=True):
            close(out, self.kind.alone(self.tower, item))
            assert {tensor.dtype for tensor in out.values()} == {self.tower.dtype}
        copies = [{name: tensor.clone() for name, tensor in out.items()} for out in outs]
        self.kept = [*self.kept[1 - KEPT_CALLS :], (outs, copies)]

    def encoded(self, items: Sequence[Item], mode: str, *, eager: bool) -> list[Any]:
        lengths = [self.kind.lengths(item) for item in items]
        replays = self.pool.replays
        with MODES[mode]():
            outs = self.tower.encode(items, eager=eager)
            plan = self.tower.plan(lengths, eager=eager)
        self.check_plan(plan, lengths, eager)
        if not self.unseen or eager:
            assert self.pool.replays - replays == sum(isinstance(step, Replay) for step in plan)
        self.unseen = self.unseen and eager
        self.stats["items"] += len(items)
        for step in plan:
            tokens = sum(_tokens(step, lengths))
            self.stats["segments"] += len(_tokens(step, lengths))
            self.stats["real_tokens"] += tokens
            if isinstance(step, Replay):
                self.replays[step.bucket.label] += 1
                self.stats["padded_tokens"] += step.bucket.num_tokens - tokens
            else:
                self.eager[step.reason.value] += 1
        self.seen.update({f"eager {s.reason.value}" for s in plan if isinstance(s, Eager)})
        self.seen["replay"] += any(isinstance(step, Replay) for step in plan)
        self.seen["replay in pieces"] += sum(isinstance(step, Replay) for step in plan) > 1
        return outs

    def check_plan(
        self, plan: Sequence[Step], lengths: Sequence[Sequence[int]], eager: bool
    ) -> None:
        """Every segment once, within the bounds, and eager for a reason that holds."""
        covered = [(run.item, n) for step in plan for run in step.runs for n in _ordinals(run)]
        assert sorted(covered) == [
            (i, n) for i, item in enumerate(lengths) for n in range(len(item))
        ]
        without = "requested" if eager else "weights_moved" if self.moved else None
        if not self.buckets:
            without = without or self.why_off
        padding = (self.setting.entry or {}).get("enable_padding", True)
        lost = self.pool.accelerated and self.options.get("prune_slower_than_eager", False)
        all_eager = bool(plan) and all(isinstance(step, Eager) for step in plan)
        for step in plan:
            tokens = _tokens(step, lengths)
            if isinstance(step, Replay):
                assert without is None
                assert step.bucket in self.buckets
                assert len(tokens) <= step.bucket.max_segments
                assert max(tokens) <= (step.bucket.max_segment_len or step.bucket.num_tokens)
                assert sum(tokens) <= step.bucket.num_tokens
                assert padding or sum(tokens) == step.bucket.num_tokens
                continue
            assert len(tokens) == 1 or self.budget is None or sum(tokens) <= self.budget
            reason = step.reason.value
            if without is not None:
                assert reason == without
            elif reason == "slower_than_eager":
                assert lost
                assert all_eager
                assert self.eager_ms(plan, lengths) < self.replay_ms_at_most(lengths)
            elif padding:
                assert reason == "too_many_tokens"
                assert min(tokens) > max(b.num_tokens for b in self.buckets)
            else:
                assert reason in ("too_many_tokens", "no_exact_bucket")
                assert len(tokens) > 1 or tokens[0] not in {b.num_tokens for b in self.buckets}

    def eager_ms(self, plan: Sequence[Step], lengths: Sequence[Sequence[int]]) -> float:
        """By the times of the report, as it documents them: between buckets a straight line."""
        timed = sorted((b.num_tokens, b.eager_ms) for b in self.report.buckets)
        top, top_ms = timed[-1]
        tokens = [sum(_tokens(step, lengths)) for step in plan]
        return sum(
            top_ms * n / top if n > top else float(np.interp(n, *zip(*timed, strict=True)))
            for n in tokens
        )

    def replay_ms_at_most(self, lengths: Sequence[Sequence[int]]) -> float:
        """Each segment in a replay of its own, which the packer may only undercut."""
        fitting = [
            [b.num_tokens for b in self.buckets if b.num_tokens >= n]
            for item in lengths
            for n in item
        ]
        return sum(min(sizes, default=float("inf")) for sizes in fitting)

    @rule(data=st.data(), num_tokens=st.integers(1, 40))
    def encode_a_bad_item_and_rehearse(self, data: Any, num_tokens: int) -> None:
        """Nothing of it is counted or leaves anything behind."""
        items = [data.draw(self.kind.items, "item"), data.draw(self.kind.bad_items, "bad")]
        self.refused(ValueError, "^item 1: ", lambda: self.tower.encode(items))
        for broken in self.kind.broken_items:
            items = [self.kind.filled(self.kind.unit, float("nan")), broken]
            self.refused(RuntimeError, "size", lambda batch=items: self.tower.encode(batch))
        self.tower.dry_run(num_tokens)

    # ---- weights ---------------------------------------------------------------------------

    @rule(
        data=st.data(),
        how=st.sampled_from(["in place", "data", "parameter", "assign", "cast"]),
        seed=st.integers(0, 99),
    )
    def change_weights(self, data: Any, how: str, seed: int) -> None:
        if how == "in place":
            with torch.no_grad():
                for parameter in self.tower.parameters():
                    parameter.copy_(_noise(parameter, seed))
            return
        self.unseen = self.unseen or (self.live and not self.moved)
        self.moved = self.live
        if how == "cast":
            self.tower.to({torch.float32: torch.float64}.get(self.tower.dtype, torch.float32))
            return
        name = data.draw(st.sampled_from(sorted(self.tower.state_dict())), "weight")
        module, _, leaf = name.rpartition(".")
        owner = self.tower.get_submodule(module)
        weight = getattr(owner, leaf)
        value = _noise(weight, seed)
        if how == "data":
            weight.data = value
        elif how == "parameter":
            setattr(owner, leaf, torch.nn.Parameter(value, requires_grad=False))
        else:
            self.tower.load_state_dict({**self.tower.state_dict(), name: value}, assign=True)

    # ---- what always holds -----------------------------------------------------------------

    def refused(self, error: type[Exception], match: str, call: Callable[[], Any]) -> None:
        """The error that is documented; the invariants see to it that nothing else changes."""
        self.seen[f"{error.__name__} {match}"] += 1
        with pytest.raises(error, match=match):
            call()

    @invariant()
    def counters(self) -> None:
        stats = self.tower.encoder_stats().model_dump()
        assert stats == {**self.stats, "replays": self.replays, "eager": self.eager}

    @invariant()
    def memory(self) -> None:
        """All buffers are the arenas of the graphs there are; they go with them."""
        runner = self.tower._runner
        assert (runner is not None) == self.live
        assert sorted(self.pool.alive) == sorted(
            b.num_tokens // self.kind.tokens_per_row for b in self.buckets
        )
        in_use = self.pool.memory_in_use()
        assert in_use == (self.report.graph_memory_bytes if self.buckets else 0)
        assert (in_use > 0) == bool(self.buckets)

    @invariant()
    def kept_outputs(self) -> None:
        for outs, copies in self.kept:
            for out, copy in zip(outs, copies, strict=True):
                assert out.keys() == copy.keys()
                assert all(torch.equal(out[name], copy[name]) for name in copy)

    def teardown(self) -> None:
        self.release()
        self.memory()


def _ordinals(run: Any) -> range:
    return range(run.first_segment, run.first_segment + run.num_segments)


def _tokens(step: Step, lengths: Sequence[Sequence[int]]) -> list[int]:
    """Tokens of each segment of a step, from its runs."""
    return [lengths[run.item][n] for run in step.runs for n in _ordinals(run)]


def _noise(like: torch.Tensor, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(like.shape, generator=generator, dtype=like.dtype) * 0.3


@pytest.mark.parametrize("kind", [Packed, Audio])
def test_any_order_of_calls(kind: type) -> None:
    seen: Counter[str] = Counter()
    machine = type(kind.__name__, (EncoderMachine,), {"kind": kind(), "seen": seen})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=16,
            stateful_step_count=20,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],  # what explains a failure takes minutes
            suppress_health_check=list(HealthCheck),
        ),
    )
    # A segment always fits the largest bucket, unless it has more tokens.
    never = {"too_many_segments", "segment_too_long"}
    reasons = {f"eager {reason.value}" for reason in EagerReason if reason.value not in never}

    assert reasons <= seen.keys()
    assert seen["replay in pieces"]
