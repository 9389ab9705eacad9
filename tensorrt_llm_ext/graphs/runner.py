# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The runner: captures an encoder at its buckets, replays it, gives the memory back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import torch

from .adapter import EncoderGraphIOAdapter, EncoderMetadataProvider, Tensors
from .backends import GraphBackend, plain_mode, profiler_range
from .buckets import Bucket
from .captured import (
    CapturedBucket,
    CaptureTimes,
    EncoderFn,
    EncoderParts,
    addresses_of,
    run_encoder,
    storage_bytes,
)
from .forms import BucketForms
from .layout import AttentionLayout, EncoderItem, Replay
from .prepared import PreparedReplay
from .rehearsal import WarmUps, rehearse
from .staging import HeldInputs
from .variants import TIMED_RUNS, VariantChoices, settle

M = TypeVar("M")


class CaptureError(RuntimeError):
    """A bucket could not be captured, checked or timed; the cause is chained."""


class MultimodalEncoderGraphRunner(Generic[M]):
    """Graphs of one encoder.

    One arena of static inputs and one of static outputs, made for the largest bucket, serve all
    buckets; each graph works on the first rows. Metadata is built per captured shape, and
    refreshed in place. Every bound that a capture bakes is checked in ``prepare``, through
    ``Bucket.rejects``, and nowhere else.
    """

    def __init__(
        self,
        *,
        encoder_fn: EncoderFn,
        metadata_provider: EncoderMetadataProvider[M],
        adapter: EncoderGraphIOAdapter,
        backend: GraphBackend,
        device: torch.device,
        eager_metadata: Callable[[AttentionLayout], Any],
        choices: VariantChoices,
        warmup_steps: int = 2,
        enable_padding: bool = True,
    ) -> None:
        """Makes a runner without graphs.

        Args:
            encoder_fn: The region: (static inputs, metadata) -> outputs by name, see ``Outputs``.
            metadata_provider: Builds and refreshes the attention metadata.
            adapter: Shapes, buffers, padding and copying.
            backend: Records and replays.
            device: Where the buffers live.
            eager_metadata: Attention layout -> metadata of an eager run, for its timing.
            choices: What is known of buckets: fastest forms, and which need not be captured.
            warmup_steps: Runs before a capture, see ``rehearsal.WarmUps``.
            enable_padding: Off: a step is replayed only at exactly its bucket's tokens.
        """
        self._parts = EncoderParts(adapter, metadata_provider, backend, encoder_fn)
        self._device = device
        self._eager_metadata = eager_metadata
        self.choices = choices
        self._warm_ups = WarmUps(warmup_steps)
        self._exact = not enable_padding
        self._inputs: Tensors = {}
        self._outputs: Tensors = {}
        self._held: HeldInputs | None = None
        self._arena_tokens = 0
        self._captured: dict[Bucket, CapturedBucket[M]] = {}
        self._last_eager: tuple[tuple[int, AttentionLayout], float] | None = None  # and its ms

    @property
    def adapter(self) -> EncoderGraphIOAdapter:
        """Shapes, buffers, padding and copying."""
        return self._parts.adapter

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """Buckets that can be replayed, ascending."""
        return tuple(sorted(self._captured))

    @property
    def static_bytes(self) -> int:
        """Bytes of the input and output arenas."""
        return storage_bytes([*self._inputs.values(), *self._outputs.values()])

    def capture(self, buckets: Iterable[Bucket]) -> Iterable[tuple[Bucket, CaptureTimes]]:
        """Captures buckets, largest first, so that the small ones reuse its memory.

        Args:
            buckets: Shapes to capture; those already captured are skipped.

        Yields:
            Each bucket with its times, as it is done.

        Raises:
            CaptureError: A bucket failed. All graphs and buffers of the runner are released.
            ValueError: A later call needs larger buffers.
        """
        todo = sorted(set(buckets) - set(self._captured), reverse=True)
        if todo and self._inputs and todo[0].num_tokens > self._arena_tokens:
            raise ValueError(
                f"{todo[0].label} exceeds the {self._arena_tokens} tokens of the buffers there "
                "are: call release() and capture all buckets at once"
            )
        for bucket in todo:
            try:
                with plain_mode(self._device):
                    times = self._capture_one(bucket)
            except Exception as error:  # whatever the encoder raises must not take the engine down
                self.release()
                raise CaptureError(
                    f"capture of bucket {bucket.label} failed: {type(error).__name__}: {error}"
                ) from error
            if self._held is None:
                self._held = HeldInputs(self._inputs, partial(self.adapter.clear, self._inputs))
            yield bucket, times

    def rehearse(self, buckets: Iterable[Bucket], *, eager: bool = True) -> None:
        """Runs a bucket of each form once, and eager ones if so, see ``rehearsal.rehearse``."""
        with plain_mode(self._device):
            rehearse(buckets, self._parts, self._eager_metadata if eager else None, self._device)

    def _capture_one(self, bucket: Bucket) -> CaptureTimes:
        adapter, provider, backend, encoder_fn = self._parts
        if not self._inputs:
            self._arena_tokens = bucket.num_tokens  # the largest comes first
            self._inputs = adapter.allocate_inputs(bucket.num_tokens, self._device)
            self._outputs = adapter.allocate_outputs(bucket.num_tokens, self._device)
        full = adapter.layout_of(bucket, bucket.even_segments)
        inputs = adapter.view_inputs(self._inputs, bucket)

        def eager() -> None:
            run_encoder(encoder_fn, inputs, self._eager_metadata(full))

        arenas, most = (self._inputs, self._outputs), 0 if self._exact else self._arena_tokens
        forms = BucketForms(bucket, self._parts, arenas, self._warm_ups, most)
        run, last = (bucket.num_tokens, full), self._last_eager
        known = last[1] if last and last[0] == run else None  # of a twin for other segments
        eager_ms = backend.time_ms(eager, repeats=1) if known is None else known
        best = self.choices.capture(bucket, backend, forms.makers())
        site = forms.site(best.form.shape)
        addresses = addresses_of(site.metadata, provider.graph_critical_attrs)
        self._captured[bucket] = CapturedBucket(
            best.graph, best.form.region, **site._asdict(), addresses=addresses
        )
        again = eager if known is None else None
        times = settle(backend, best.graph.replay, again, (best.replay_ms, eager_ms))
        self._last_eager = run, times[1]
        return CaptureTimes(best.capture_ms, *times, backend.accelerated, variant=best.form.name)

    def self_check(self, bucket: Bucket) -> list[str]:
        """Outputs of a bucket whose replay on random inputs is not the eager run's, bit for bit."""
        with self._parts.backend.session(), plain_mode(self._device):
            return self._captured[bucket].differs_from_eager()

    def time_segments(self, bucket: Bucket, segments: tuple[int, ...]) -> float:
        """Milliseconds of a replay of a bucket that holds segments of these lengths."""
        captured = self._captured[bucket]
        layout = self.adapter.layout_of(captured.shape, segments)
        with self._parts.backend.session(), plain_mode(self._device):
            captured.refresh(layout, self._parts.provider.refresh_in_place)
            return self._parts.backend.time_ms(captured.graph.replay, repeats=TIMED_RUNS)

    def drop(self, bucket: Bucket) -> None:
        """Gives up one bucket, which nothing replays yet."""
        self._captured.pop(bucket).graph.reset()

    def prepare(self, step: Replay, items: Sequence[EncoderItem]) -> PreparedReplay:
        """Checks a step and does what depends on its layout alone.

        Args:
            step: What is to be replayed.
            items: A batch that the step's runs point into.

        Returns:
            What ``replay`` takes, until the bucket is dropped or released.

        Raises:
            ValueError: The step breaks a bound of its bucket, or the bucket is not captured.
        """
        captured = self._captured.get(step.bucket)
        if captured is None:
            raise self._not_captured(step.bucket)
        step.check(exact=self._exact)
        return PreparedReplay.of(step, captured, self.adapter, items)

    def replay(
        self,
        prepared: PreparedReplay,
        items: Sequence[EncoderItem],
        sinks: Callable[[], Sequence[torch.Tensor]],
        *,
        uncaptured: bool = False,
    ) -> None:
        """Fills the bucket's buffers, replays its graph and copies the results out.

        Args:
            prepared: What to replay.
            items: The batch, laid out as the one it was prepared for.
            sinks: Asked after the launch for the caller's tensors, one for each of the adapter's
                ``output_blocks``, items end to end: [names, batch tokens / tokens_per_row, *shape],
                dtype of the block's spec.
            uncaptured: Run the captured function on the same buffers without the graph.

        Raises:
            ValueError: The bucket was dropped or released since.
            RuntimeError: An item's rows are not what its segments say, or a tensor of the metadata
                that the graph reads was moved.
        """
        captured, bucket = prepared.captured, prepared.step.bucket
        if self._captured.get(bucket) is not captured or self._held is None:
            raise self._not_captured(bucket)
        with (
            profiler_range(self._device, prepared.label),
            self._parts.backend.session(),
            plain_mode(self._device),
        ):
            self._held.stage(prepared.placement, captured.shape.num_tokens, items)
            captured.refresh(prepared.attention, self._parts.provider.refresh_in_place)
            (captured.body if uncaptured else captured.graph.replay)()
            prepared.collect(sinks())

    def _not_captured(self, bucket: Bucket) -> ValueError:
        there = [b.label for b in self.buckets]
        return ValueError(f"bucket {bucket.label} is not captured; there are {there}")

    def release(self) -> None:
        """Gives graphs and buffers back; does nothing the second time."""
        with self._parts.backend.session():
            self._parts.backend.synchronize()  # a replay in flight still uses what goes now
            for captured in self._captured.values():
                captured.graph.reset()
            self._captured.clear()
            self._inputs, self._outputs, self._held, self._last_eager = {}, {}, None, None
