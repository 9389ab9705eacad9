# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Activations of an MLP's inner rows, in place. Shape letters: T rows, F width."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from .kernels import has_kernels, jit, launch, tl

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": F.gelu,
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}
_BLOCK = 1024


def activate_(x: torch.Tensor, activation: str) -> torch.Tensor:
    """Computes activation(x).

    Args:
        x: [T, F], contiguous, half precision or fp32.
        activation: Key of ``ACTIVATIONS``.

    Returns:
        x [T, F], overwritten; its own dtype.
    """
    if has_kernels(x.device, x.dtype):
        _launch(x, x.shape[1], activation, gated=False, limit=None)
        return x
    return x.copy_(ACTIVATIONS[activation](x))


def gate_(x: torch.Tensor, activation: str, limit: float | None) -> torch.Tensor:
    """Computes activation(gate) * up, in fp32.

    Args:
        x: [T, 2 F], contiguous, half precision or fp32: gate first.
        activation: Key of ``ACTIVATIONS``.
        limit: The gate is clamped from above and up from both sides to this; None for no clamp.

    Returns:
        [T, F]: the first half of x's columns, overwritten.
    """
    gate, up = x.chunk(2, dim=-1)
    if has_kernels(x.device, x.dtype):
        _launch(x, gate.shape[1], activation, gated=True, limit=limit)
        return gate
    full_gate, full_up = gate.float(), up.float()
    if limit is not None:
        full_gate, full_up = full_gate.clamp(max=limit), full_up.clamp(-limit, limit)
    return gate.copy_(ACTIVATIONS[activation](full_gate) * full_up)


def _launch(
    x: torch.Tensor, width: int, activation: str, *, gated: bool, limit: float | None
) -> None:
    launch(
        _activation_kernel,
        (x.shape[0], -(-width // _BLOCK)),
        x,
        width,
        x.stride(0),
        0.0 if limit is None else limit,
        KIND=activation,
        GATED=gated,
        LIMITED=limit is not None,
        BLOCK=_BLOCK,
        num_warps=2,
    )


@jit
def gelu(x):
    """Exact GELU, x Phi(x), in fp32: at most 3.4e-7 off.

    By the rational approximation of the error function's tail in Abramowitz and Stegun, 7.1.26:
    ``erf`` itself takes three times as long, and more than memory does.
    """
    size = tl.abs(x)
    t = 1.0 / (1.0 + 0.3275911 * 0.7071067811865476 * size)
    tail = 1.061405429 * t - 1.453152027
    tail = (((tail * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    tail *= tl.exp2(-0.7213475204444817 * x * x)  # exp(-x^2 / 2)
    # fp16 may have overflowed: inf has to stay inf, and inf * 0 would be NaN. From 16 on the tail
    # is 0; that of NaN is NaN.
    return tl.maximum(x, 0.0) - 0.5 * tl.minimum(size, 16.0) * tail


@jit
def _activation_kernel(
    x,
    width,
    stride,
    limit,
    KIND: tl.constexpr,
    GATED: tl.constexpr,
    LIMITED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A piece of a row a program."""
    x += tl.program_id(0).to(tl.int64) * stride
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < width
    value = tl.load(x + column, mask=mask, other=0.0).to(tl.float32)
    if LIMITED:
        value = tl.minimum(value, limit)
    if KIND == "gelu":
        result = gelu(value)
    elif KIND == "gelu_pytorch_tanh":
        inner = 0.7978845608028654 * (value + 0.044715 * value * value * value)
        result = value * tl.sigmoid(2.0 * inner)  # 0.5 (1 + tanh(a)) = sigmoid(2 a)
    else:
        result = value * tl.sigmoid(value)
    if GATED:
        up = tl.load(x + width + column, mask=mask, other=0.0).to(tl.float32)
        if LIMITED:
            up = tl.minimum(tl.maximum(up, -limit), limit)
        result *= up
    tl.store(x + column, result.to(x.dtype.element_ty), mask=mask)
