# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Forms of a bucket: the fastest is kept, and remembered."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tensorrt_llm_ext.graphs import variants
from tensorrt_llm_ext.graphs.buckets import Bucket
from tensorrt_llm_ext.graphs.capture import AS_FAST, _Judge
from tensorrt_llm_ext.graphs.captured import CaptureTimes
from tensorrt_llm_ext.graphs.costs import timed_pairs
from tensorrt_llm_ext.graphs.static_backend import StaticGraphBackend
from tensorrt_llm_ext.graphs.variants import (
    WORTH_CHANGING,
    Form,
    VariantChoices,
    cache_dir,
    capture_fastest,
    settle,
    signature_of,
)
from tensorrt_llm_ext.llmapi.mm_config import MultimodalEncoderCudaGraphConfig

BUCKET = Bucket(64, 4)
FORMS = ("usual", "other")


class TimedBackend(StaticGraphBackend):
    """Replays take as long as the form they were captured in."""

    accelerated = True

    def __init__(self, **milliseconds: float) -> None:
        super().__init__()
        self.milliseconds = milliseconds
        self.form = "none"
        self.ran: list[str] = []
        self.kept: list[str] = []

    def variants(self, num_tokens: int) -> tuple[str, ...]:
        return tuple(self.milliseconds)

    @contextlib.contextmanager
    def in_variant(self, variant: str) -> Iterator[None]:
        self.form = variant
        yield
        self.form = "none"

    def capture(self, body: Any, *, warmup_steps: int) -> Any:
        graph = super().capture(body, warmup_steps=warmup_steps)
        form = self.ran[-1]
        self.kept.append(form)
        graph.form = form
        graph.reset = lambda: self.kept.remove(form)  # type: ignore[method-assign]
        return graph

    def time_ms(self, body: Any, *, repeats: int) -> float:
        self.repeats = repeats
        return self.milliseconds[body.__self__.form]


def made(backend: TimedBackend, name: str, warm_ups: int = 1) -> Form:
    def region() -> None:
        with backend.in_variant(name):
            backend.ran.append(backend.form)
            torch.zeros(2).add_(1)

    return Form(name, BUCKET, region, lambda: warm_ups, lambda: backend.ran.append("filled"))


def capture(backend: TimedBackend, forms: tuple[str, ...]) -> Any:
    return capture_fastest(backend, [made(backend, name) for name in forms])


@pytest.mark.parametrize(
    ("usual", "other", "kept"),
    [
        (2.0, 1.0, "other"),
        (1.0, 2.0, "usual"),
        (1.0, 0.995, "usual"),
        (1.0, WORTH_CHANGING, "usual"),
        (1.0, 0.98, "other"),
    ],
)
def test_the_fastest_form_is_kept(usual: float, other: float, kept: str) -> None:
    """Another form has to be faster than the usual one by more than timings differ."""
    backend = TimedBackend(usual=usual, other=other)
    best = capture(backend, FORMS)
    assert (best.form.name, best.replay_ms) == (
        kept,
        min(usual, other) if kept == "other" else usual,
    )
    assert backend.kept == [kept]
    assert backend.ran == [*["usual"] * 2, "filled", *["other"] * 2, "filled"]
    best.form.region()  # what is not captured runs in the same form
    assert backend.ran[-1] == kept


def test_the_first_form_is_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(TimedBackend):
        def capture(self, body: Any, *, warmup_steps: int) -> Any:
            now.append(now[-1] + 3.0)
            return super().capture(body, warmup_steps=warmup_steps)

    now = [7.0]
    monkeypatch.setattr(variants.time, "perf_counter", lambda: now[-1])
    assert capture(Slow(usual=1.0, other=2.0), FORMS).search_seconds == 3.0


