# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Media of many requests, encoded a bounded piece at a time.

What one step encodes is filled up from all that wait, so media of several requests share a call,
and a request with more media than fit is spread over several steps: between them, others get their
next tokens. Nor do these wait while media are resized and cut: a thread does that.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any, NamedTuple

import torch

from ..towers.output import ItemOutput, join_outputs
from .encoders import Encoders
from .errors import RequestError
from .media_inputs import Item, MediaItem
from .media_loader import Loaded

_LONGEST_WAIT = 0.01
"""Seconds of a step that has nothing to do."""


class _Place(NamedTuple):
    """Where an item's output belongs."""

    modality: str
    position: int
    item: Item


class EncodeJob:
    """The media of one request on their way through the encoders.

    Args:
        items: Planned media by modality.

    Attributes:
        outputs: Outputs by modality, in the order of the items; complete once it is done.
        error: Why it ended without outputs, if it did.
        callers_fault: Whether that was for what its media hold.
    """

    def __init__(self, items: Mapping[str, Sequence[Item]]) -> None:
        self.outputs: dict[str, list[Any]] = {m: [None] * len(its) for m, its in items.items()}
        self.error: str | None = None
        self.callers_fault = False
        self._todo = deque(
            _Place(m, i, item) for m, its in items.items() for i, item in enumerate(its)
        )
        self._missing = len(self._todo)

    @property
    def done(self) -> bool:
        """Whether all is encoded, or nothing will be."""
        return self.error is not None or not self._missing

    @property
    def loads(self) -> dict[str, tuple[int, int]]:
        """Items and rows for each tower that no call has taken yet."""
        return loads_of(place.item for place in self._todo)

    def take(
        self, items: Counter[str], rows: Counter[str], limits: tuple[int, int]
    ) -> list[_Place]:
        """Take from the front what fits beside what a step has already.

        Args:
            items: Items in the step so far, by tower; counted on.
            rows: Rows in the step so far, by tower; counted on.
            limits: Most items and rows of a tower. A single item may be larger; a video is then
                cut over several steps.
        """
        taken = []
        while self._todo:
            item = self._todo[0].item
            tower, count, total = (
                item.tower,
                items[item.tower] + 1,
                rows[item.tower] + item.num_rows,
            )
            if count > 1 and (count > limits[0] or total > limits[1]):
                break
            items[tower], rows[tower] = count, total
            taken.append(self._todo.popleft())
        return taken

    def put(self, place: _Place, output: Any) -> None:
        """Store an item's output."""
        self.outputs[place.modality][place.position] = output
        self._missing -= 1

    def fail(self, error: str, *, callers_fault: bool) -> None:
        """End it without outputs."""
        self.error, self.callers_fault = error, callers_fault
        self.outputs.clear()
        self._todo.clear()


class _Entry(NamedTuple):
    """One item of a call."""

    job: EncodeJob
    place: _Place
    loaded: Loaded


class _Failure(NamedTuple):
    """Why a job's media could not be loaded."""

    job: EncodeJob
    error: str
    callers_fault: bool


class _Rest(NamedTuple):
    """What is left of an item that is too large for one call, and what is done of it."""

    entry: _Entry
    pieces: deque[dict[str, Any]]
    outputs: list[ItemOutput]


