# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Integers that the host works out, on their way to the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch


def copy_from_host(arrays: Sequence[np.ndarray], target: torch.Tensor) -> None:
    """Writes arrays into a tensor in one copy that waits for nothing.

    Args:
        arrays: One or more [rows, *shape] of the target's dtype, end to end along the first axis.
        target: [all rows, *shape], any dtype, on any device.

    Raises:
        ValueError: They do not fill the tensor.
    """
    # Pinned memory that is let go at once: torch's allocator knows of the copy, and gives it out
    # again when that is over. If it were kept, each layout would have to pin memory of its own.
    host = torch.empty(target.shape, dtype=target.dtype, pin_memory=target.is_cuda)
    np.concatenate(arrays, out=host.numpy())
    target.copy_(host, non_blocking=True)