@pytest.mark.parametrize(
    ("other", "kept", "capture_ms"), [(2.0, "usual", 30.0), (1.0, "other", 70.0)]
)
def test_time_of_a_capture_is_that_of_the_form_that_is_kept(
    other: float, kept: str, capture_ms: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the replays that are timed nor what another form took are in it."""

    class Slow(TimedBackend):
        def capture(self, body: Any, *, warmup_steps: int) -> Any:
            graph = super().capture(body, warmup_steps=warmup_steps)
            now.append(now[-1] + {"usual": 0.03, "other": 0.07}[graph.form])
            return graph

        def time_ms(self, body: Any, *, repeats: int) -> float:
            now.append(now[-1] + 1.0)
            return super().time_ms(body, repeats=repeats)

    now = [5.0]
    monkeypatch.setattr(variants.time, "perf_counter", lambda: now[-1])
    best = capture(Slow(usual=1.5, other=other), FORMS)
    assert (best.form.name, best.capture_ms) == (kept, pytest.approx(capture_ms))


def test_each_form_has_warm_ups_of_its_own() -> None:
    backend = TimedBackend(usual=1.0, other=2.0)
    capture_fastest(backend, [made(backend, "usual", 0), made(backend, "other", 2)])
    assert backend.ran == ["usual", "filled", *["other"] * 3, "filled"]  # one of each to record


def test_one_form_is_not_searched() -> None:
    backend = TimedBackend(usual=1.0)
    assert capture(backend, ("usual",)).form.name == "usual"
    with pytest.raises(ValueError, match="a form to capture"):
        capture(backend, ())


@pytest.mark.parametrize(("accelerated", "repeats"), [(True, 5), (False, 1)])
def test_replays_are_timed_more_than_once_where_times_decide(accelerated, repeats) -> None:
    backend = TimedBackend(usual=1.0)
    backend.accelerated = accelerated  # type: ignore[misc]
    capture(backend, ("usual",))
    assert backend.repeats == repeats


def test_only_a_choice_among_several_is_noted() -> None:
    choices = VariantChoices("abc", search_seconds=10)
    for bucket, backend in (
        (BUCKET, TimedBackend(usual=2.0, other=1.0)),
        (Bucket(32, 4), TimedBackend(usual=2.0)),
    ):
        forms = {name: partial(made, backend, name) for name in backend.milliseconds}
        choices.capture(bucket, backend, forms)
    choices.save()
    content = json.loads((cache_dir() / "variants-abc.json").read_text())
    assert content == {"64x4xNone as usual | other": "other"}
    assert choices.candidates(BUCKET, FORMS) == ("other",)
    assert choices.candidates(Bucket(32, 4), FORMS) == FORMS


def test_choices_are_remembered_for_the_same_encoder_and_device() -> None:
    first = VariantChoices("abc", search_seconds=10)
    assert first.candidates(BUCKET, FORMS) == FORMS
    first.note(BUCKET, FORMS, "other", 1.0)
    assert first.candidates(BUCKET, FORMS) == ("other",)
    first.save()
    again = VariantChoices("abc", search_seconds=0)
    assert again.candidates(BUCKET, FORMS) == ("other",)
    assert again.candidates(BUCKET, ("usual",)) == ("usual",)  # that form is gone
    assert again.candidates(Bucket(64, 5), FORMS) == ("usual",)
    assert VariantChoices("xyz", search_seconds=10).candidates(BUCKET, FORMS) == FORMS


def test_a_choice_among_few_is_none_among_more() -> None:
    """With padding off, or a smaller largest bucket, there is one form less."""
    more = (*FORMS, "usual, 72 tokens")
    first = VariantChoices("abc", search_seconds=10)
    first.note(BUCKET, FORMS, "other", 1.0)
    assert first.candidates(BUCKET, more) == more
    first.note(BUCKET, more, more[-1], 1.0)
    assert first.candidates(BUCKET, FORMS) == ("other",)
    first.save()
    again = VariantChoices("abc", search_seconds=10)
    assert again.candidates(BUCKET, more) == more[-1:]
    assert again.candidates(BUCKET, FORMS) == ("other",)


def test_search_stops_when_its_time_is_over() -> None:
    choices = VariantChoices("abc", search_seconds=1.0)
    choices.note(Bucket(32, 4), FORMS, "usual", 0.6)
    assert choices.candidates(BUCKET, FORMS) == FORMS
    choices.note(BUCKET, FORMS, "usual", 0.6)
    assert choices.candidates(Bucket(128, 4), FORMS) == ("usual",)
    assert VariantChoices("abc", search_seconds=0).candidates(BUCKET, FORMS) == ("usual",)


def test_a_replaced_bucket_is_remembered_with_what_replaces_it() -> None:
    larger, other = Bucket(96, 4), Bucket(128, 4)
    first = VariantChoices("abc", search_seconds=10)
    assert first.replacement(BUCKET, [other, larger]) is None
    first.note_replacement(BUCKET, larger)
    first.save()
    again = VariantChoices("abc", search_seconds=0.1)
    again.note(
        Bucket(32, 4), FORMS, "usual", 1.0
    )  # the time of a search is over, not what is known
    assert again.replacement(BUCKET, [other, larger]) == larger
    assert again.replacement(BUCKET, [other]) is None
    assert again.replacement(Bucket(64, 5), [other, larger]) is None
    assert again.replacement(Bucket(64, 4, 32), [larger]) is None
    assert again.replacement(BUCKET, [Bucket(96, 4, 96)]) is None
    assert again.candidates(BUCKET, FORMS[:1]) == ("usual",)
    again.save()
    off = VariantChoices("abc", search_seconds=0)
    assert off.replacement(BUCKET, [larger]) is None
    assert VariantChoices("xyz", search_seconds=10).replacement(BUCKET, [larger]) is None
    content = json.loads((cache_dir() / "variants-abc.json").read_text())
    assert content == {
        "32x4xNone as usual | other": "usual",
        "replaced": {"64x4xNone": "96x4xNone"},
    }
    again.note_replacement(BUCKET, other)  # it was looked for again
    again.save()
    assert VariantChoices("abc", search_seconds=1).replacement(BUCKET, [other]) == other
    again.note_replacement(BUCKET, None)  # kept, where what replaces it is not there
    assert again.replacement(BUCKET, [other]) == other


def test_a_bucket_that_was_kept_is_not_lost_for_good_by_a_chance_of_timing() -> None:
    larger = Bucket(96, 4)
    first = VariantChoices("abc", search_seconds=10)
    first.note_replacement(BUCKET, None)
    first.save()
    again = VariantChoices("abc", search_seconds=10)
    again.note_replacement(BUCKET, larger)  # it goes this time
    assert again.replacement(BUCKET, [larger]) is None
    again.save()
    assert VariantChoices("abc", search_seconds=10).replacement(BUCKET, [larger]) is None


def test_no_search_notes_no_replacement() -> None:
    choices = VariantChoices("abc", search_seconds=0)
    choices.note_replacement(BUCKET, Bucket(96, 4))
    choices.save()
    assert not cache_dir().exists()


def test_a_file_without_replacements_serves() -> None:
    cache_dir().mkdir(parents=True)
    (cache_dir() / "variants-abc.json").write_text('{"64x4xNone as usual | other": "other"}')
    choices = VariantChoices("abc", search_seconds=10)
    assert choices.candidates(BUCKET, FORMS) == ("other",)
    assert choices.replacement(BUCKET, [Bucket(96, 4)]) is None


@pytest.mark.parametrize("content", ["{", "[1]", '{"a": ', '{"64x4xNone": "no", "replaced": "x"}'])
def test_a_broken_file_is_ignored(content: str, caplog: pytest.LogCaptureFixture) -> None:
    cache_dir().mkdir(parents=True)
    path = cache_dir() / "variants-abc.json"
    path.write_text(content)
    with caplog.at_level(logging.WARNING):
        choices = VariantChoices("abc", search_seconds=10)
    assert choices.candidates(BUCKET, FORMS) == FORMS
    assert "ignoring" in caplog.text
    assert choices.replacement(BUCKET, [Bucket(96, 4)]) is None
    choices.note(BUCKET, FORMS, "other", 1.0)
    choices.save()
    assert json.loads(path.read_text()) == {"64x4xNone as usual | other": "other"}
    assert list(cache_dir().iterdir()) == [path]


def test_a_folder_that_cannot_be_written_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRTLLM_EXT_CACHE_DIR", str(tmp_path / "file" / "below"))
    with caplog.at_level(logging.INFO):
        choices = VariantChoices("abc", search_seconds=10)
        choices.note(BUCKET, FORMS, "other", 1.0)
        choices.save()
        (tmp_path / "file").unlink()
        choices.save()
    assert VariantChoices("abc", search_seconds=0).candidates(BUCKET, FORMS) == ("other",)
    assert "cannot remember the fastest forms" in caplog.text
    assert choices.candidates(BUCKET, FORMS) == ("other",)


def test_nothing_new_writes_nothing() -> None:
    VariantChoices("abc", search_seconds=10).save()
    assert not cache_dir().exists()


def test_default_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRTLLM_EXT_CACHE_DIR")
    assert cache_dir() == Path.home() / ".cache" / "tensorrt_llm_ext"


class Again:
    """Says what a replay and an eager run take when they are timed again."""

    def __init__(self, replay_ms: float, eager_ms: float, *, accelerated: bool = True) -> None:
        self.accelerated = accelerated
        self.milliseconds = {"replay": replay_ms, "eager": eager_ms}
        self.timed: list[str] = []

    def time_ms(self, body: Any, *, repeats: int) -> float:
        self.timed.append(body())
        return self.milliseconds[body()]


def settled(backend: Any, replay_ms: float, eager_ms: float) -> tuple[float, float]:
    return settle(backend, lambda: "replay", lambda: "eager", (replay_ms, eager_ms))  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("first", "again", "expected", "timed"),
    [
        ((4.0, 8.0), (1.0, 5.0), (4.0, 8.0), []),  # twice the replay: it stands
        ((4.0, 7.99), (1.0, 5.0), (4.0, 5.0), ["eager"]),  # it had to wait for something
        ((4.0, 5.0), (1.0, 6.0), (4.0, 5.0), ["eager"]),
        ((4.0, 4.0), (1.0, 3.0), (4.0, 3.0), ["eager"]),  # short runs are easily timed again
        ((40.0, 42.0), (1.0, 1.0), (40.0, 42.0), []),  # long, and as fast as the replay
        ((40.0, 42.1), (1.0, 41.0), (40.0, 41.0), ["eager"]),
        ((9.8, 10.0), (1.0, 1.0), (9.8, 10.0), []),  # just long
        ((9.8, 9.99), (1.0, 9.9), (9.8, 9.9), ["eager"]),
        ((40.0, 39.9), (39.0, 1.0), (39.0, 39.9), ["replay"]),  # the first replay is an upload too
        ((40.0, 39.9), (41.0, 1.0), (40.0, 39.9), ["replay"]),
        ((4.0, 3.9), (3.5, 3.8), (3.5, 3.8), ["replay", "eager"]),
    ],
)
def test_close_times_are_taken_again(
    first: tuple[float, float],
    again: tuple[float, float],
    expected: tuple[float, float],
    timed: list[str],
) -> None:
    backend = Again(*again)
    assert settled(backend, *first) == expected
    assert backend.timed == timed
    backend = Again(*again)
    replays = [what for what in timed if what == "replay"]  # an eager run that was not the first
    stands = settle(backend, lambda: "replay", None, first)  # type: ignore[arg-type, return-value]
    assert (stands, backend.timed) == ((expected[0], first[1]), replays)
    backend = Again(*again, accelerated=False)
    assert settled(backend, *first) == first
    assert backend.timed == []


def test_signature_depends_on_shapes_and_dtype() -> None:
    device = torch.device("cpu")
    one = signature_of(torch.nn.Linear(2, 3), device, "")
    assert one == signature_of(torch.nn.Linear(2, 3), device, "")
    others = (
        torch.nn.Linear(3, 2),
        torch.nn.Linear(2, 3).half(),
        torch.nn.Linear(2, 3, bias=False),
    )
    assert len({one, *(signature_of(m, device, "") for m in others)}) == 4


def test_signature_depends_on_how_it_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    module, device = torch.nn.Linear(2, 3), torch.device("cpu")
    assert signature_of(module, device, "tiles") != signature_of(module, device, "varlen")
    before = signature_of(module, device, "tiles")
    monkeypatch.setattr("tensorrt_llm_ext.__version__", "999")  # other kernels, perhaps
    assert signature_of(module, device, "tiles") != before


def test_signature_depends_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    for name in ("one", "other"):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device, name=name: name)
        seen.add(signature_of(torch.nn.Linear(2, 3), torch.device("cuda"), ""))
    assert len(seen) == 2


# ---- buckets that a larger one replaces ----------------------------------------------------------


def overtaken(
    *buckets: tuple[Bucket, float], many: Mapping[Bucket, float] | None = None
) -> dict[Bucket, str]:
    """Reasons of those that go.

    Args:
        buckets: With the time of a replay of each.
        many: Times with many segments; by default the same.
    """
    many = many or dict(buckets)
    runner: Any = SimpleNamespace(
        time_segments=lambda bucket, segments: many[bucket],
        choices=VariantChoices("abc", search_seconds=10),
    )
    config = MultimodalEncoderCudaGraphConfig(max_batch_size=8)
    judge = _Judge(runner, config, "image")
    ordered = sorted(buckets, reverse=True)
    reasons = {b: judge.why_not(b, CaptureTimes(1.0, ms, 9.0)) for b, ms in ordered}
    return {bucket: reason for bucket, reason in reasons.items() if reason}


def test_a_bucket_goes_when_the_next_is_as_fast() -> None:
    small, middle, large = Bucket(64, 4), Bucket(96, 4), Bucket(128, 4)
    assert overtaken((small, 1.0), (middle, 1.3), (large, 1.2)) == {middle: "128x4 is as fast"}
    assert overtaken((small, 1.0), (large, 1.0 * AS_FAST)) == {small: "128x4 is as fast"}
    assert overtaken((small, 1.0), (large, 1.001 * AS_FAST)) == {}


def test_what_replaces_it_has_to_be_kept_and_to_serve_all_of_it() -> None:
    a, b, c = Bucket(64, 4), Bucket(96, 4), Bucket(128, 4)
    # Each is within 3 % of the next, but a is not of c, which is the one that stays.
    assert overtaken((a, 1.0), (b, 1.02), (c, 1.04)) == {b: "128x4 is as fast"}
    assert overtaken((Bucket(64, 8), 1.0), (Bucket(128, 4), 1.0)) == {}  # segments
    short, long = Bucket(128, 4, 32), Bucket(64, 4, 64)
    assert overtaken((long, 1.0), (short, 1.0)) == {}  # longest segment
    assert overtaken((Bucket(64, 4), 1.0), (Bucket(128, 4, 32), 1.0)) == {}
    assert overtaken((Bucket(64, 4, 32), 1.0), (Bucket(128, 4, 128), 1.0)) == {
        Bucket(64, 4, 32): "128x4 is as fast"
    }
    assert overtaken((Bucket(64, 4, 16), 1.0), (Bucket(128, 4, 32), 1.0)) == {
        Bucket(64, 4, 16): "128x4 is as fast"
    }


def test_many_short_segments_are_timed_before_a_bucket_for_any_replaces_theirs() -> None:
    short, long, larger = Bucket(128, 8, 32), Bucket(128, 8, 128), Bucket(160, 8, 32)
    times = ((short, 1.0), (long, 1.0))
    why = "128x8 for longer segments is as fast"  # its own label is the same
    assert overtaken(*times, many={short: 1.0, long: 1.0 * AS_FAST}) == {short: why}
    assert overtaken(*times, many={short: 1.0, long: 1.001 * AS_FAST}) == {}
    # Another for short ones needs no such thing.
    reasons = overtaken(*times, (larger, 1.0), many={short: 1.0, long: 2.0, larger: 9.0})
    assert reasons[short] == "160x8 is as fast"


def test_many_segments_are_as_many_as_fit() -> None:
    asked = []

    def time_segments(bucket: Bucket, segments: tuple[int, ...]) -> float:
        asked.append((bucket, segments))
        return 1.0

    runner: Any = SimpleNamespace(
        time_segments=time_segments,
        choices=VariantChoices("abc", search_seconds=10),
    )
    judge = _Judge(runner, MultimodalEncoderCudaGraphConfig(max_batch_size=8), "image")
    short, long = Bucket(100, 8, 32), Bucket(128, 8, 128)
    assert judge.why_not(long, CaptureTimes(1.0, 1.0, 9.0)) == ""
    assert asked == []
    assert judge.why_not(short, CaptureTimes(1.0, 1.0, 9.0)) == "128x8 is as fast"
    assert asked == [(long, (12,) * 8), (short, (12,) * 8)]
    asked.clear()
    assert judge.why_not(Bucket(64, 8), CaptureTimes(1.0, 1.0, 9.0)) == "128x8 is as fast"
    assert asked == []  # a bucket for any segments needs no second look
    few = Bucket(96, 2, 8)
    assert judge.why_not(few, CaptureTimes(1.0, 1.0, 9.0)) == "128x8 is as fast"
    assert asked == [(long, (8, 8)), (few, (8, 8))]  # no longer than its bound
    asked.clear()
    tiny = Bucket(3, 8, 2)
    assert judge.why_not(tiny, CaptureTimes(1.0, 1.0, 9.0)) == "128x8 is as fast"
    assert asked == [(long, (1,) * 3), (tiny, (1,) * 3)]


def test_a_bucket_timed_with_longer_segments_goes_by_its_own_layout() -> None:
    """Explicit buckets: one segment of 4096 has four times the attention of four of 1024."""
    one, more = Bucket(4096, 1), Bucket(4608, 8)
    times = ((one, 2.0), (more, 1.5))
    assert overtaken(*times, many={more: 2.0 * AS_FAST}) == {one: "4608x8 is as fast"}
    assert overtaken(*times, many={more: 2.001 * AS_FAST}) == {}
    few, many = Bucket(64, 4), Bucket(64, 8)
    assert timed_pairs(few) == timed_pairs(many)  # nothing to time again
    assert overtaken((few, 2.0), (many, 2.0), many={many: 9.0}) == {few: "64x8 is as fast"}
