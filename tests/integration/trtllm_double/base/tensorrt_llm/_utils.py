# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of the few ``tensorrt_llm._utils`` that an encoder touches."""

from __future__ import annotations

import gc

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


def release_gc() -> None:
    gc.collect()
