# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Layer and RMS norms over a residual stream that is kept without its biases.

The projections that end an attention or an MLP add their product to the residual in the
matrix multiplication itself. Their biases would cost a pass each, or a rounding of the residual
each; instead they are summed up, in fp32, and every norm adds the sum as it reads:
norm(x + sum). Shape letters: T tokens, C width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .kernels import has_kernels, jit, launch, power_of_two, tl


class BiasSum:
    """Sum of the biases that a residual stream lacks.

    The sum is on the device and part of the captured region, so that new biases, written in place,
    are seen by the next replay. Each reader adds the biases skipped since the last one.
    """

    def __init__(self, width: int, device: torch.device) -> None:
        """Nothing is skipped yet.

        Args:
            width: C.
            device: Of the stream.
        """
        sums = torch.empty(2, width, dtype=torch.float32, device=device)
        self._sums = sums.unbind()  # once: every reader takes two of them
        self._known = 0  # sums written so far; the last is number (known - 1) % 2
        self._pending: torch.Tensor | None = None

    def skip(self, bias: torch.Tensor | None) -> None:
        """Takes note of a bias that was not added.

        Args:
            bias: [C], any float dtype; None for a projection without.

        Raises:
            RuntimeError: The one before was not read by a norm.
        """
        if bias is None:
            return
        if self._pending is not None:
            raise RuntimeError("a norm has to read the residual before another bias is skipped")
        self._pending = bias

    @property
    def is_zero(self) -> bool:
        """No bias was skipped so far."""
        return self._known == 0 and self._pending is None

    @property
    def summed(self) -> torch.Tensor | None:
        """fp32 [C]: the biases that earlier readers have summed up, None before the first."""
        return self._sums[(self._known - 1) % 2] if self._known else None

    @property
    def pending(self) -> torch.Tensor | None:
        """The bias that the next reader adds to the sum: [C], any float dtype."""
        return self._pending

    @property
    def target(self) -> torch.Tensor | None:
        """fp32 [C]: where the next reader leaves the new sum; None if it stays as it is."""
        return None if self._pending is None else self._sums[self._known % 2]

    def advance(self) -> None:
        """The new sum was written to ``target``."""
        if self._pending is not None:
            self._known += 1
            self._pending = None


def normalise(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    *,
    rms: bool,
    lacking: BiasSum,
    out: torch.Tensor,
) -> torch.Tensor:
    """Norm of x + the biases it lacks, statistics in fp32, one rounding.

    Args:
        x: Residual stream [T, C], half precision or fp32.
        weight: [C], any float dtype.
        bias: [C], any float dtype, or None.
        eps: Added to the variance (layer) or the mean square (rms).
        rms: Root mean square instead of mean and variance.
        lacking: What x lacks; has summed up all of it afterwards.
        out: [T, C], dtype of x; may not overlap x.

    Returns:
        ``out``: [T, C], dtype of x.
    """
    if has_kernels(x.device, x.dtype):
        _launch(x, weight, bias, eps, rms=rms, lacking=lacking, out=out)
        return out
    full = x.float()
    if not lacking.is_zero:
        full = full + _sum_up(lacking)
    gain, shift = weight.float(), None if bias is None else bias.float()
    if rms:
        out.copy_(F.rms_norm(full, full.shape[-1:], gain, eps))
    else:
        out.copy_(F.layer_norm(full, full.shape[-1:], gain, shift, eps))
    return out


