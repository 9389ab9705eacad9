# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The towers of a model behind one door: media in, features out, one call a tower."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .errors import EngineClosedError
from .media_inputs import MediaInputs
from .prompts import as_items

EncodeFn = Callable[[list[dict[str, Any]]], Sequence[Any]]
_TOWER_OF = {"image": "image", "video": "image", "audio": "audio"}


class Encoders:
    """Encodes media for requests, and for callers without a prompt.

    Args:
        media: The checkpoint's media rules.
        calls: ``encode`` of each tower; pictures and videos share one.
    """

    def __init__(self, media: MediaInputs, calls: Mapping[str, EncodeFn]) -> None:
        self.media = media
        self.calls = dict(calls)
        self._closed = False

    def encode(
        self, inputs: Sequence[Mapping[str, Sequence[dict[str, Any]]]]
    ) -> list[dict[str, list[Any]]]:
        """Encode the media of several requests in one call a tower.

        Args:
            inputs: Tower inputs by modality, of each request.

        Returns:
            Outputs by modality, of each request.
        """
        encoded: list[dict[str, list[Any]]] = [{m: [] for m in groups} for groups in inputs]
        for tower, call in self.calls.items():
            flat = [
                (i, m, item)
                for i, groups in enumerate(inputs)
                for m in groups
                if _TOWER_OF[m] == tower
                for item in groups[m]
            ]
            if not flat:
                continue
            outputs = call([item for _, _, item in flat])
            for (i, modality, _), output in zip(flat, outputs, strict=True):
                encoded[i][modality].append(output)
        return encoded

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
        media = self.media
        for modality in data:
            media.check_modality(modality)
        planned = {m: [media.plan(m, i) for i in as_items(m, v)] for m, v in data.items()}
        inputs = {m: [media.load(item) for item in items] for m, items in planned.items()}
        self.check_open()
        return self.encode([inputs])[0]

    def close(self) -> None:
        """Take no more media."""
        self._closed = True

    def check_open(self) -> None:
        """Raise once closed."""
        if self._closed:
            raise EngineClosedError("the engine was shut down; make a new LLM")
