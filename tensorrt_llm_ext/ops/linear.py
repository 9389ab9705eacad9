# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Matrix products into buffers that are there. Shape letters: T rows, K and N widths."""

from __future__ import annotations

import torch

from .activation import activate_
from .kernels import HALF, device_type


def project(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, out: torch.Tensor
) -> torch.Tensor:
    """Computes x W^T + bias.

    Args:
        x: [T, K], half precision or fp32; rows contiguous, any stride between them.
        weight: [N, K], dtype of x.
        bias: [N], dtype of x, or None.
        out: [T, N], contiguous, dtype of x; may not overlap x.

    Returns:
        ``out``: [T, N], dtype of x.
    """
    if bias is None:
        return torch.mm(x, weight.t(), out=out)
    return torch.addmm(bias, x, weight.t(), out=out)


def project_and_activate(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str,
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    """Computes activation(x W^T + bias), in one pass where cuBLAS has the activation (tanh GELU).

    Args:
        x: [T, K], contiguous, half precision or fp32.
        weight: [N, K], dtype of x.
        bias: [N], dtype of x, or None.
        activation: Key of ``activation.ACTIVATIONS``.
        out: [T, N], contiguous, dtype of x; may not overlap x.

    Returns:
        ``out``: [T, N], dtype of x.
    """
    fused = activation == "gelu_pytorch_tanh" and bias is not None and x.dtype in HALF
    if fused and bias is not None and device_type(x.device) == "cuda":
        return torch._addmm_activation(bias, x, weight.t(), use_gelu=True, out=out)
    return activate_(project(x, weight, bias, out=out), activation)


def accumulate_(x: torch.Tensor, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Adds rows W^T to x before the one rounding.

    Args:
        x: [T, N], contiguous, half precision or fp32.
        rows: [T, K], rows contiguous, any stride between them, dtype of x.
        weight: [N, K], dtype of x.

    Returns:
        x [T, N], overwritten; its own dtype.
    """
    return x.addmm_(rows, weight.t())