def apply_norm(
    norm: nn.LayerNorm | nn.RMSNorm, x: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """A norm as a module, by the kernel where there is one.

    Args:
        norm: Over the last axis.
        x: [T, C], contiguous, dtype of the weights.
        out: [T, C], contiguous, dtype of the weights, no part of x; by default a new tensor.

    Returns:
        [T, C], dtype of the weights: ``out`` where it is given.
    """
    eps = norm.eps
    if eps is None or norm.weight is None or not has_kernels(x.device, x.dtype):
        normed: torch.Tensor = norm(x)
        return normed if out is None else out.copy_(normed)
    bias, nothing = getattr(norm, "bias", None), BiasSum(0, x.device)
    rms = isinstance(norm, nn.RMSNorm)
    out = torch.empty_like(x) if out is None else out
    return normalise(x, norm.weight, bias, eps, rms=rms, lacking=nothing, out=out)


def complete(x: torch.Tensor, *, lacking: BiasSum, out: torch.Tensor) -> torch.Tensor:
    """Adds the biases that x lacks.

    Args:
        x: Residual stream [T, C], half precision or fp32.
        lacking: What x lacks; goes on lacking it, and has summed up all of it.
        out: [T, C], dtype of x; may not overlap x.

    Returns:
        [T, C], dtype of x: ``out``, or x itself where it lacks nothing.
    """
    if lacking.is_zero:
        return x
    if has_kernels(x.device, x.dtype):
        _launch(x, None, None, 0.0, rms=False, lacking=lacking, out=out)
        return out
    return out.copy_(x.float() + _sum_up(lacking))


def _sum_up(lacking: BiasSum) -> torch.Tensor:
    """fp32 [C]: the whole sum, noted as summed."""
    total, pending, target = lacking.summed, lacking.pending, lacking.target
    if pending is not None and target is not None:
        total = target.copy_(pending if total is None else total + pending)
        lacking.advance()
    if total is None:
        raise RuntimeError("the sum is zero: there is nothing to add")
    return total


def _launch(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    *,
    rms: bool,
    lacking: BiasSum,
    out: torch.Tensor,
) -> None:
    tokens, width = x.shape
    summed, pending, target = lacking.summed, lacking.pending, lacking.target
    # Two powers of two cover a width of 1152 or 1280 without idle lanes.
    main = power_of_two(width + 1) // 2
    rest = power_of_two(width - main) if width > main else 0
    launch(
        _norm_kernel,
        (tokens,),
        x,
        out,
        weight if weight is not None else x,
        bias if bias is not None else x,
        summed if summed is not None else x,
        pending if pending is not None else x,
        target if target is not None else x,
        eps,
        WIDTH=width,
        MAIN=main,
        REST=rest,
        NORM=weight is not None,
        RMS=rms,
        HAS_BIAS=bias is not None,
        HAS_SUM=summed is not None,
        HAS_PENDING=pending is not None,
        num_warps=1 if width <= 2048 else 4,
    )
    lacking.advance()


@jit
def _read(x, summed, pending, columns, mask, HAS_SUM: tl.constexpr, HAS_PENDING: tl.constexpr):
    value = tl.load(x + columns, mask=mask, other=0.0).to(tl.float32)
    lacking = tl.zeros_like(value)
    if HAS_SUM:
        lacking += tl.load(summed + columns, mask=mask, other=0.0)
    if HAS_PENDING:
        lacking += tl.load(pending + columns, mask=mask, other=0.0).to(tl.float32)
    return value + lacking, lacking


@jit
def _write(value, out, weight, bias, columns, mask, NORM: tl.constexpr, HAS_BIAS: tl.constexpr):
    if NORM:
        value *= tl.load(weight + columns, mask=mask, other=0.0).to(tl.float32)
        if HAS_BIAS:
            value += tl.load(bias + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + columns, value.to(out.dtype.element_ty), mask=mask)


@jit
def _norm_kernel(
    x,
    out,
    weight,
    bias,
    summed,
    pending,
    target,
    eps,
    WIDTH: tl.constexpr,
    MAIN: tl.constexpr,
    REST: tl.constexpr,
    NORM: tl.constexpr,
    RMS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_SUM: tl.constexpr,
    HAS_PENDING: tl.constexpr,
):
    """A row a program; the first one leaves the new sum of biases behind."""
    row = tl.program_id(0)
    x += row.to(tl.int64) * WIDTH
    out += row.to(tl.int64) * WIDTH
    a_columns = tl.arange(0, MAIN)
    a_mask = a_columns < WIDTH
    a, a_lacking = _read(x, summed, pending, a_columns, a_mask, HAS_SUM, HAS_PENDING)
    total = tl.sum(a, 0)
    if REST > 0:
        b_columns = MAIN + tl.arange(0, REST)
        b_mask = b_columns < WIDTH
        b, b_lacking = _read(x, summed, pending, b_columns, b_mask, HAS_SUM, HAS_PENDING)
        total += tl.sum(b, 0)
    if HAS_PENDING:  # noqa: SIM102 - one is decided when the kernel is compiled
        if row == 0:
            tl.store(target + a_columns, a_lacking, mask=a_mask)
            if REST > 0:
                tl.store(target + b_columns, b_lacking, mask=b_mask)
    if NORM:
        if not RMS:
            mean = total / WIDTH
            a = tl.where(a_mask, a - mean, 0.0)
            if REST > 0:
                b = tl.where(b_mask, b - mean, 0.0)
        squares = tl.sum(a * a, 0)
        if REST > 0:
            squares += tl.sum(b * b, 0)
        scale = 1.0 / tl.sqrt(squares / WIDTH + eps)
        a *= scale
        if REST > 0:
            b *= scale
    _write(a, out, weight, bias, a_columns, a_mask, NORM, HAS_BIAS)
    if REST > 0:
        _write(b, out, weight, bias, b_columns, b_mask, NORM, HAS_BIAS)
