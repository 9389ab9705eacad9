# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Items of a request, as upstream's ``MultimodalParams`` hold them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from .probe import INPUTS, find

_KEYS = {
    "image": ("pixel_values", "image_grid_thw"),
    "video": ("pixel_values_videos", "video_grid_thw"),
}


class ItemData(NamedTuple):
    """One item.

    Attributes:
        modality: image or video.
        rows: Patch rows [t * h * w, P], any float dtype.
        grid: t, h and w in patches.
        declared_rows: Output rows that upstream counts on, if it says so.
    """

    modality: str
    rows: torch.Tensor
    grid: tuple[int, ...]
    declared_rows: int | None = None

    def tower_item(self) -> dict[str, Any]:
        """The same as our towers take it."""
        return {"pixel_values": self.rows, "grid_thw": self.grid}


def items_in_order(param: Any, error: type[ValueError]) -> list[ItemData]:
    """All items of a request, in order of the prompt where upstream says it.

    Args:
        param: Upstream's ``MultimodalParams``.
        error: What to raise.

    Raises:
        ValueError: Data are missing or do not fit each other.
    """
    data = param.multimodal_data or {}
    items = {m: _items_of(data[m], m, error) for m in _KEYS if data.get(m) is not None}
    if not items:
        raise error(f"a request has neither of {sorted(_KEYS)}; it has {sorted(data)}")
    metadata = _metadata_of(data, error)
    if metadata is None:
        return [item for modality in items.values() for item in modality]
    lengths = metadata.output_embedding_lengths
    ordered = []
    for (modality, index), rows in zip(metadata.item_refs, lengths, strict=True):
        if modality not in items or not 0 <= index < len(items[modality]):
            raise error(f"the request's metadata name {modality} {index}, which it does not have")
        ordered.append(items[modality][index]._replace(declared_rows=int(rows)))
    return ordered


def _metadata_of(data: Mapping[str, Any], error: type[ValueError]) -> Any:
    look_up = find(f"{INPUTS}:get_multimodal_encoder_item_metadata")
    if not look_up:  # an older version
        return None
    try:
        return look_up(data)
    except (TypeError, ValueError) as problem:
        raise error(str(problem)) from problem


def _items_of(data: Any, modality: str, error: type[ValueError]) -> list[ItemData]:
    rows_key, grid_key = _KEYS[modality]
    if not isinstance(data, Mapping) or rows_key not in data or grid_key not in data:
        found = sorted(data) if isinstance(data, Mapping) else type(data).__name__
        raise error(f"{modality} data are {found}; expected {rows_key} and {grid_key}")
    rows, grids = data[rows_key], [tuple(map(int, g)) for g in data[grid_key].tolist()]
    counts = [math.prod(grid) for grid in grids]
    if sum(counts) != len(rows):
        raise error(f"{rows_key} has {len(rows)} rows, {grid_key} {grids} needs {sum(counts)}")
    parts = zip(rows.split(counts), grids, strict=True)
    return [ItemData(modality, part, grid) for part, grid in parts]


def sliced_items(
    param: Any, item_indices: Sequence[int], modality: str | None, error: type[ValueError]
) -> Any:
    """A request with some of its items.

    Args:
        param: Upstream's ``MultimodalParams``.
        item_indices: Of the modality, from 0.
        modality: image or video; may be left out where there is one of them.
        error: What to raise.

    Returns:
        Another ``MultimodalParams``.

    Raises:
        ValueError: No such items.
    """
    data = param.multimodal_data or {}
    there = [name for name in _KEYS if data.get(name) is not None]
    if modality is None and len(there) == 1:
        modality = there[0]
    if modality not in there:
        raise error(f"modality {modality!r} is not one of the request's: {there}")
    items = _items_of(data[modality], modality, error)
    indices = list(item_indices)
    if not indices or any(not 0 <= index < len(items) for index in indices):
        raise error(f"items {indices} of {len(items)} {modality} items: there are no such")
    rows_key, grid_key = _KEYS[modality]
    chosen = {
        rows_key: torch.cat([items[index].rows for index in indices]),
        grid_key: data[modality][grid_key][indices],
    }
    siblings = {
        key: _chosen(value, indices, len(items))
        for key, value in data[modality].items()
        if key not in chosen
    }
    others = {key: value for key, value in data.items() if key not in (*_KEYS, "audio")}
    made = {**others, modality: {**siblings, **chosen}}
    return type(param)(multimodal_data=made, multimodal_input=param.multimodal_input)


def _chosen(value: Any, indices: list[int], num_items: int) -> Any:
    """A field beside the rows: cut where it has an entry an item."""
    if isinstance(value, torch.Tensor) and value.dim() and len(value) == num_items:
        return value[indices]
    if isinstance(value, list) and len(value) == num_items:
        return [value[index] for index in indices]
    return value
