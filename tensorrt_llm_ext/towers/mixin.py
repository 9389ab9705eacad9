# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""``MultimodalEncoderMixin``: the graph lifecycle of an encoder.

A tower declares its inputs, a packed forward and how an item is cut into segments; capture,
padding, packing, counters and teardown come from here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

import torch

from ..graphs.backends import GraphBackend, graph_backend_for, plain_mode
from ..graphs.buckets import Bucket, EagerReason
from ..graphs.capture import capture_within_limits
from ..graphs.layout import AttentionLayout
from ..graphs.report import TowerReport
from ..graphs.runner import CaptureError, MultimodalEncoderGraphRunner
from ..graphs.variants import VariantChoices
from ..llmapi.mm_config import MultimodalConfig
from ..ops.packed_metadata import PackedAttnMetadata, make_metadata
from .encoding import EncoderCalls
from .weights import WeightAddresses

logger = logging.getLogger(__name__)


class MultimodalEncoderMixin(EncoderCalls):
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
        self._token_budget: int | None = None
        self._pool: tuple[torch.device, GraphBackend] | None = None

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
            self.attn_metadata = self._make_metadata(
                num_tokens=max_num_tokens, max_segments=capacity, max_segment_len=max_num_tokens
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
        region = f"{report.attention}, fused_layers={self.fused_layers}"
        choices = VariantChoices.of(self._module, self.device, region, entry.search_seconds)
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
            logger.warning("encoder %r serves eagerly: %s", modality, str(error))
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
            layout = adapter.layout_of(bucket, bucket.even_segments)
            dict(self.run_region(inputs, self.make_eager_metadata(layout)))

    def make_eager_metadata(self, segment_lengths: AttentionLayout) -> Any:
        """Metadata of one eager run; an encoder with a provider of its own makes its kind.

        Args:
            segment_lengths: What the adapter's ``segment_lengths`` returned.

        Returns:
            What ``encoder_forward`` takes; by default ``PackedAttnMetadata``.
        """
        own = self.attn_metadata
        if own is not None and own.device == self.device:
            metadata = own.for_one_run(segment_lengths)
            if metadata is not None:
                return metadata
        metadata = self._make_metadata(
            num_tokens=sum(segment_lengths),
            max_segments=len(segment_lengths),
            max_segment_len=max(segment_lengths),
        )
        metadata.refresh(segment_lengths)
        return metadata

    def _make_metadata(self, **sizes: int) -> Any:
        if self.foreign_attention is not None:
            return self.foreign_attention.metadata(**sizes)
        return make_metadata(self.attention(captured=False), device=self.device, **sizes)
