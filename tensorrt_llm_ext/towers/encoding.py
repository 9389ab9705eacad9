# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""``encode`` of every tower: items in, replays or eager steps, outputs per item.

A batch whose layout was seen before costs a look-up, one copy in, the launch and one copy out.
"""

from __future__ import annotations

import abc
import contextlib
import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..graphs.adapter import EncoderGraphIOAdapter, Tensors
from ..graphs.backends import StreamOrder, plain_mode
from ..graphs.batch import BatchPlan, BatchPlanner
from ..graphs.buckets import EagerReason
from ..graphs.costs import eager_times, replay_times
from ..graphs.layout import AttentionLayout, Eager, EncoderItem, Step
from ..graphs.packer import Packer
from ..graphs.replay_log import log_encode_call
from ..graphs.report import EncoderStats, TowerReport
from ..graphs.runner import MultimodalEncoderGraphRunner
from ..llmapi.mm_config import MultimodalEncoderCudaGraphConfig
from .contract import EncoderContract
from .items import pack_all
from .output import ItemOutput
from .weights import WeightAddresses

logger = logging.getLogger(__name__)


class EncoderCalls(EncoderContract):
    """The part of ``MultimodalEncoderMixin`` that requests meet."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._entry: MultimodalEncoderCudaGraphConfig | None = None
        self._eager_token_budget: int | None = None
        self._adapter_made: tuple[Any, EncoderGraphIOAdapter] | None = None
        self._runner: MultimodalEncoderGraphRunner[Any] | None = None
        self._report: TowerReport | None = None
        self._captured_weights: WeightAddresses | None = None
        self._no_bucket_reason = EagerReason.OFF
        self._planners: dict[EagerReason | None, BatchPlanner] = {}
        self._stats = EncoderStats()
        self._lock = threading.RLock()
        self._order: StreamOrder | None = None

    @abc.abstractmethod
    def make_eager_metadata(self, segment_lengths: AttentionLayout) -> Any:
        """Metadata of one eager run."""

    @property
    def _adapter(self) -> EncoderGraphIOAdapter:
        weights = (self.device, self.dtype)
        if self._adapter_made is None or self._adapter_made[0] != weights:  # moved by .to()
            self._adapter_made = (weights, self.make_io_adapter())
            self._planners.clear()
        return self._adapter_made[1]

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
            device, weights = self.device, self._captured_weights
            later = weights is not None and weights.kept_on(device)
            why_eager = self._why_eager(eager, look=not later)
            with self._ordered(device), plain_mode(device):
                batch, sinks = self._run(packed, why_eager)
                if why_eager is None and later and self._weights_moved():
                    batch, sinks = self._run(packed, EagerReason.WEIGHTS_MOVED)
                self._count(batch)
        outputs = zip(packed, batch.split(sinks), strict=True)
        return [self.make_output(item, tensors) for item, tensors in outputs]

    def _run(
        self, packed: Sequence[EncoderItem], why_eager: EagerReason | None
    ) -> tuple[BatchPlan, list[torch.Tensor]]:
        batch = self._planner(why_eager).plan(packed)
        made: list[torch.Tensor] = []

        def sinks() -> list[torch.Tensor]:
            made[:] = made or batch.allocate()
            return made

        for step in batch.steps:
            if isinstance(step, Eager):
                self._run_eager(step, packed, sinks())
            elif self._runner is not None:  # it prepared the step
                self._runner.replay(step, packed, sinks)
        return batch, sinks()

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

    @property
    def has_encoder_cuda_graphs(self) -> bool:
        """Whether there are graphs that ``encode`` may replay."""
        return self._runner is not None

    def encoder_stats(self) -> EncoderStats:
        """A copy of the counters."""
        with self._lock:
            return self._stats.model_copy(deep=True)

    def _why_eager(self, requested: bool, *, look: bool = True) -> EagerReason | None:
        """Why no graph may be used at all, if so; whether weights moved only if it is to look."""
        if requested:
            return EagerReason.REQUESTED
        return EagerReason.WEIGHTS_MOVED if look and self._weights_moved() else None

    def _weights_moved(self) -> bool:
        if self._captured_weights is None or not self._captured_weights.moved():
            return False
        if EagerReason.WEIGHTS_MOVED not in self._planners:
            logger.warning(
                "encoder %r serves eagerly: weights were rebound after capture, and its graphs "
                "read the old ones; call recapture()",
                self.encoder_cuda_graph_modality,
            )
        return True

    def _planner(self, why_eager: EagerReason | None) -> BatchPlanner:
        runner = self._runner if why_eager is None else None
        if runner is None:
            _ = self._adapter  # weights may have moved: then it is made anew, and so are the plans
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

    def _count(self, batch: BatchPlan) -> None:
        self._stats.add(batch.counts)
        if self._entry is not None and self._entry.enable_replay_stats:
            log_encode_call(self.encoder_cuda_graph_modality, batch.counts, batch.plain_steps)
