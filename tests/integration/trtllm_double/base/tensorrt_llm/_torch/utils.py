# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of the few ``_torch.utils`` that an encoder touches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

_torch_compiling = False


def is_torch_compiling() -> bool:
    return _torch_compiling


def set_torch_compiling(enable: bool) -> None:
    global _torch_compiling
    _torch_compiling = enable


@contextlib.contextmanager
def torch_compiling(enable: bool) -> Iterator[None]:
    previous = _torch_compiling
    set_torch_compiling(enable)
    try:
        yield
    finally:
        set_torch_compiling(previous)


def make_weak_ref(tensor: torch.Tensor) -> torch.Tensor:
    """Upstream's does not keep the memory; here it does."""
    return tensor.detach()
