# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Which form of a bucket is fastest: tried when it is captured, remembered on disk.

The same region can be captured in several forms: by the library that multiplies matrices, and with
room for a few more rows. None is fastest for all shapes, and which one is can only be measured.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from .backends import LONG_MS, CapturedGraph, GraphBackend
from .buckets import Bucket

logger = logging.getLogger(__name__)

CACHE_VARIABLE = "TRTLLM_EXT_CACHE_DIR"
TIMED_RUNS = 5  # one is enough where timings decide nothing
_CLEARLY = 2.0
_EQUAL = 1.05
_REPLACED = "replaced"  # in a file of choices: no bucket has that name
_NOTHING = ""  # replaces a bucket that is kept
_MEASURED = 2  # goes up when kernels or forms change: what was measured with others does not hold
WORTH_CHANGING = 0.99
"""A form has to be faster than the first by this factor: timings are no better than that."""


def signature_of(module: nn.Module, device: torch.device, region: str) -> str:
    """What decides which forms are fastest: device, versions, weights' shapes, how it computes.

    Args:
        module: The encoder.
        device: Where it runs.
        region: How it computes: what of it a user can choose.

    Returns:
        A short digest.
    """
    from .. import __version__  # here: the package imports its parts

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    weights = [(n, list(p.shape), str(p.dtype)) for n, p in module.named_parameters()]
    facts = [
        __version__,
        _MEASURED,
        region,
        name,
        torch.__version__,
        torch.version.cuda,
        type(module).__qualname__,
        weights,
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def cache_dir() -> Path:
    """``$TRTLLM_EXT_CACHE_DIR``, by default ``~/.cache/tensorrt_llm_ext``."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen) if chosen else Path.home() / ".cache" / "tensorrt_llm_ext"


class Form(NamedTuple):
    """A way to capture a bucket.

    Attributes:
        name: Its name.
        shape: What it has room for: the bucket, or a few tokens more.
        region: What is captured.
        warm_ups: Tells how often the region has to run before; asked once.
        before_timing: Brings in the work that replays are timed with.
    """

    name: str
    shape: Bucket
    region: Callable[[], None]
    warm_ups: Callable[[], int]
    before_timing: Callable[[], None]


class Captured(NamedTuple):
    """The fastest form of a bucket.

    Attributes:
        graph: Its recording.
        form: What was recorded.
        capture_ms: Its warm-up and capture, milliseconds.
        replay_ms: A replay, milliseconds.
        search_seconds: What the other forms took.
    """

    graph: CapturedGraph
    form: Form
    capture_ms: float
    replay_ms: float
    search_seconds: float


def capture_fastest(backend: GraphBackend, forms: Iterable[Form]) -> Captured:
    """Captures a bucket in several forms and keeps the fastest.

    Args:
        backend: Records and times.
        forms: To try, the usual one first.

    Returns:
        The fastest; the others have given their memory back.
    """
    best: Captured | None = None
    search_start = time.perf_counter()
    for form in forms:
        start = time.perf_counter()
        graph = backend.capture(form.region, warmup_steps=form.warm_ups())
        end = time.perf_counter()
        if best is None:
            search_start = end
        form.before_timing()
        replay_ms = backend.time_ms(graph.replay, repeats=_repeats(backend))
        if best is not None and replay_ms >= WORTH_CHANGING * best.replay_ms:
            graph.reset()
            continue
        if best is not None:
            best.graph.reset()
        best = Captured(graph, form, (end - start) * 1e3, replay_ms, 0.0)
    if best is None:
        raise ValueError("there has to be a form to capture")
    return best._replace(search_seconds=time.perf_counter() - search_start)


def settle(
    backend: GraphBackend,
    replay: Callable[[], None],
    eager: Callable[[], None] | None,
    first: tuple[float, float],
) -> tuple[float, float]:
    """Times what was close again; a first run often had to wait for memory or an upload.

    An eager time stands where it is clearly longer than a replay, and that of a long run where it
    took no longer.

    Args:
        backend: Runs and times.
        replay: The replay.
        eager: The same uncaptured; None: its time is no first one.
        first: Milliseconds that both took.

    Returns:
        Milliseconds of both.
    """
    replay_ms, eager_ms = first
    if not backend.accelerated:
        return first
    if eager_ms < replay_ms:
        replay_ms = min(replay_ms, backend.time_ms(replay, repeats=TIMED_RUNS))
    if (
        eager is None
        or eager_ms >= _CLEARLY * replay_ms
        or LONG_MS <= eager_ms <= _EQUAL * replay_ms
    ):
        return replay_ms, eager_ms
    return replay_ms, min(eager_ms, backend.time_ms(eager, repeats=TIMED_RUNS))


def _repeats(backend: GraphBackend) -> int:
    return TIMED_RUNS if backend.accelerated else 1


class VariantChoices:
    """What a search found about the buckets of one encoder.

    That is the fastest form of each, and which ones a larger one replaces at no cost.
    """

    def __init__(self, signature: str, search_seconds: float) -> None:
        """Reads what an earlier start-up found.

        Args:
            signature: See ``signature_of``.
            search_seconds: Time for trying forms that nobody has tried; then the first is taken. 0:
                replaced buckets are neither known nor noted.
        """
        self._path = cache_dir() / f"variants-{signature}.json"
        self._searches = search_seconds > 0
        self._left = search_seconds
        self._known, self._replaced = _read(self._path)
        self._saved = self._content()

    @classmethod
    def of(
        cls, module: nn.Module, device: torch.device, region: str, search_seconds: float
    ) -> VariantChoices:
        """Those of an encoder on a device; see ``signature_of`` and the constructor."""
        return cls(signature_of(module, device, region), search_seconds)

    def candidates(self, bucket: Bucket, variants: Sequence[str]) -> tuple[str, ...]:
        """Forms to capture.

        Args:
            bucket: The shape.
            variants: All forms there are, the usual one first.

        Returns:
            The one that is known to be the fastest of them; all while there is time; the first.
        """
        known = self._known.get(_offer(bucket, variants), "")  # no form has that name
        if known in variants:
            return (known,)
        return tuple(variants) if self._left > 0 else tuple(variants[:1])

    def capture(
        self, bucket: Bucket, backend: GraphBackend, forms: Mapping[str, Callable[[], Form]]
    ) -> Captured:
        """Captures a bucket in its fastest form.

        Args:
            bucket: The shape.
            backend: Records and times.
            forms: Makes each by name, the usual one first; those that are tried are made.
        """
        names = self.candidates(bucket, tuple(forms))
        best = capture_fastest(backend, (forms[name]() for name in names))
        if len(names) > 1:
            self.note(bucket, names, best.form.name, best.search_seconds)
        return best

    def note(self, bucket: Bucket, variants: Sequence[str], variant: str, seconds: float) -> None:
        """Remembers a choice among several, which says nothing of a choice among others.

        Args:
            bucket: The shape.
            variants: Forms that were tried.
            variant: The fastest.
            seconds: What trying the others took.
        """
        self._known[_offer(bucket, variants)] = variant
        self._left -= seconds

    def replacement(self, bucket: Bucket, kept: Iterable[Bucket]) -> Bucket | None:
        """The kept bucket that was found to be as fast at an earlier start, if there is one.

        Args:
            bucket: The shape.
            kept: Buckets that can stand in for it.
        """
        name = self._replaced.get(_key(bucket), _NOTHING)
        return next((b for b in kept if _key(b) == name), None) if self._searches else None

    def note_replacement(self, bucket: Bucket, by: Bucket | None) -> None:
        """Remembers whether a bucket need not be captured beside another.

        That nothing replaces it stands: if each start added what its timings say, a chance would be
        enough to lose a bucket for good.

        Args:
            bucket: The shape.
            by: What replaces it; None for nothing.
        """
        if not self._searches:
            return
        known = self._replaced.setdefault(_key(bucket), _NOTHING if by is None else _key(by))
        if by is not None and known != _NOTHING:
            self._replaced[_key(bucket)] = _key(by)

    def _content(self) -> dict[str, Any]:
        return (
            {**self._known, _REPLACED: dict(self._replaced)} if self._replaced else {**self._known}
        )

    def save(self) -> None:
        """Writes new choices down, if that is possible."""
        content = self._content()
        if content == self._saved:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", dir=self._path.parent, suffix=".tmp", delete=False, encoding="utf-8"
            ) as file:
                json.dump(content, file, indent=1, sort_keys=True)
            os.replace(file.name, self._path)  # another process may be writing the same
        except OSError as error:
            logger.info("cannot remember the fastest forms in %s: %s", self._path, error)
            return
        self._saved = content


def _key(bucket: Bucket) -> str:
    return f"{bucket.num_tokens}x{bucket.max_segments}x{bucket.max_segment_len}"


def _offer(bucket: Bucket, variants: Sequence[str]) -> str:
    return f"{_key(bucket)} as {' | '.join(variants)}"


def _read(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Form by bucket, and replacement by bucket."""
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}, {}
    except (OSError, ValueError) as error:
        logger.warning("ignoring %s: %s", path, error)
        return {}, {}
    # Not there in a file of an older version.
    replaced = found.pop(_REPLACED, {}) if isinstance(found, dict) else None
    if not isinstance(replaced, dict):
        logger.warning("ignoring %s: it has to map buckets to their fastest forms", path)
        return {}, {}
    return _strings(found), _strings(replaced)


def _strings(found: dict[Any, Any]) -> dict[str, str]:
    return {str(k): str(v) for k, v in found.items()}
