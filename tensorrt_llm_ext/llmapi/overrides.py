# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Merges configuration from a file, flags and `--set`, deeply, losing nothing in silence.

Precedence: defaults < file < flags < `--set`. Mappings are merged key by key; everything else is
replaced as a whole, and each replacement is returned so that the caller can log it.
"""

import copy
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from pydantic import BaseModel

from tensorrt_llm_ext.llmapi.yaml_io import ConfigFileError, parse_yaml_value

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_MAX_PATH = 64
_EXCLUSIVE_GRAPH_KEYS = ("buckets", "max_batch_size")
_EXCLUSIVE_MODALITIES = ("image", "vision")


class OverrideError(ValueError):
    """An override that cannot be understood, or layers that contradict each other."""


@dataclass(frozen=True)
class Layer:
    """Configuration from one source.

    Attributes:
        source: Where it comes from, as the user knows it: a file name, "flags", "--set".
        values: A nested mapping; pydantic models count as mappings of the fields that were set.
    """

    source: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Replaced:
    """A value of an earlier layer that a later layer replaced."""

    path: str
    old: Any
    new: Any
    old_source: str
    new_source: str

    def __str__(self) -> str:
        return (
            f"{self.path}: {_shown(self.old)} ({self.old_source}) replaced by "
            f"{_shown(self.new)} ({self.new_source})"
        )


@dataclass(frozen=True)
class Merged:
    """The result of `merge`.

    Attributes:
        values: The merged nested mapping.
        replaced: What was replaced, in order.
        sources: Source of every leaf and of every mapping as a whole, by its path.
    """

    values: dict[str, Any]
    replaced: list[Replaced]
    sources: dict[tuple[str, ...], str] = field(default_factory=dict)


def _shown(value: Any, limit: int = 80) -> str:
    text = json.dumps(value, default=repr)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def parse_override(text: str) -> tuple[tuple[str, ...], Any]:
    """One `PATH=YAML_VALUE`.

    Args:
        text: For example `multimodal_config.encoder_cuda_graph.image.buckets=[[256, 1]]`.

    Returns:
        The path as keys, and the value.

    Raises:
        OverrideError: The path or the value is malformed.
    """
    dotted, equals, value = text.partition("=")
    if not equals:
        raise OverrideError(f"--set {text}: no '='; write PATH=VALUE, for example max_batch_size=8")
    path = tuple(dotted.strip().split("."))
    for key in path:
        if not _KEY.match(key):
            raise OverrideError(
                f"--set {text}: {key!r} is not a key; a path is keys joined by dots (list items "
                "cannot be set one by one: set the whole list)"
            )
    if len(path) > _MAX_PATH:
        raise OverrideError(f"--set {dotted}: more than {_MAX_PATH} levels")
    if not value.strip():
        raise OverrideError(f"--set {text}: no value after '='; write null to unset")
    try:
        return path, parse_yaml_value(value, f"--set {dotted}")
    except ConfigFileError as error:
        raise OverrideError(f"--set {dotted}: {error.reason}") from error


def parse_overrides(texts: Iterable[str]) -> dict[str, Any]:
    """All `--set` arguments of one call as one nested mapping.

    Args:
        texts: Each `PATH=YAML_VALUE`.

    Returns:
        The nested mapping.

    Raises:
        OverrideError: One is malformed, or two set the same path or a path and one below it (their
            order would decide).
    """
    parsed = [parse_override(text) for text in texts]
    for (a, _), (b, _) in combinations(parsed, 2):
        if a == b:
            raise OverrideError(f"--set {'.'.join(a)} is given twice; keep one")
        short, long = sorted((a, b), key=len)
        if long[: len(short)] == short:
            raise OverrideError(
                f"--set {'.'.join(short)} and --set {'.'.join(long)} overlap: the second lies "
                "inside the first; put both into one value"
            )
    nested: dict[str, Any] = {}
    for path, value in parsed:
        target = nested
        for key in path[:-1]:
            target = target.setdefault(key, {})
        target[path[-1]] = value
    return nested


def _plain(value: Any) -> Any:
    """Models and mappings as fresh dicts; other values as they are."""
    if isinstance(value, BaseModel):
        return _plain(
            {
                f.alias or name: getattr(value, name)
                for name, f in type(value).model_fields.items()
                if name in value.model_fields_set
            }
        )
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return copy.copy(value)
    return value


def merge(*layers: Layer) -> Merged:
    """Merges layers deeply; later layers win.

    Args:
        *layers: In order of precedence, lowest first.

    Returns:
        The merged values, what was replaced, and where each value comes from.

    Raises:
        OverrideError: After merging, an encoder's entry has both `buckets` and `max_batch_size`, or
            `encoder_cuda_graph` has both `image` and `vision`, from different layers; the message
            names both sources. (Within one layer, validation says so.)
    """
    merged = Merged({}, [])
    for layer in layers:
        _merge_into(merged, merged.values, _plain(layer.values), (), layer.source)
    _check_exclusive(merged)
    return merged


def _merge_into(
    merged: Merged,
    target: dict[str, Any],
    values: Mapping[str, Any],
    path: tuple[str, ...],
    source: str,
) -> None:
    for key, new in values.items():
        here = (*path, key)
        old = target.get(key)
        if isinstance(new, dict) and isinstance(old, dict):
            _merge_into(merged, old, new, here, source)
            continue
        if key in target and not _same(old, new):
            merged.replaced.append(
                Replaced(".".join(here), old, new, source_of(merged, here), source)
            )
        for known in [p for p in merged.sources if p[: len(here)] == here]:
            del merged.sources[known]
        merged.sources[here] = source
        if isinstance(new, dict):
            target[key] = {}
            _merge_into(merged, target[key], new, here, source)
        else:
            target[key] = new


def _same(old: Any, new: Any) -> bool:
    return type(old) is type(new) and bool(old == new)


def source_of(merged: Merged, path: Sequence[str | int]) -> str:
    """Where the value at a path comes from.

    Args:
        merged: The result of `merge`.
        path: Keys (and list positions) from the root.

    Returns:
        The source of the value or of the closest value around it; "defaults" if none is known.
    """
    for end in range(len(path), 0, -1):
        source = merged.sources.get(tuple(str(key) for key in path[:end]))
        if source is not None:
            return source
    return "defaults"


def _check_exclusive(merged: Merged) -> None:
    multimodal = merged.values.get("multimodal_config")
    graphs = multimodal.get("encoder_cuda_graph") if isinstance(multimodal, dict) else None
    if not isinstance(graphs, dict):
        return
    root = ("multimodal_config", "encoder_cuda_graph")
    _one_source(merged, graphs, root, _EXCLUSIVE_MODALITIES, "vision is an alias of image")
    for modality, entry in graphs.items():
        if isinstance(entry, dict):
            _one_source(
                merged, entry, (*root, modality), _EXCLUSIVE_GRAPH_KEYS, "they exclude each other"
            )


def _one_source(
    merged: Merged, values: dict[str, Any], path: tuple[str, ...], keys: tuple[str, str], why: str
) -> None:
    given = [key for key in keys if values.get(key) is not None]
    sources = [source_of(merged, (*path, key)) for key in given]
    if len(set(sources)) < 2:
        return
    first, second = (f"{k} ({s})" for k, s in zip(given, sources, strict=True))
    raise OverrideError(
        f"{'.'.join(path)} has both {first} and {second}; {why}. Remove one, or set it to null"
    )
