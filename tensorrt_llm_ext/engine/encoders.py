# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The towers of a model behind one door: media in, features out, one call a tower."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..graphs.report import EncoderCacheStats
from ..towers.output import ItemOutput
from .encoder_cache import EncoderCache
from .errors import EngineClosedError
from .media_inputs import Item, MediaInputs
from .media_loader import Loaded, MediaLoader
from .prompts import as_items

EncodeFn = Callable[[list[dict[str, Any]]], Sequence[Any]]


class Encoders:
    """Encodes media for requests, and for callers without a prompt.

    Args:
        media: The checkpoint's media rules.
        towers: The encoders; pictures and videos share one.

    Attributes:
        calls: ``encode`` of each tower.
        cache: Outputs of earlier calls; None where none are kept.
    """

    def __init__(self, media: MediaInputs, towers: Mapping[str, Any]) -> None:
        self.media = media
        self.calls: dict[str, EncodeFn] = {name: tower.encode for name, tower in towers.items()}
        self.cache: EncoderCache | None = None
        self._closed = False

    def loader(self) -> MediaLoader:
        """What gets the media of one call of :meth:`encode` ready."""
        return MediaLoader(self.media, self.cache)

    def encode(
        self, inputs: Sequence[Mapping[str, Sequence[Loaded]]]
    ) -> list[dict[str, list[Any]]]:
        """Encode the media of several requests in one call a tower.

        Args:
            inputs: What one loader made of the media of each request, by modality.

        Returns:
            Outputs by modality, of each request.
        """
        every = {id(one): one for groups in inputs for its in groups.values() for one in its}
        new = [one for one in every.values() if one.output is None]
        for tower, call in self.calls.items():
            todo = [one for one in new if one.tower == tower]
            if todo:
                outputs = call([one.take_inputs() for one in todo])
                for one, output in zip(todo, outputs, strict=True):
                    one.output = output
        self.keep(new)
        return [{m: [one.take() for one in its] for m, its in groups.items()} for groups in inputs]

    def encode_piece(self, tower: str, inputs: dict[str, Any]) -> ItemOutput:
        """Encode one tower input by itself; see :func:`cut_in_time`.

        Args:
            tower: Key of its tower.
            inputs: Tensors [rows, ...], as the tower takes them.
        """
        (output,) = self.calls[tower]([inputs])
        return output

    def keep(self, encoded: Iterable[Loaded]) -> None:
        """Put new outputs into the cache, where there is one."""
        if self.cache is not None:
            self.cache.put({one.key: one.output for one in encoded if one.key and one.output})

    def encode_multimodal(self, data: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Encode media without a prompt.

        Args:
            data: Media of each modality, as in ``multi_modal_data``.

        Returns:
            One output an item of each modality: ``features`` [tokens, out] and what else the tower
            gives, in the dtype and on the device of the engine.

        Raises:
            RequestError: An item cannot be used, or the model has no such encoder.
            EngineClosedError: The engine was shut down.
        """
        self.check_open()
        inputs = self.loader().load(self.plan(data))
        self.check_open()
        return self.encode([inputs])[0]

    def plan(self, data: Mapping[str, Any]) -> dict[str, list[Item]]:
        """Check media without a prompt and work out their sizes; see :meth:`MediaInputs.plan`.

        Args:
            data: Media of each modality, as in ``multi_modal_data``.

        Returns:
            Planned items by modality.

        Raises:
            RequestError: An item cannot be used, or the model has no such encoder.
        """
        for modality in data:
            self.media.check_modality(modality)
        return {m: [self.media.plan(m, i) for i in as_items(m, v)] for m, v in data.items()}

    def cache_stats(self) -> EncoderCacheStats:
        """Counters of the cache, all 0 where there is none."""
        return EncoderCacheStats() if self.cache is None else self.cache.stats()

    def clear_cache(self) -> None:
        """Forget all outputs."""
        if self.cache is not None:
            self.cache.drop()

    def close(self) -> None:
        """Take no more media."""
        self._closed = True
        if self.cache is not None:
            self.cache.close()

    def check_open(self) -> None:
        """Raise once closed."""
        if self._closed:
            raise EngineClosedError("the engine was shut down; make a new LLM")
