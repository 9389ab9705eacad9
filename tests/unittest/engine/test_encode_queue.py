# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs that fail on their way through the encoders, without a model."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from tensorrt_llm_ext.engine.encode_queue import EncodeJob, EncodeQueue
from tensorrt_llm_ext.engine.errors import RequestError
from tensorrt_llm_ext.engine.media_inputs import MediaItem
from tensorrt_llm_ext.engine.media_loader import Loaded
from tensorrt_llm_ext.engine.patches import Fit

LIMITS = (2, 64)


def picture(**more: Any) -> Any:
    return SimpleNamespace(tower="image", num_rows=8, **more)


def film(pairs: int) -> MediaItem:
    return MediaItem("video", (pairs, 4, 8), pairs * 8, [], Fit((8, 16), (8, 16)))


class FakeEncoders:
    """Loads what it is told to; an item may hold the event that its loading waits for."""

    def loader(self) -> FakeEncoders:
        return self

    def load(self, items: Mapping[str, Sequence[Any]]) -> dict[str, list[Loaded]]:
        return {modality: [self._load(item) for item in its] for modality, its in items.items()}

    def _load(self, item: Any) -> Loaded:
        if isinstance(item, MediaItem):
            rows = torch.zeros(item.num_rows, 2)
            return Loaded("image", {"pixel_values": rows, "grid_thw": item.grid_thw})
        if hasattr(item, "go"):
            item.go.wait(20)
        if hasattr(item, "wrong"):
            raise RequestError(item.wrong)
        return Loaded(item.tower, {})

    def encode(self, inputs: Sequence[Mapping[str, Sequence[Loaded]]]) -> list[dict[str, Any]]:
        return [{m: ["encoded" for _ in its] for m, its in groups.items()} for groups in inputs]

    def encode_piece(self, tower: str, inputs: Any) -> Any:
        raise torch.OutOfMemoryError("no room for a piece")


def queue_of(*jobs: EncodeJob) -> EncodeQueue:
    queue = EncodeQueue(FakeEncoders(), *LIMITS)  # type: ignore[arg-type]
    for job in jobs:
        queue.add(job)
    return queue


def test_a_job_changes_between_steps_only() -> None:
    """What the worker finds wrong is not said while the scheduler may be counting the job."""
    go = threading.Event()
    broken = EncodeJob({"image": [picture(wrong="it is torn", go=go), *[picture()] * 8]})
    other = EncodeJob({"image": [picture()]})
    queue = queue_of(broken, other)
    queue.step(wait=False)
    loads, loading = broken.loads, queue._loading
    assert loads == {"image": (7, 56)}
    assert loading is not None
    go.set()
    loading.result()
    assert (broken.done, broken.loads) == (False, loads)
    queue.step(wait=False)
    assert (broken.error, broken.callers_fault) == ("it is torn", True)
    queue.step(wait=True)
    assert other.outputs == {"image": ["encoded"]}
    assert queue.idle


def test_a_video_without_room_takes_its_request_along_and_no_other() -> None:
    doomed = EncodeJob({"video": [film(4)], "audio": [SimpleNamespace(tower="audio", num_rows=8)]})
    other = EncodeJob({"audio": [SimpleNamespace(tower="audio", num_rows=8)]})
    queue = queue_of(doomed, other)
    queue.step(wait=True)
    assert "no room for a piece" in (doomed.error or "")
    assert not doomed.callers_fault
    assert other.outputs == {"audio": ["encoded"]}
    assert queue.idle
