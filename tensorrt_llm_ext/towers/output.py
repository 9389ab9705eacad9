# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""What ``encode`` returns for an item."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


class ItemOutput(dict[str, Any]):
    """Outputs of one item by name, also as attributes: tensors, or lists of tensors.

    They are the caller's own.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no output {name!r}; there are {sorted(self)}") from None


def map_output(output: ItemOutput, change: Callable[[Any], Any]) -> ItemOutput:
    """An output of the same structure.

    Args:
        output: Values, or lists of values, by name.
        change: What becomes of a value; called in order.
    """
    return ItemOutput(
        {
            name: [change(part) for part in value] if isinstance(value, list) else change(value)
            for name, value in output.items()
        }
    )


def join_outputs(parts: Sequence[ItemOutput]) -> ItemOutput:
    """The output of an item that was encoded in parts.

    Args:
        parts: Their outputs in order, of equal structure: tensors [rows, width] of any dtype, or
            lists of such.

    Returns:
        Tensors [all rows, width] of the same dtype.
    """
    columns = zip(*(_tensors(part) for part in parts), strict=True)
    whole = iter([torch.cat(column) for column in columns])
    return map_output(parts[0], lambda _: next(whole))


def _tensors(output: ItemOutput) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    map_output(output, found.append)
    return found