class EncodeQueue:
    """Jobs, first come, first served. Not for several threads at once.

    Args:
        encoders: The towers.
        max_items: Items that each tower encodes in one step.
        max_rows: Rows that each tower encodes in one step.
    """

    def __init__(self, encoders: Encoders, max_items: int, max_rows: int) -> None:
        self._encoders = encoders
        self._limits = (max_items, max_rows)
        self._jobs: list[EncodeJob] = []
        self._loading: Future[list[_Entry | _Failure]] | None = None
        self._rest: _Rest | None = None

    @cached_property
    def _worker(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, "media-load")

    @property
    def idle(self) -> bool:
        """Whether no job is left."""
        return not self._jobs

    def add(self, job: EncodeJob) -> None:
        """Put a job at the end, unless it has nothing to encode."""
        if not job.done:
            self._jobs.append(job)

    def remove(self, job: EncodeJob) -> None:
        """Forget a job, wherever it is."""
        if job in self._jobs:
            self._jobs.remove(job)

    def step(self, *, wait: bool) -> None:
        """Encode what fits, at most one call a tower; jobs that are done leave.

        Media are loaded for one call at a time and not before: rows of all that wait could fill the
        host. They are loaded on a thread, and encoded in a step that finds them loaded.

        Args:
            wait: There is nothing else to do than to wait for them, for a moment: the caller has to
                see who joins and who leaves.
        """
        if self._rest is not None:
            self._encode_rest(self._rest)
        else:
            if self._loading is None and (picked := self._pick()):
                self._loading = self._worker.submit(self._load, picked)
            if self._loading is not None and self._is_loaded(self._loading, wait):
                loading, self._loading = self._loading, None
                self._encode(loading.result())
        self._jobs = [job for job in self._jobs if not job.done]

    @staticmethod
    def _is_loaded(loading: Future[list[_Entry | _Failure]], wait: bool) -> bool:
        return not futures.wait([loading], _LONGEST_WAIT if wait else 0).not_done

    def _pick(self) -> list[tuple[EncodeJob, list[_Place]]]:
        items: Counter[str] = Counter()
        rows: Counter[str] = Counter()
        picked = []
        for job in self._jobs:
            picked.append((job, job.take(items, rows, self._limits)))
            if job.loads:
                break  # whoever comes behind waits: nobody is overtaken
        return picked

    def _load(self, picked: list[tuple[EncodeJob, list[_Place]]]) -> list[_Entry | _Failure]:
        """Runs on the worker, so it changes no job: the scheduler looks at them meanwhile."""
        loader, batch = self._encoders.loader(), list[_Entry | _Failure]()
        for job, places in picked:
            try:
                # By itself, so that what is wrong with one job is no matter to the others.
                loaded = [loader.load({p.modality: [p.item]})[p.modality][0] for p in places]
            except RequestError as error:
                batch.append(_Failure(job, str(error), callers_fault=True))
            except torch.OutOfMemoryError as error:  # of a copy from the cache
                why = f"out of memory while its media were loaded: {error}"
                batch.append(_Failure(job, why, callers_fault=False))
            else:
                batch += [_Entry(job, *pair) for pair in zip(places, loaded, strict=True)]
        return batch

    def _encode(self, loaded: list[_Entry | _Failure]) -> None:
        there = [one for one in loaded if one.job in self._jobs]  # the others were cancelled
        batch = []
        for one in there:
            if isinstance(one, _Failure):
                one.job.fail(one.error, callers_fault=one.callers_fault)
            elif self._too_large(one):
                pieces = cut_in_time(one.loaded.take_inputs(), self._limits[1])
                self._rest = _Rest(one, deque(pieces), [])
                self._encode_rest(self._rest)
            else:
                batch.append(one)
        batch = [entry for entry in batch if not entry.job.done]  # its video may have failed
        if not batch:
            return
        inputs = [{place.modality: [loaded]} for _, place, loaded in batch]
        try:
            outputs = self._encoders.encode(inputs)
        except torch.OutOfMemoryError as error:
            # None of them is in the KV cache yet, so whoever runs already can go on.
            for job, _, _ in batch:
                job.fail(
                    f"out of memory while its media were encoded: {error}", callers_fault=False
                )
            return
        for (job, place, _), output in zip(batch, outputs, strict=True):
            job.put(place, output[place.modality][0])

    def _too_large(self, entry: _Entry) -> bool:
        """Whether an item would take more than one call's rows, and can be cut."""
        item = entry.place.item
        cuttable = isinstance(item, MediaItem) and item.grid_thw[0] > 1
        return cuttable and item.num_rows > self._limits[1] and entry.loaded.output is None

    def _encode_rest(self, rest: _Rest) -> None:
        (job, place, loaded), pieces, outputs = rest
        self._rest = None
        if job not in self._jobs:  # cancelled
            return
        try:
            outputs.append(self._encoders.encode_piece(loaded.tower, pieces.popleft()))
            if pieces:
                self._rest = rest
                return
            loaded.output = join_outputs(outputs)
        except torch.OutOfMemoryError as error:
            job.fail(f"out of memory while its media were encoded: {error}", callers_fault=False)
            return
        self._encoders.keep([loaded])
        job.put(place, loaded.take())


def cut_in_time(inputs: Mapping[str, Any], max_rows: int) -> list[dict[str, Any]]:
    """Cut a video between temporal patches, which see nothing of each other in an encoder.

    Args:
        inputs: ``pixel_values`` [t * h * w, ...] of any dtype and ``grid_thw``.
        max_rows: Rows of a piece; one temporal patch may have more.

    Returns:
        The same of each piece, views of the rows.
    """
    rows, (t, h, w) = inputs["pixel_values"], inputs["grid_thw"]
    each = max(1, max_rows // (h * w))
    cuts = [(i, min(i + each, t)) for i in range(0, t, each)]
    return [
        {"pixel_values": rows[i * h * w : j * h * w], "grid_thw": (j - i, h, w)} for i, j in cuts
    ]


def loads_of(items: Iterable[Item]) -> dict[str, tuple[int, int]]:
    """Number of items and of their rows, by tower."""
    loads: dict[str, tuple[int, int]] = {}
    for item in items:
        count, rows = loads.get(item.tower, (0, 0))
        loads[item.tower] = (count + 1, rows + item.num_rows)
    return loads
