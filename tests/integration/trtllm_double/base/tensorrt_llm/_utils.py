# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of the few ``tensorrt_llm._utils`` that an encoder touches."""

from __future__ import annotations

import gc
from typing import Any

import torch

from . import _double


def prefer_pinned() -> bool:
    return _double.DEVICE.type == "cuda"


def maybe_pin_memory(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.pin_memory() if prefer_pinned() else tensor


def mpi_rank() -> int:
    return _double.rank


def global_mpi_rank() -> int:
    return _double.rank


def mpi_allgather(obj: Any) -> Any:
    """Upstream: of the MPI session, and ``obj`` itself without several devices."""
    if not torch.distributed.is_initialized():
        return obj
    out: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(out, obj)
    return out


def release_gc() -> None:
    gc.collect()
