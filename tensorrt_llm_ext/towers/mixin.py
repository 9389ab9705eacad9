# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""``MultimodalEncoderMixin``: the graph lifecycle of an encoder.

A tower declares its inputs, a packed forward and how an item is cut into segments; capture,
padding, packing, counters and teardown come from here.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..graphs.adapter import EncoderGraphIOAdapter, Tensors
from ..graphs.backends import GraphBackend, StreamOrder, graph_backend_for, plain_mode
from ..graphs.batch import BatchPlan, BatchPlanner
from ..graphs.buckets import Bucket, EagerReason
from ..graphs.capture import capture_within_limits, eager_times, replay_times
from ..graphs.layout import AttentionLayout, Eager, EncoderItem, Step
from ..graphs.packer import Packer
from ..graphs.replay_log import log_encode_call
from ..graphs.report import EncoderStats, TowerReport
from ..graphs.runner import CaptureError, MultimodalEncoderGraphRunner
from ..graphs.variants import VariantChoices
from ..llmapi.mm_config import MultimodalConfig, MultimodalEncoderCudaGraphConfig
from ..ops.packed_metadata import PackedAttnMetadata, make_metadata
from .contract import EncoderContract
from .items import pack_all
from .output import ItemOutput
from .weights import WeightAddresses

logger = logging.getLogger(__name__)


