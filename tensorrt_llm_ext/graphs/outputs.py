# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Outputs of one spec lie behind each other in one tensor: one allocation and one copy for all."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from .adapter import EncoderGraphTensorSpec, Tensors


class OutputBlock(NamedTuple):
    """Outputs of one spec.

    Attributes:
        spec: Of each.
        names: Of the outputs, in the order in which they lie in the block.
    """

    spec: EncoderGraphTensorSpec
    names: tuple[str, ...]

    def shape(self, num_tokens: int) -> tuple[int, ...]:
        """Shape of the block for a number of tokens: [names, rows, *shape]."""
        return (len(self.names), self.spec.rows(num_tokens), *self.spec.shape)

    def named(self, block: torch.Tensor) -> Tensors:
        """Its parts.

        Args:
            block: [names, rows, *shape], dtype of the spec.

        Returns:
            A view [rows, *shape] for each name.
        """
        return dict(zip(self.names, block.unbind(0), strict=True))

    def behind(self, outputs: Tensors, num_tokens: int) -> torch.Tensor:
        """The block for a number of tokens, at the start of the one that the views are of.

        Args:
            outputs: Views of a block for at least as many tokens, by name.
            num_tokens: Tokens.

        Returns:
            [names, rows, *shape] without gaps, dtype of the spec, on the memory of the views.
        """
        shape = self.shape(num_tokens)
        strides = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
        return outputs[self.names[0]].as_strided(shape, strides)


def output_blocks(specs: Mapping[str, EncoderGraphTensorSpec]) -> tuple[OutputBlock, ...]:
    """Groups outputs by their spec, in order of appearance."""
    names: dict[EncoderGraphTensorSpec, list[str]] = {}
    for name, spec in specs.items():
        names.setdefault(spec, []).append(name)
    return tuple(OutputBlock(spec, tuple(group)) for spec, group in names.items())
