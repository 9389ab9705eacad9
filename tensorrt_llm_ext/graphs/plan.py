# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""What a capture would take, without a device and without weights.

The buckets and the static arenas are exact: they come from the tower's own adapter. The rest on
CUDA is an estimate:

* the graphs' pool: the captured region runs on fake tensors at its largest bucket, and at the
  largest one where it takes another form, and a model of torch's allocator serves the intermediates
  in their order (``memory_model``); smaller buckets reuse that memory. Convolutions are taken to
  need no scratch, as those with channels last do.
* the arenas: the same allocator, after the tower's weights, whose segments have room left.
* the driver's side of a graph: ``GRAPH_BYTES`` each. It is kept for the next graphs when one goes,
  so a later capture of the same process takes less than is said here.

Fitted to an H200 (torch 2.11, bf16, driver's count): ``GRAPH_BYTES``, from what the first captures
of a process took beyond pool and arenas (Qwen3-VL-8B, 52 graphs: 44 MiB; Qwen3-VL-2B, 24 graphs:
22 MiB; Qwen3-Omni audio, 16 graphs: 16 MiB). It has to be confirmed on a GPU whenever device,
torch, the towers or the allocator's settings (``PYTORCH_CUDA_ALLOC_CONF``) change:
tests/gpu/test_plan_gpu.py holds it against what captures take. Not in it: what libraries load once
for the process (kernels, 32 MiB of cuBLAS workspace for a stream), which is not the graphs' memory
either; and the choice of attention kernel for fp32 on CUDA, which is not modelled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from pydantic import BaseModel, Field
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ..llmapi.mm_config import MultimodalConfig
from ..ops.attention import PackedAttention
from ..ops.kernels import running_as_on
from .adapter import EncoderGraphIOAdapter, EncoderMetadataProvider
from .buckets import Bucket
from .captured import run_encoder
from .memory_model import CachingAllocator, MemoryEvent, memory_events, peak_bytes

GRAPH_BYTES = 950_000
"""Driver memory of one instantiated graph of about 230 nodes (24 to 32 fused layers)."""

_CPU = torch.device("cpu")


class BucketPlan(BaseModel):
    """A shape that would be captured."""

    num_tokens: int = Field(description="Encoder rows before any merger.")
    max_segments: int = Field(description="Most segments in one replay.")
    max_segment_len: int | None = Field(None, description="Longest segment baked in, if any.")


class TowerPlan(BaseModel):
    """What one encoder's capture would take."""

    modality: str = Field(description="Key of the tower in ``encoder_cuda_graph``.")
    attention: str = Field(description="Attention inside the graphs.")
    buckets: list[BucketPlan] = Field(description="Ascending.")
    static_bytes: int = Field(description="Static inputs and outputs, exactly.")
    activation_bytes: int = Field(description="Most intermediates alive at once, largest bucket.")
    arena_bytes: int = Field(description="Estimate: what the driver gives for the static tensors.")
    pool_bytes: int = Field(description="Estimate: what the graphs' pool grows by.")
    graph_bytes: int = Field(description="Estimate: the driver's side of the graphs.")
    total_bytes: int = Field(description="Estimate: device memory that the capture takes.")
    max_graph_memory: int | float | None = Field(
        None, description="Configured limit: bytes, or a fraction of the memory free at capture."
    )

    @property
    def exceeds_limit(self) -> bool:
        """The estimate is above a limit in bytes: capture would drop the largest buckets."""
        limit = self.max_graph_memory
        return isinstance(limit, int) and self.total_bytes > limit


class EncoderPlan(BaseModel):
    """What the capture of all encoders would take."""

    model: str = Field(description="Checkpoint folder.")
    device: str = Field(description="Kind of device that is planned for.")
    dtype: str = Field(description="Element type of the weights.")
    towers: list[TowerPlan] = Field(default_factory=list, description="One per modality.")
    total_bytes: int = Field(0, description="Estimate: device memory of all captures.")

    def render(self) -> str:
        """The plan as text for a terminal."""
        lines = [f"{self.model} on {self.device}, {self.dtype}"]
        if not self.towers:
            lines.append("No encoder graphs are configured: nothing is captured or reserved.")
        for tower in self.towers:
            lines += _render_tower(tower)
        if self.towers:
            lines.append(f"Total: {_mib(self.total_bytes)}{_how(self.device)}")
        return "\n".join(lines)


class PlannableTower(Protocol):
    """What a plan needs of a tower (an ``nn.Module`` with ``MultimodalEncoderMixin``)."""

    @property
    def dtype(self) -> torch.dtype:
        """Element type of the weights."""
        ...

    def configure_encoder_cuda_graph(
        self, config: MultimodalConfig, max_num_tokens: int | None = None
    ) -> None:
        """Selects the tower's own entry."""
        ...

    def attention(self, *, captured: bool) -> PackedAttention:
        """Form of attention inside a graph, or outside."""
        ...

    @property
    def few_tokens(self) -> int:
        """Tokens up to which the region takes another form."""
        ...

    def lay_out_weights(self, device: torch.device | None = None) -> None:
        """Puts weights where kernels like them; those on device meta get memory there."""
        ...

    def planned_buckets(self) -> tuple[Bucket, ...]:
        """Shapes it would capture."""
        ...

    def make_io_adapter(self) -> EncoderGraphIOAdapter:
        """Shapes and buffers."""
        ...

    def make_metadata_provider(self) -> EncoderMetadataProvider[Any]:
        """Metadata of graphs."""
        ...

    def run_region(
        self, inputs: Mapping[str, torch.Tensor], metadata: Any
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """The region that is captured.

        Args:
            inputs: Tensors [rows, *shape] by the names of the adapter's input specs, dtype of the
                spec.
            metadata: What the metadata provider built.

        Yields:
            Names of the adapter's output specs and tensors [rows, *shape], dtype of the spec.
        """
        ...

    def modules(self) -> Any:
        """As ``nn.Module``."""
        ...

    def parameters(self) -> Any:
        """As ``nn.Module``."""
        ...


class _Traced(NamedTuple):
    arenas: list[int]
    events: list[MemoryEvent]


def plan_towers(
    towers: Mapping[str, PlannableTower],
    config: MultimodalConfig,
    max_num_tokens: int,
    device: torch.device,
) -> list[TowerPlan]:
    """Plans the capture of towers without weights.

    Args:
        towers: Towers on the meta device by modality (``tower_without_weights``), in the order they
            would be captured. Their parameters become fake: do not use them afterwards.
        config: The multimodal configuration, with an entry for each.
        max_num_tokens: Encoder budget (rows before any merger) of entries without their own.
        device: What is planned for; only its type matters, and it need not be there.

    Returns:
        A plan per tower. Towers without ``max_graph_memory`` share a pool: the second one's takes
        what the first one's does not have.

    Raises:
        ValueError: An entry cannot work for its tower.
    """
    shared = CachingAllocator()
    plans = []
    for modality, tower in towers.items():
        entry = (config.encoder_cuda_graph or {})[modality]
        with running_as_on(device):
            tower.configure_encoder_cuda_graph(config, max_num_tokens)
            buckets = tower.planned_buckets()
            traced = _trace(tower, buckets)
            arenas = traced[0].arenas
            attention = tower.attention(captured=True).name
        arena = pool = graphs = 0
        if device.type == "cuda":
            allocator = shared if entry.max_graph_memory is None else CachingAllocator()
            pool = sum(allocator.play(run.events) for run in traced)
            arena = _beside_weights(tower, arenas)
            graphs = GRAPH_BYTES * len(buckets)
        static = sum(arenas)
        plans.append(
            TowerPlan(
                modality=modality,
                attention=attention,
                buckets=[BucketPlan(**b._asdict()) for b in buckets],
                static_bytes=static,
                activation_bytes=max(peak_bytes(run.events) for run in traced),
                arena_bytes=arena,
                pool_bytes=pool,
                graph_bytes=graphs,
                total_bytes=max(arena + pool + graphs, static),
                max_graph_memory=entry.max_graph_memory,
            )
        )
    return plans


def _trace(tower: PlannableTower, buckets: Sequence[Bucket]) -> list[_Traced]:
    """The largest bucket, and the largest of few tokens."""
    # Computed tables are real tensors. Fake tensors say they are on the CPU: those on CUDA need a
    # torch that was built for it.
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        for module in tower.modules():
            for name, parameter in module.named_parameters(recurse=False):
                shape, strides = parameter.shape, parameter.stride()
                fake = torch.empty_strided(shape, strides, dtype=parameter.dtype, device=_CPU)
                setattr(module, name, nn.Parameter(fake, requires_grad=False))
        tower.lay_out_weights(_CPU)
        few = [b for b in buckets if b.num_tokens <= tower.few_tokens]
        return [_run(tower, bucket) for bucket in dict.fromkeys((buckets[-1], *few[-1:]))]


def _run(tower: PlannableTower, bucket: Bucket) -> _Traced:
    adapter = tower.make_io_adapter()
    inputs = adapter.allocate_inputs(bucket.num_tokens, _CPU)
    outputs = adapter.allocate_outputs(bucket.num_tokens, _CPU)
    storages = {t.untyped_storage()._cdata: t for t in (*inputs.values(), *outputs.values())}
    arenas = [t.untyped_storage().nbytes() for t in storages.values()]
    metadata = tower.make_metadata_provider().build(bucket, adapter.num_segment_slots(bucket))
    views = adapter.view_inputs(inputs, bucket)
    events = memory_events(lambda: run_encoder(tower.run_region, views, metadata))
    return _Traced(arenas, events)


def _beside_weights(tower: PlannableTower, arenas: list[int]) -> int:
    """What the driver gives for static tensors after the weights, whose segments have room left."""
    allocator = CachingAllocator()
    for parameter in tower.parameters():
        allocator.allocate(parameter.numel() * parameter.element_size())
    before = allocator.reserved_bytes
    for num_bytes in arenas:
        allocator.allocate(num_bytes)
    return allocator.reserved_bytes - before


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 20):,.1f} MiB"