class MultimodalEncoderMixin(EncoderContract):
    """Mixed into an encoder's ``nn.Module``.

    Order of calls: load weights, ``configure_encoder_cuda_graph``, ``setup_attn_metadata``,
    ``capture_encoder_cuda_graphs`` (once), ``encode``, ``release_encoder_cuda_graphs``. Without
    a configuration, or after a release, ``encode`` runs eagerly with the same results.
    """

    attn_metadata: PackedAttnMetadata | None
    """Metadata of eager runs; graphs own theirs."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.attn_metadata = None
        self._entry: MultimodalEncoderCudaGraphConfig | None = None
        self._token_budget: int | None = None
        self._eager_token_budget: int | None = None
        self._adapter_made: tuple[Any, EncoderGraphIOAdapter] | None = None
        self._runner: MultimodalEncoderGraphRunner[Any] | None = None
        self._report: TowerReport | None = None
        self._no_bucket_reason = EagerReason.OFF
        self._planners: dict[EagerReason | None, BatchPlanner] = {}
        self._pool: tuple[torch.device, GraphBackend] | None = None
        self._captured_weights: WeightAddresses | None = None
        self._stats = EncoderStats()
        self._lock = threading.RLock()
        self._order: StreamOrder | None = None

    # ---- lifecycle -------------------------------------------------------------------------

    @property
    def _adapter(self) -> EncoderGraphIOAdapter:
        weights = (self.device, self.dtype)
        if self._adapter_made is None or self._adapter_made[0] != weights:  # moved by .to()
            self._adapter_made = (weights, self.make_io_adapter())
            self._planners.clear()
        return self._adapter_made[1]

    def configure_encoder_cuda_graph(
        self, config: MultimodalConfig, max_num_tokens: int | None = None
    ) -> None:
        """Selects the tower's own entry.

        Args:
            config: The multimodal configuration; without an entry for this modality the tower
                runs eagerly.
            max_num_tokens: Budget (rows before any merger) for an entry without one of its own;
                by default that of ``setup_attn_metadata``.

        Raises:
            RuntimeError: Graphs are captured already, for another configuration.
        """
        entry = (config.encoder_cuda_graph or {}).get(self.encoder_cuda_graph_modality)
        with self._lock:
            if self._runner is not None:
                if (entry, max_num_tokens) == (self._entry, self._token_budget):
                    return
                raise RuntimeError(
                    "encoder graphs are captured already; call release_encoder_cuda_graphs() "
                    "before another configuration"
                )
            self._entry = entry
            self._token_budget = max_num_tokens
            self._report = None
            self._no_bucket_reason = EagerReason.OFF
            self._planners.clear()

    def setup_attn_metadata(
        self, max_num_tokens: int, attention_metadata_capacity: Mapping[str, int] | None = None
    ) -> None:
        """Makes the metadata of eager runs.

        Args:
            max_num_tokens: Encoder budget: most rows (before any merger) in one eager step. A
                single longer segment still runs, alone.
            attention_metadata_capacity: Segments per metadata object (``{"attention": n}``); by
                default as many as the budget can hold.
        """
        capacity = (attention_metadata_capacity or {}).get("attention", max_num_tokens)
        # Tensors made in inference mode could not be written outside of it.
        with self._lock, torch.inference_mode(False):
            self.attn_metadata = make_metadata(
                self.attention(captured=False),
                num_tokens=max_num_tokens,
                max_segments=capacity,
                max_segment_len=max_num_tokens,
                device=self.device,
            )
            self._eager_token_budget = max_num_tokens
            self._planners.clear()

    def planned_buckets(self) -> tuple[Bucket, ...]:
        """Shapes that a capture would take, ascending; none without a configuration.

        Raises:
            ValueError: The entry cannot work for this tower.
            RuntimeError: No budget is known: ``setup_attn_metadata`` has not run.
        """
        if self._entry is None:
            return ()
        budget = self._entry.max_num_tokens or self._token_budget or self._eager_token_budget
        if budget is None:
            raise RuntimeError("call setup_attn_metadata(max_num_tokens=...) before capture")
        return self._adapter.buckets(
            explicit=self._entry.buckets,
            max_segments=self._entry.max_batch_size,
            token_budget=budget,
            enable_padding=self._entry.enable_padding,
        )

    def capture_encoder_cuda_graphs(self, backend: GraphBackend | None = None) -> TowerReport:
        """Captures the planned buckets, largest first; a second call changes nothing.

        Args:
            backend: Pool to capture in, shared with other towers; by default a new one.

        Returns:
            What was captured, dropped and why.

        Raises:
            ValueError: The entry cannot work, or there is no graph backend for the device.
            RuntimeError: Weights are not loaded, or ``setup_attn_metadata`` has not run.
            CaptureError: A bucket failed and ``on_capture_failure`` is ``raise``.
        """
        with self._lock:
            if self._report is None:
                self._report = self._capture(backend)
                self._planners.clear()
            return self._report

    def _capture(self, backend: GraphBackend | None) -> TowerReport:
        modality = self.encoder_cuda_graph_modality
        entry, buckets = self._entry, self.planned_buckets()
        if entry is None:
            return TowerReport(modality=modality, status="off", reason="not configured")
        if self.device.type == "meta":
            raise RuntimeError("load the weights before capture: parameters are on device meta")
        backend = backend or graph_backend_for(self.device)
        if backend is None:
            raise ValueError(f"there is no graph backend for device {self.device}")
        start = time.perf_counter()
        report = TowerReport(
            modality=modality,
            status="captured",
            backend=backend.name,
            accelerated=backend.accelerated,
            attention=self.attention(captured=True).name,
        )
        self.lay_out_weights()
        choices = VariantChoices.of(self._module, self.device, entry.search_seconds)
        runner = MultimodalEncoderGraphRunner(
            encoder_fn=self.run_region,
            metadata_provider=self.make_metadata_provider(),
            adapter=self._adapter,
            backend=backend,
            device=self.device,
            eager_metadata=self.make_eager_metadata,
            choices=choices,
            warmup_steps=entry.warmup_steps,
            enable_padding=entry.enable_padding,
        )
        try:
            capture_within_limits(runner, backend, buckets, entry, report, self.device)
        except CaptureError as error:
            if entry.on_capture_failure == "raise":
                raise
            logger.warning("encoder %r serves eagerly: %s", modality, error)
            report.status, report.reason = "eager", str(error)
            self._no_bucket_reason = EagerReason.CAPTURE_FAILED
        else:
            choices.save()
            self._runner, self._pool = runner, (self.device, backend)
            self._captured_weights = WeightAddresses(self._module)
            self._no_bucket_reason = EagerReason.SLOWER_THAN_EAGER  # where no bucket was kept
        report.capture_seconds = time.perf_counter() - start
        return report

    def release_encoder_cuda_graphs(self) -> None:
        """Gives graphs and buffers back; encoding goes on eagerly. Does nothing the second time.

        A later ``capture_encoder_cuda_graphs`` captures afresh.
        """
        with self._lock:
            if self._runner is not None:
                self._runner.release()
                self._no_bucket_reason = EagerReason.RELEASED
            self._runner = self._report = self._captured_weights = None
            self._planners.clear()

    def recapture(self) -> TowerReport:
        """Captures again after weights were rebound (values written in place need none).

        Returns:
            The report of the new capture, in the pool of the old one if the device is the same.

        Raises:
            RuntimeError: Nothing was captured before.
        """
        with self._lock:
            if self._pool is None:
                raise RuntimeError("nothing to capture again: capture_encoder_cuda_graphs() first")
            device, backend = self._pool
            self.release_encoder_cuda_graphs()
            return self.capture_encoder_cuda_graphs(backend if device == self.device else None)

    # ---- encoding --------------------------------------------------------------------------

    def encode(
        self, items: Sequence[Mapping[str, Any]], *, eager: bool = False
    ) -> list[ItemOutput]:
        """Encodes a batch of items.

        Args:
            items: Items as ``pack_item`` of the tower describes them; all are checked before any
                work.
            eager: Leave the graphs aside (counted as ``requested``).

        Pinned host tensors are copied asynchronously: wait for the device before writing to them.

        Returns:
            An output per item. The tensors are the caller's own: no later call changes them.

        Raises:
            ValueError: An item is malformed; the message names its index.
        """
        packed = pack_all(self.pack_item, items)
        with self._lock:
            why_eager, device = self._why_eager(eager), self.device
            with self._ordered(device), plain_mode(device):
                batch = self._planner(why_eager).plan(packed)
                sinks = batch.allocate()
                for step in batch.steps:
                    if isinstance(step, Eager):
                        self._run_eager(step, packed, sinks)
                    elif self._runner is not None:  # it prepared the step
                        self._runner.replay(step, packed, sinks)
                self._count(batch)
        outputs = zip(packed, batch.split(sinks), strict=True)
        return [self.make_output(item, tensors) for item, tensors in outputs]

    def _ordered(self, device: torch.device) -> contextlib.AbstractContextManager[object]:
        """Eager runs share offsets and cached layouts too, whatever stream the caller is on."""
        if self._order is None or self._order.device != device:
            self._order = StreamOrder(device)
        return self._order.session()

    def plan(self, items: Sequence[Sequence[int]], *, eager: bool = False) -> tuple[Step, ...]:
        """The steps that ``encode`` would take.

        Args:
            items: Segment lengths (tokens before any merger) per item.
            eager: Leave the graphs aside.

        Returns:
            Replays and eager steps, with their reasons.
        """
        with self._lock:
            return self._planner(self._why_eager(eager)).packer.plan(items)

    def encoder_stats(self) -> EncoderStats:
        """A copy of the counters."""
        with self._lock:
            return self._stats.model_copy(deep=True)

    def _why_eager(self, requested: bool) -> EagerReason | None:
        """Why no graph may be used at all, if so."""
        if requested:
            return EagerReason.REQUESTED
        if self._captured_weights is None or not self._captured_weights.moved():
            return None
        if EagerReason.WEIGHTS_MOVED not in self._planners:
            logger.warning(
                "encoder %r serves eagerly: weights were rebound after capture, and its graphs "
                "read the old ones; call recapture()",
                self.encoder_cuda_graph_modality,
            )
        return EagerReason.WEIGHTS_MOVED

    def _planner(self, why_eager: EagerReason | None) -> BatchPlanner:
        runner = self._runner if why_eager is None else None
        if runner is None:
            _ = (
                self._adapter
            )  # weights may have been moved: then it is made anew, and plans with it
        if why_eager not in self._planners:
            report, entry = self._report if runner is not None else None, self._entry
            packer = Packer(
                () if runner is None else runner.buckets,
                cost=replay_times(report),
                eager_cost=eager_times(report) if entry and entry.prune_slower_than_eager else None,
                enable_padding=entry is None or entry.enable_padding,
                eager_token_budget=self._eager_token_budget,
                no_bucket_reason=why_eager or self._no_bucket_reason,
            )
            self._planners[why_eager] = BatchPlanner(packer, self._adapter, runner, self.device)
        return self._planners[why_eager]

    def _run_eager(
        self, step: Eager, items: Sequence[EncoderItem], sinks: Sequence[torch.Tensor]
    ) -> None:
        adapter = self._adapter
        inputs = adapter.allocate_inputs(step.load.num_tokens, self.device)
        adapter.fill(inputs, items, step.runs)
        metadata = self.make_eager_metadata(adapter.segment_lengths(items, step.runs))
        outputs = dict(self.run_region(inputs, metadata))
        named: Tensors = {}
        for block, sink in zip(adapter.output_blocks, sinks, strict=True):
            named |= block.named(sink)
        adapter.read(outputs, step.runs, named)

    def dry_run(self, num_tokens: int) -> None:
        """Makes one eager step of zeros that no counter sees: its memory is what others take.

        Args:
            num_tokens: Rows before any merger, all one segment; rounded up to what can be.
        """
        adapter = self._adapter
        specs = (*adapter.input_specs.values(), *adapter.output_specs.values())
        whole = max(spec.tokens_per_row for spec in specs)
        bucket = Bucket(-(-num_tokens // whole) * whole, 1)
        with self._lock, self._ordered(self.device), plain_mode(self.device):
            _sinks = adapter.allocate_outputs(bucket.num_tokens, self.device)
            inputs = adapter.allocate_inputs(bucket.num_tokens, self.device)
            for tensor in inputs.values():
                if tensor.is_floating_point():  # as rows come: a cast on the device takes memory
                    tensor.copy_(torch.zeros(tensor.shape), non_blocking=True)
            dict(self.run_region(inputs, self.make_eager_metadata(adapter.full_layout(bucket))))

    def make_eager_metadata(self, segment_lengths: AttentionLayout) -> Any:
        """Metadata of one eager run; an encoder with a provider of its own makes its kind.

        Args:
            segment_lengths: What the adapter's ``segment_lengths`` returned.

        Returns:
            What ``encoder_forward`` takes; by default ``PackedAttnMetadata``.
        """
        own = self.attn_metadata
        if own is not None and own.cu_seqlens.device == self.device:
            metadata = own.for_one_run(segment_lengths)
            if metadata is not None:
                return metadata
        metadata = make_metadata(
            self.attention(captured=False),
            num_tokens=sum(segment_lengths),
            max_segments=len(segment_lengths),
            max_segment_len=max(segment_lengths),
            device=self.device,
        )
        metadata.refresh(segment_lengths)
        return metadata

    def _count(self, batch: BatchPlan) -> None:
        self._stats.add(batch.counts)
        if self._entry is not None and self._entry.enable_replay_stats:
            log_encode_call(self.encoder_cuda_graph_modality, batch.counts, batch.plain_steps)
