# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Runs that a capture needs before it: what they load must not be loaded while a graph records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from .adapter import Tensors
from .buckets import Bucket
from .captured import EncoderParts, run_encoder
from .layout import AttentionLayout


def form_of(metadata: Any) -> object:
    """Form of the attention of metadata; None where it says nothing of it."""
    return getattr(metadata, "attention", None)


class WarmUps:
    """How often a region has yet to run before it is captured.

    Buckets of one size have the same matrix products, and buckets of one form the same attention:
    what has run with both need not run again.
    """

    def __init__(self, steps: int) -> None:
        """Nothing has run.

        Args:
            steps: Runs that each size is to have, its timed eager run counted.
        """
        self._steps = steps
        self._runs: Counter[tuple[int, str]] = Counter()  # by size and variant
        self._forms: set[tuple[object, str]] = set()

    def due(self, num_tokens: int, form: object, variant: str) -> int:
        """Runs before the next capture, which from now on count as done.

        Args:
            num_tokens: Of the shape. An eager run counts, though a shape with room for more than
                its bucket had none.
            form: Of its attention. That of the eager run may be another.
            variant: Form of the region.
        """
        size, attention = (num_tokens, variant), (form, variant)
        least = 0 if self._runs[size] and attention in self._forms else 1
        runs = max(least, self._steps - 1 - self._runs[size])
        self._runs[size] += runs
        self._forms.add(attention)
        return runs


def rehearse(
    buckets: Iterable[Bucket],
    parts: EncoderParts,
    eager_metadata: Callable[[AttentionLayout], Any] | None,
    device: torch.device,
) -> None:
    """Runs a bucket of each form once, uncaptured: libraries and workspaces are loaded then.

    Eager runs may take a form of attention that no bucket has. Timed the first time, they would
    take as long as it takes to compile. They run where they always do: that stream has workspaces
    of its own.

    Args:
        buckets: The buckets; the largest of a form is the one.
        parts: Of the encoder; its metadata have forms of their own.
        eager_metadata: Attention layout -> metadata of an eager run; None for no such run.
        device: Where the buffers live.
    """
    adapter, provider, backend, encoder_fn = parts
    seen: set[object] = set()
    inputs: Tensors | None = None
    for bucket in sorted(buckets, reverse=True):
        # Given back before the next are made: two at a time would leave the allocator with a block
        # that the arena then takes in place of room it has beside the weights.
        inputs = None
        metadata = provider.build(bucket, adapter.num_segment_slots(bucket))
        variants = backend.variants(bucket.num_tokens)
        runs = [(metadata, variant, False) for variant in variants]
        if eager_metadata is not None:
            eager = eager_metadata(adapter.layout_of(bucket, bucket.even_segments))
            runs.append((eager, variants[0], True))
        for attended, variant, is_eager in runs:
            form = form_of(attended), variant, is_eager
            if form in seen:
                continue
            seen.add(form)
            if not is_eager:
                provider.refresh_in_place(metadata, adapter.layout_of(bucket))
            inputs = inputs or adapter.allocate_inputs(bucket.num_tokens, device)
            body = partial(run_encoder, encoder_fn, inputs, attended)
            with backend.in_variant(variant), backend.session():
                body() if is_eager else backend.run(body)