def _how(device: str) -> str:
    if device == "cuda":
        return (
            " (estimate: what libraries load once for the process is not in it, nor is it known "
            "here which buckets are slower than eager)"
        )
    return " of static buffers; intermediates are ordinary memory of each replay"


def _render_tower(tower: TowerPlan) -> list[str]:
    lines = [
        f"Encoder '{tower.modality}': {len(tower.buckets)} buckets, {tower.attention} attention, "
        f"{_mib(tower.total_bytes)}",
        f"  {'tokens':>8} {'segments':>8} {'longest':>8}",
    ]
    for b in tower.buckets:
        longest = "any" if b.max_segment_len is None else b.max_segment_len
        lines.append(f"  {b.num_tokens:>8} {b.max_segments:>8} {longest:>8}")
    lines += [
        f"  static inputs and outputs {_mib(tower.static_bytes)} (exact)",
        f"  intermediates of the largest bucket {_mib(tower.activation_bytes)}",
    ]
    if tower.pool_bytes or tower.graph_bytes:
        lines.append(
            f"  from the driver: {_mib(tower.arena_bytes)} for static tensors, "
            f"{_mib(tower.pool_bytes)} for the pool, {_mib(tower.graph_bytes)} for the graphs"
        )
    if tower.exceeds_limit:
        lines.append(
            f"  above max_graph_memory of {tower.max_graph_memory:,} bytes: capture would drop "
            "the largest buckets until the rest fits"
        )
    elif isinstance(tower.max_graph_memory, float):
        lines.append(
            f"  max_graph_memory {tower.max_graph_memory:g} of the memory free at capture: not "
            "known here"
        )
    return lines
