# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Media items to tower inputs, or to outputs that are known already.

What is new is told from what is known by a glance at it first. So media that were not seen before
wait for no hash: theirs is computed on a thread, beside resizing and encoding, and needed only when
their outputs are stored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import torch

from ..towers.output import ItemOutput, map_output
from .encoder_cache import EncoderCache, Key, Sketch
from .media_inputs import Item, MediaInputs

_GLANCE = 16
"""Every n-th row and column of a picture, so that about so many of each are looked at."""


class Loaded:
    """An item, ready for its tower or answered already.

    Args:
        tower: Key of its tower.
        inputs: What the tower reads; None where the output is known.
        output: What the tower gave.
        identity: What the output is to be stored under; None where it is not to be.
    """

    def __init__(
        self,
        tower: str,
        inputs: dict[str, Any] | None,
        output: ItemOutput | None = None,
        identity: tuple[Sketch, ContentDigest] | None = None,
    ) -> None:
        self.tower = tower
        self.output = output
        self._inputs = inputs
        self._identity = identity
        self._taken = False

    @property
    def key(self) -> Key | None:
        """What its output is to be stored under. Waits for the digest."""
        return self._identity and Key(self._identity[0], self._identity[1].result())

    def take_inputs(self) -> dict[str, Any]:
        """Hand over what its tower reads, so that it is not held longer than needed."""
        if self._inputs is None:
            raise RuntimeError("tower inputs were taken before, or never made")
        inputs, self._inputs = self._inputs, None
        return inputs

    def take(self) -> ItemOutput:
        """Its output, for one caller: whoever comes second gets a copy."""
        if self.output is None:
            raise RuntimeError(f"an item of tower {self.tower!r} was not encoded")
        if not self._taken:
            self._taken = True
            return self.output
        with torch.inference_mode(False):
            return map_output(self.output, torch.clone)


class ContentDigest:
    """Strong hash of an item's content.

    Args:
        worker: Has one thread: parts are hashed in order.
    """

    def __init__(self, worker: ThreadPoolExecutor) -> None:
        self._hash = hashlib.blake2b(digest_size=32)
        self._worker = worker
        self._parts: list[Future[None]] = []

    def add(self, part: np.ndarray) -> None:
        """Hash a part [...] of any dtype, here and now."""
        self._hash.update(np.ascontiguousarray(part).data.cast("B"))

    def watch(self, content: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Hand content [...] through and have it hashed meanwhile."""
        for part in content:
            self._parts.append(self._worker.submit(self.add, part))
            yield part

    def result(self) -> bytes:
        """The digest, once all parts are in it."""
        for part in self._parts:
            part.result()
        return self._hash.digest()


class MediaLoader:
    """Gets the media of one encoder call ready; equal items become one.

    Args:
        media: The checkpoint's media rules.
        cache: Outputs of earlier calls; without one, every item is prepared as it comes.
    """

    def __init__(self, media: MediaInputs, cache: EncoderCache | None) -> None:
        self._media = media
        self._cache = cache
        self._generations: dict[str, int] = {}
        self._seen: dict[Sketch, list[Loaded]] = {}

    @cached_property
    def _worker(self) -> ThreadPoolExecutor:
        """Hashes; its thread ends with the loader and what it loaded."""
        return ThreadPoolExecutor(1, "media-digest")

    def load(self, items: Mapping[str, Sequence[Item]]) -> dict[str, list[Loaded]]:
        """Prepare a request's items.

        Args:
            items: What :meth:`MediaInputs.plan` returned, by modality.

        Returns:
            For each the tower's inputs, or a copy of the output it has in the cache. An item that
            equals an earlier one of this loader is the very same object.

        Raises:
            RequestError: One cannot be decoded, or holds values that cannot be used.
        """
        return {modality: [self._load(item) for item in its] for modality, its in items.items()}

    def _load(self, item: Item) -> Loaded:
        media, cache = self._media, self._cache
        if cache is None:
            return Loaded(item.tower, media.load(item))
        content = media.decode(item)
        first = next(content)
        content = chain([first], content)
        sketch, digest = self._sketch(item, first, cache), ContentDigest(self._worker)
        alike = self._seen.setdefault(sketch, [])
        if alike or cache.may_hold(sketch):
            for part in content:
                digest.add(part)
            known = self._known(Key(sketch, digest.result()), alike, cache)
            if known is not None:
                cache.count(hits=1)
                return known
            inputs = media.load(item)
        else:
            inputs = media.prepare(item, digest.watch(content))
        cache.count(misses=1)
        alike.append(Loaded(item.tower, inputs, identity=(sketch, digest)))
        return alike[-1]

    def _sketch(self, item: Item, first: np.ndarray, cache: EncoderCache) -> Sketch:
        tower = item.tower
        if tower not in self._generations:
            self._generations[tower] = cache.generation(tower)
        recipe = self._media.recipe(item)
        return Sketch(tower, self._generations[tower], recipe, first.shape, _glance_at(first))

    @staticmethod
    def _known(key: Key, alike: Sequence[Loaded], cache: EncoderCache) -> Loaded | None:
        for twin in alike:
            if twin.key == key:
                return twin
        output = cache.find(key)
        return None if output is None else Loaded(key.sketch.tower, None, output)


def _glance_at(part: np.ndarray) -> bytes:
    """A few values of an array [...] that tell most others from it."""
    steps = tuple(slice(None, None, -(-n // _GLANCE)) for n in part.shape[:2])
    return part[steps].tobytes()
