# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Checks that the items of all towers share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..graphs.layout import EncoderItem


def pack_all(
    pack_item: Callable[[Mapping[str, Any]], EncoderItem], items: Sequence[Mapping[str, Any]]
) -> list[EncoderItem]:
    """Packs a batch; the ValueError of a malformed item names its index."""
    packed: list[EncoderItem] = []
    try:
        for item in items:
            packed.append(pack_item(item))
    except ValueError as error:
        raise ValueError(f"item {len(packed)}: {error}") from None
    return packed


def check_keys(item: Any, expected: frozenset[str]) -> None:
    """Raises ValueError unless an item is a mapping with exactly these keys."""
    if isinstance(item, dict) and item.keys() == expected:
        return  # what nearly every item is
    if not isinstance(item, Mapping) or set(item) != expected:
        found = list(item) if isinstance(item, Mapping) else f"those of a {type(item).__name__}"
        raise ValueError(f"keys are {found}; expected {sorted(expected)}")


def check_float_tensor(name: str, value: Any) -> None:
    """Raises ValueError unless a value is a floating-point tensor, of any shape and dtype."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        kind = value.dtype if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
        raise ValueError(f"{name} is {kind}; expected a floating-point tensor")
