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
def _times_logistic(x, exponent):
    """Computes x / (1 + 2^-exponent), as all three activations are.

    A reciprocal by the square of a reciprocal root: a division takes five instructions more, and
    instructions are what these kernels wait for.
    """
    root = tl.math.rsqrt(1.0 + tl.exp2(-exponent))
    return x * (root * root)


@jit
def gelu(x):
    """Exact GELU, x Phi(x), in fp32: at most 8e-8 off, beside the rounding of fp32.

    log2(Phi / (1 - Phi)) is x times an even function of x; the polynomial is fitted to it so that
    the largest error of x Phi(x) is smallest. ``erf`` takes longer than memory does.
    """
    square = x * x
    slope = (5.23387888e-9 * square - 3.86016325e-7) * square + 1.14667382e-5
    slope = ((slope * square - 1.59485237e-4) * square - 9.52950722e-5) * square
    slope = (slope + 0.104838192) * square + 2.30220747
    # fp16 may have overflowed: -inf * 0 would be NaN. That of NaN is NaN, by the exponent.
    return _times_logistic(tl.maximum(x, -16.0), x * slope)


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
    elif KIND == "gelu_pytorch_tanh":  # 0.5 (1 + tanh(a)) is the logistic function of 2 a
        slope = 2.3022082 + 0.10294324 * value * value
        result = _times_logistic(value, value * slope)
    else:
        result = _times_logistic(value, 1.4426950408889634 * value)
    if GATED:
        up = tl.load(x + width + column, mask=mask, other=0.0).to(tl.float32)
        if LIMITED:
            up = tl.minimum(tl.maximum(up, -limit), limit)
        result *= up
    tl.store(x + column, result.to(x.dtype.element_ty), mask=mask)
