# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The ranks of one engine agree: what one of them cannot do, none does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed

from .probe import MPI_GATHER, find


@dataclass(frozen=True)
class Ranks:
    """The ranks that build the same engine.

    Attributes:
        rank: This one.
        gather: Every rank's value for this rank's, in order of ranks; all of them have to call it.
        unheard: How many other ranks there are that ``gather`` cannot ask.
    """

    rank: int
    gather: Callable[[Any], Sequence[Any]]
    unheard: int = 0

    @classmethod
    def of(cls, dist: Any = None, mapping: Any = None) -> Ranks:
        """Those of upstream's engine, else of torch's process group, else of upstream's MPI.

        Args:
            dist: The engine's ``dist``: something with ``allgather`` or ``tp_allgather``.
            mapping: Its ``mapping``: something with ``world_size`` and ``rank``.

        Returns:
            This process alone where nothing says that there are others.
        """
        size, rank = int(getattr(mapping, "world_size", 1)), int(getattr(mapping, "rank", 0))
        gather = getattr(dist, "allgather", None) or getattr(dist, "tp_allgather", None)
        if size > 1 and gather is not None:
            return cls(rank, gather)
        group = torch.distributed  # also where a mapping says several and there is no dist
        if group.is_available() and group.is_initialized() and group.get_world_size() > 1:
            return cls(group.get_rank(), _gather_objects)
        if size > 1 and (over_mpi := find(MPI_GATHER)):
            return cls(rank, over_mpi)
        return cls(0, lambda value: [value], size - 1)

    def refuse_to_guess(self, graphs: Mapping[str, Any]) -> None:
        """Nothing is captured where ranks cannot agree.

        Args:
            graphs: What is to be captured, by modality.

        Raises:
            ValueError: There is something, and ranks that cannot be asked.
        """
        if self.unheard and graphs:
            raise ValueError(
                f"{self.unheard + 1} ranks build this engine and nothing lets them agree whether "
                "to capture encoder graphs; remove multimodal_config.encoder_cuda_graph"
            )


def _gather_objects(value: Any) -> list[Any]:
    values: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return values


def first_difference(values: Sequence[Any]) -> int | None:
    """The first rank whose value is not rank 0's."""
    return next((rank for rank, value in enumerate(values) if value != values[0]), None)
