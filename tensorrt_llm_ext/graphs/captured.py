# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""One captured bucket: its graph, the buffers it works on, and what can be checked about them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import torch

from .adapter import Tensors
from .backends import CapturedGraph

M = TypeVar("M")


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


Outputs = Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]]
"""Outputs of an encoder by name, all at once or one by one as they are ready."""


def drain(outputs: Outputs, *, into: Tensors | None = None) -> None:
    """Runs an encoder to its end; what is copied away at once takes no memory until then.

    Args:
        outputs: What the encoder gives: [rows, *shape], any float dtype.
        into: Where the values go: tensors by name, of the same shapes; by default nowhere.

    Raises:
        ValueError: The outputs are not those of ``into``.
    """
    got: dict[str, list[int]] = {}
    for name, tensor in outputs.items() if isinstance(outputs, Mapping) else outputs:
        got[name] = list(tensor.shape)
        if into is not None and name in into and into[name].shape == tensor.shape:
            into[name].copy_(tensor)
    declared = None if into is None else {name: list(t.shape) for name, t in into.items()}
    if declared is not None and got != declared:
        raise ValueError(f"the encoder returned {got}, its adapter declares {declared}")


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
        inputs: Static inputs by name, first rows of the arena: [rows, *shape], dtype of the spec.
        outputs: Static outputs by name, likewise.
        metadata: Refreshed in place before every replay.
        addresses: Of the metadata's tensors, when it was captured.
    """

    graph: CapturedGraph
    body: Callable[[], None]
    inputs: Tensors
    outputs: Tensors
    metadata: M
    addresses: dict[str, int]

    def check_addresses(self) -> None:
        """Raises RuntimeError when a refresh moved a tensor instead of writing into it."""
        for name, now in addresses_of(self.metadata, list(self.addresses)).items():
            if now != self.addresses[name]:
                raise RuntimeError(
                    f"metadata tensor {name!r} moved between capture and replay "
                    f"({self.addresses[name]:#x} -> {now:#x}). The graph still reads the old "
                    "one: refresh_in_place has to write into it, not rebind it."
                )

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
