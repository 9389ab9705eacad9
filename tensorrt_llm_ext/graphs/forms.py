# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""What a bucket can be captured as: by each library, in its own shape or one with more room."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from .adapter import Tensors
from .buckets import Bucket
from .captured import EncoderParts, run_encoder
from .rehearsal import WarmUps, form_of
from .variants import Form


class Site(NamedTuple):
    """Where a shape runs.

    Attributes:
        shape: The shape.
        inputs: Its part of the static inputs, by name: [rows, *shape], dtype of the spec.
        outputs: Its part of the static outputs, likewise.
        metadata: Attention metadata of its own.
    """

    shape: Bucket
    inputs: Tensors
    outputs: Tensors
    metadata: Any


class BucketForms:
    """The forms of one bucket."""

    def __init__(
        self,
        bucket: Bucket,
        parts: EncoderParts,
        arenas: tuple[Tensors, Tensors],
        warm_ups: WarmUps,
        most_tokens: int,
    ) -> None:
        """Lays nothing out yet.

        Args:
            bucket: What is to be captured.
            parts: Of the encoder.
            arenas: Static inputs and outputs of the largest bucket.
            warm_ups: What has run before.
            most_tokens: Of a shape with more room; 0: there is none.
        """
        self._bucket = bucket
        self._parts = parts
        self._arenas = arenas
        self._warm_ups = warm_ups
        more = parts.adapter.roomier(bucket) if parts.backend.accelerated else None
        self._shapes: tuple[Bucket, ...] = (bucket,)
        if more is not None and more.num_tokens <= most_tokens:
            self._shapes += (more,)
        self._sites: dict[Bucket, Site] = {}

    def makers(self) -> dict[str, Callable[[], Form]]:
        """Makes each form by name, the usual one first."""
        makers: dict[str, Callable[[], Form]] = {}
        for shape in self._shapes:
            more = "" if shape == self._bucket else f", {shape.num_tokens} tokens"
            for variant in self._parts.backend.variants(shape.num_tokens):
                name = f"{variant}{more}"
                makers[name] = partial(self._form, name, shape, variant)
        return makers

    def site(self, shape: Bucket) -> Site:
        """Where one of the shapes runs, laid out when it is first asked for."""
        if shape not in self._sites:
            self._sites[shape] = self._lay_out(shape)
        return self._sites[shape]

    def _lay_out(self, shape: Bucket) -> Site:
        (adapter, provider, *_), (inputs, outputs) = self._parts, self._arenas
        metadata = provider.build(shape, adapter.num_segment_slots(shape))
        provider.refresh_in_place(metadata, adapter.layout_of(shape))
        views = adapter.view_inputs(inputs, shape)
        return Site(shape, views, adapter.view_outputs(outputs, shape.num_tokens), metadata)

    def _form(self, name: str, shape: Bucket, variant: str) -> Form:
        _, inputs, outputs, metadata = self.site(shape)
        adapter, provider, backend, encoder_fn = self._parts

        def region() -> None:
            with backend.in_variant(variant):
                run_encoder(encoder_fn, inputs, metadata, into=outputs)

        full = adapter.layout_of(shape, self._bucket.even_segments)
        due = partial(self._warm_ups.due, shape.num_tokens, form_of(metadata), variant)
        fill = partial(provider.refresh_in_place, metadata, full)
        return Form(name, shape, region, due, fill)
