# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Mergers of a tower with deepstack outputs: one by one, or all in one product.

Shape letters: T tokens, U tokens that become one row, R = T / U rows, C width, J = U C, O output
width, N mergers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import nn

from ..ops.activation import activate_
from ..ops.norm import apply_norm
from .packed_vit import address_of, move_parameter, part_of

_LAYERS = ("linear_fc1", "linear_fc2")


class PatchMerger(nn.Module):
    """Joins U neighbouring rows and projects them; the norm comes before or after the join."""

    def __init__(self, width: int, unit: int, out_width: int, *, norm_after_join: bool) -> None:
        """Makes the layers for C, U and O."""
        super().__init__()
        joined = width * unit
        self.norm_after_join = norm_after_join
        self.norm = nn.LayerNorm(joined if norm_after_join else width, eps=1e-6)
        self.linear_fc1 = nn.Linear(joined, joined)
        self.linear_fc2 = nn.Linear(joined, out_width)

    def join(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Norms and joins.

        Args:
            x: [T, C], contiguous, dtype of the weights.
            out: [R, J], contiguous, dtype of the weights, no part of x; by default a new tensor.

        Returns:
            [R, J], dtype of the weights: ``out`` where it is given.
        """
        joined = self.linear_fc1.in_features
        if self.norm_after_join:
            x = x.view(-1, joined)
        normed = apply_norm(self.norm, x, None if out is None else out.view(x.shape))
        return normed.view(-1, joined)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Joins and projects.

        Args:
            x: [T, C], contiguous, dtype of the weights.

        Returns:
            [R, O], dtype of the weights.
        """
        # What is joined has no name here: it is large, and not needed to the end.
        hidden = self.linear_fc1(self.join(x))
        return self.linear_fc2(activate_(hidden, "gelu"))


def can_go_together(mergers: Sequence[nn.Module]) -> bool:
    """Whether there are several, alike, of torch's own layers, and nobody hooked anything in."""
    if len(mergers) < 2 or any(type(m) is not PatchMerger for m in mergers):
        return False
    layers = [part_of(merger, name) for merger in mergers for name in _LAYERS]
    if any(type(layer) is not nn.Linear for layer in layers):
        return False
    if any(m._forward_hooks or m._forward_pre_hooks for m in (*mergers, *layers)):
        return False
    found = [_parameters(merger) for merger in mergers]
    kinds = [[None if p is None else (p.shape, p.dtype) for p in each] for each in found]
    return None not in kinds[0] and all(each == kinds[0] for each in kinds)


class _Weights(NamedTuple):
    first: torch.Tensor  # [N, J, J]
    first_bias: torch.Tensor  # [N, J]
    second: torch.Tensor  # [N, O, J]
    second_bias: torch.Tensor  # [N, O]


class MergersTogether:
    """The products of all mergers as one.

    The mergers of few rows read more weights than they can at a time that they are alone: for up to
    256 rows all of them at the end take 1 to 3 % less of a whole tower than one by one (H200).
    """

    @torch.no_grad()
    def __init__(self, mergers: Sequence[nn.Module], device: torch.device) -> None:
        """Moves the weights side by side; the parameters stay what they are, as views.

        Args:
            mergers: Of the same shape.
            device: Where the weights are, or are going to be if they are on device meta.
        """
        made = []
        for parameters in zip(*map(_parameters, mergers), strict=True):
            dtype, shape = parameters[0].dtype, (len(mergers), *parameters[0].shape)
            made.append(torch.empty(shape, dtype=dtype, device=device))
        self._weights = _Weights(*made)
        for index, merger in enumerate(mergers):
            places = [stack[index] for stack in self._weights]
            for (linear, name), place in zip(_slots(merger), places, strict=True):
                move_parameter(linear, name, place)

    def serves(self, mergers: Sequence[nn.Module]) -> bool:
        """Whether these mergers are made of the weights as they were moved, and of nothing else."""
        if not can_go_together(mergers):
            return False
        found = [[address_of(parameter) for parameter in _parameters(m)] for m in mergers]
        return found == [
            [address_of(stack[index]) for stack in self._weights] for index in range(len(mergers))
        ]

    def room(self, num_rows: int) -> torch.Tensor:
        """Where joined rows go.

        Args:
            num_rows: R.

        Returns:
            [N, R, J], dtype of the weights, of any values.
        """
        count, _, joined = self._weights.first.shape
        return self._weights.first.new_empty(count, num_rows, joined)

    def project(self, joined: torch.Tensor) -> torch.Tensor:
        """Projects the rows of every merger.

        Args:
            joined: [N, R, J], contiguous, dtype of the weights.

        Returns:
            [N, R, O], dtype of the weights.
        """
        w = self._weights
        hidden = torch.baddbmm(w.first_bias[:, None], joined, w.first.mT)
        activate_(hidden.flatten(0, 1), "gelu")
        return torch.baddbmm(w.second_bias[:, None], hidden, w.second.mT)


def _slots(merger: nn.Module) -> Iterable[tuple[nn.Module, str]]:
    return [(part_of(merger, layer), name) for layer in _LAYERS for name in ("weight", "bias")]


def _parameters(merger: nn.Module) -> list[torch.Tensor]:
    return [part_of(linear, name) for linear, name in _slots(merger)]
