# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""One captured bucket: its graph, the buffers it works on, and what can be checked about them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from .adapter import EncoderGraphIOAdapter, EncoderMetadataProvider, Tensors
from .backends import CapturedGraph, GraphBackend
from .buckets import Bucket
from .layout import AttentionLayout
from .outputs import OutputBlock

M = TypeVar("M")
Outputs = Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]]
"""Outputs of an encoder by name, all at once or one by one as they are ready."""

EncoderFn = Callable[[Mapping[str, torch.Tensor], Any], Outputs]


class EncoderParts(NamedTuple):
    """What it takes to run an encoder on buffers, captured or not.

    Attributes:
        adapter: Shapes and buffers.
        provider: Builds and refreshes the attention metadata.
        backend: Records, replays and times.
        encoder_fn: The encoder.
    """

    adapter: EncoderGraphIOAdapter
    provider: EncoderMetadataProvider[Any]
    backend: GraphBackend
    encoder_fn: EncoderFn


WORTH_EAGER = 0.98
"""Eager has to be faster by this factor to be chosen: its times depend on how busy the host is."""


class CaptureTimes(NamedTuple):
    """What a bucket took.

    Attributes:
        capture_ms: Warm-up and capture, milliseconds.
        replay_ms: A replay of the full bucket, milliseconds.
        eager_ms: An eager run of the same layout, milliseconds.
        accelerated: Whether the comparison means anything.
        memory_bytes: Device memory that it added, arenas with the first; None where unknown.
        variant: Form that was fastest.
    """

    capture_ms: float
    replay_ms: float
    eager_ms: float
    accelerated: bool = True
    memory_bytes: int | None = None
    variant: str = ""

    @property
    def slower_than_eager(self) -> bool:
        """Whether the graph is not worth having."""
        return self.accelerated and self.eager_ms < WORTH_EAGER * self.replay_ms


def run_encoder(
    encoder_fn: EncoderFn,
    inputs: Mapping[str, torch.Tensor],
    metadata: Any,
    *,
    into: Tensors | None = None,
) -> None:
    """Runs an encoder to its end; what is copied away at once takes no memory until then.

    Args:
        encoder_fn: The encoder.
        inputs: By name, [rows, *shape], dtype of the spec.
        metadata: Attention metadata.
        into: Where the outputs go: tensors by name, [rows, *shape], dtype of the spec; by default
            nowhere.

    Raises:
        ValueError: The encoder writes into its inputs, or its outputs are not those of ``into``.
    """
    before = {name: tensor._version for name, tensor in inputs.items()}
    got: dict[str, list[int]] = {}
    results = encoder_fn(inputs, metadata)
    for name, tensor in results.items() if isinstance(results, Mapping) else results:
        got[name] = list(tensor.shape)
        if into is not None and name in into and into[name].shape == tensor.shape:
            into[name].copy_(tensor)
        del tensor  # before the encoder goes on
    declared = got if into is None else {name: list(t.shape) for name, t in into.items()}
    if got != declared:
        raise ValueError(f"the encoder returned {got}, its adapter declares {declared}")
    written = [name for name, tensor in inputs.items() if tensor._version != before[name]]
    if written:
        raise ValueError(
            f"the encoder writes into its inputs {written}: they are static, and only what "
            "changes is written into them for a request. Write into a copy."
        )


def storage_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Bytes behind tensors; those that share a storage count once.

    Args:
        tensors: Of any shape [...] and dtype.
    """
    storages = [t.untyped_storage() for t in tensors]
    return sum({s.data_ptr(): s.nbytes() for s in storages}.values())


def addresses_of(metadata: object, names: Sequence[str]) -> dict[str, int]:
    """Device addresses of the tensors of metadata that captured kernels read.

    Args:
        metadata: What a provider built.
        names: Its ``graph_critical_attrs``.

    Returns:
        Address by name.

    Raises:
        TypeError: An attribute is not a tensor.
    """
    addresses = {}
    for name in names:
        tensor = getattr(metadata, name)
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"graph-critical attribute {name!r} is {tensor!r}, not a tensor")
        addresses[name] = tensor.data_ptr()
    return addresses


@dataclass
class CapturedBucket(Generic[M]):
    """A graph and its buffers.

    Attributes:
        graph: The recorded region.
        body: The same region, not recorded, on the same buffers.
        shape: What was captured: the bucket, or one with room for a few tokens more.
        inputs: Static inputs by name, first rows of the arena: [rows, *shape], dtype of the spec.
        outputs: Static outputs by name, likewise.
        metadata: Refreshed in place before every replay.
        addresses: Of the metadata's tensors, when it was captured.
    """

    graph: CapturedGraph
    body: Callable[[], None]
    shape: Bucket
    inputs: Tensors
    outputs: Tensors
    metadata: M
    addresses: dict[str, int]
    _held: AttentionLayout = field(default=None, init=False)
    _stamps: list[int] | None = field(default=None, init=False)
    _results: list[torch.Tensor] | None = field(default=None, init=False)

    def refresh(
        self, layout: AttentionLayout, refresh_in_place: Callable[[M, AttentionLayout], None]
    ) -> None:
        """Brings a layout into the metadata, unless that is what it holds.

        Args:
            layout: Segment lengths that fill the shape.
            refresh_in_place: The provider's.

        Raises:
            RuntimeError: The provider, or somebody else, moved a tensor that the graph reads.
        """
        if self._stamps == self._stamp() and (layout is self._held or layout == self._held):
            return
        refresh_in_place(self.metadata, layout)
        stamps = self._stamp()
        for (name, captured), now in zip(self.addresses.items(), stamps[::2], strict=True):
            if now != captured:
                raise RuntimeError(
                    f"metadata tensor {name!r} moved between capture and replay "
                    f"({captured:#x} -> {now:#x}). The graph still reads the old one: "
                    "refresh_in_place has to write into it, not rebind it."
                )
        self._held, self._stamps = layout, stamps

    def _stamp(self) -> list[int]:
        """Address of each tensor and how often it was written, by a refresh that failed too."""
        stamps: list[int] = []
        for name in self.addresses:
            tensor = getattr(self.metadata, name)
            stamps += (tensor.data_ptr(), tensor._version)
        return stamps

    def results(self, blocks: Sequence[OutputBlock]) -> list[torch.Tensor]:
        """What a replay leaves.

        Args:
            blocks: Those of the adapter.

        Returns:
            A view of the static outputs for each block, [names, rows, *shape], dtype of its spec.
        """
        if self._results is None:
            self._results = [b.behind(self.outputs, self.shape.num_tokens) for b in blocks]
        return self._results

    def differs_from_eager(self) -> list[str]:
        """Replays the layout of the capture on random inputs and runs the same uncaptured.

        Returns:
            Outputs that are not the same bits.
        """
        generator = torch.Generator(next(iter(self.inputs.values())).device).manual_seed(0)
        for tensor in self.inputs.values():
            if tensor.is_floating_point():
                tensor.normal_(generator=generator)
        self.graph.replay()
        replayed = {name: tensor.clone() for name, tensor in self.outputs.items()}
        self.body()
        return [n for n, tensor in self.outputs.items() if not torch.equal(replayed[n], tensor)]
