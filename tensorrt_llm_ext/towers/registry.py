# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Which tower serves which model, and how it is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

TowerFactory = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True)
class TowerEntry:
    """A registered tower.

    Attributes:
        factory: Model config (parsed config.json) -> tower without weights.
        prefixes: Prefixes of its keys in a checkpoint, the usual one first.
    """

    factory: TowerFactory
    prefixes: tuple[str, ...]


_TOWERS: dict[tuple[str, str], TowerEntry] = {}
# Imported at the first look-up.
_BUILT_IN = ("qwen3_vl", "qwen3_audio", "glm", "radio", "nemotron", "hf_adapter")


def register_tower(
    *model_types: str, modality: str = "image", prefixes: tuple[str, ...]
) -> Callable[[TowerFactory], TowerFactory]:
    """Decorator that registers the factory of a tower.

    Args:
        model_types: ``model_type`` values of config.json that it serves.
        modality: Key under which it is configured.
        prefixes: Prefixes of its keys in a checkpoint, the usual one first.

    Returns:
        The decorator; the factory takes the parsed config.json and returns a tower (an
        ``nn.Module`` with ``MultimodalEncoderMixin``) without weights.

    Raises:
        ValueError: A model type has a tower for the modality already.
    """

    def register(factory: TowerFactory) -> TowerFactory:
        _import_built_in()  # or a clash with one of them would show at somebody's first look-up
        for model_type in model_types:
            if (model_type, modality) in _TOWERS:
                raise ValueError(f"{model_type!r} has an {modality!r} tower already")
        for model_type in model_types:
            _TOWERS[model_type, modality] = TowerEntry(factory, prefixes)
        return factory

    return register


def tower_entry(model_type: str, modality: str) -> TowerEntry:
    """Looks a tower up.

    Args:
        model_type: ``model_type`` of config.json.
        modality: Key of the tower.

    Returns:
        Its entry.

    Raises:
        ValueError: There is none; the message lists what there is.
    """
    _import_built_in()
    entry = _TOWERS.get((model_type, modality))
    if entry is None:
        known = ", ".join(f"{m} ({k})" for m, k in sorted(_TOWERS))
        raise ValueError(
            f"no {modality!r} tower for model type {model_type!r}. Registered: {known}. "
            "register_tower adds one."
        )
    return entry


def registered_modalities(model_type: str) -> tuple[str, ...]:
    """Modalities with a tower for a model type, sorted."""
    _import_built_in()
    return tuple(sorted(modality for known, modality in _TOWERS if known == model_type))


def _import_built_in() -> None:
    for module in _BUILT_IN:
        import_module(f".{module}", __package__)
