# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""``load_tower``: a tower outside any engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .checkpoint import load_parameters, read_config
from .mixin import MultimodalEncoderMixin
from .registry import registered_modalities, tower_entry


def modalities_of(checkpoint: str | Path) -> tuple[str, ...]:
    """Modalities that a checkpoint's model has a tower for, sorted."""
    return registered_modalities(read_config(checkpoint)["model_type"])


def load_tower(
    source: str | Path | Mapping[str, Any],
    modality: str = "image",
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    *,
    config_overrides: Mapping[str, Any] | None = None,
    seed: int = 0,
    init_std: float = 0.02,
) -> Any:
    """Makes a tower and gives it weights.

    Args:
        source: Folder of a Hugging Face checkpoint, or a parsed config.json (for random weights).
        modality: Key of the tower: ``image`` (``vision`` is the same; video rides on it).
        device: Where it goes.
        dtype: Its element type.
        config_overrides: Keys of the model's config.json to replace (top level).
        seed: Seed of random weights.
        init_std: Standard deviation of random weights and biases (norm weights around 1).

    Returns:
        The tower (an ``nn.Module`` with ``MultimodalEncoderMixin``) in eval mode.

    Raises:
        ValueError: The model has no such tower, its configuration cannot work, or the weights do
            not fit.
    """
    tower, prefixes = _empty_tower(source, modality, dtype, config_overrides)
    allocate_weights(tower, device)
    if isinstance(source, Mapping):
        _randomise(tower, seed, init_std)
    else:
        load_parameters(tower, tower.disk_tensors(), source, prefixes, tower.disk_ignored)
    return tower


def tower_without_weights(
    source: str | Path | Mapping[str, Any],
    modality: str = "image",
    dtype: torch.dtype = torch.float32,
) -> Any:
    """Makes a tower whose parameters have shapes and nothing else, to plan with.

    Args:
        source: Folder of a Hugging Face checkpoint, of which config.json alone is read, or a parsed
            config.json.
        modality: Key of the tower: ``image`` (``vision`` is the same; video rides on it).
        dtype: Its element type.

    Returns:
        The tower in eval mode, its parameters on the meta device.

    Raises:
        ValueError: The model has no such tower, or its configuration cannot work.
    """
    return _empty_tower(source, modality, dtype, None)[0]


def allocate_weights(tower: Any, device: str | torch.device) -> None:
    """Gives a tower without weights memory for them, each where kernels like it.

    Weights that moved there later would leave holes where they were: memory that torch keeps and
    nothing else can use.

    Args:
        tower: Its parameters are on device meta. They get memory, and no values.
        device: Where that is to be.
    """
    module: torch.nn.Module = tower
    device = torch.device(device)
    tower.lay_out_weights(device)

    def allocate(tensor: torch.Tensor) -> torch.Tensor:
        there = tensor.device.type == device.type
        return tensor if there else torch.empty_like(tensor, device=device)

    module._apply(allocate)  # to_empty() would allocate again what was laid out


def _empty_tower(
    source: str | Path | Mapping[str, Any],
    modality: str,
    dtype: torch.dtype,
    config_overrides: Mapping[str, Any] | None,
) -> tuple[Any, tuple[str, ...]]:
    """The tower on the meta device, and the prefixes of its keys."""
    config = {
        **(source if isinstance(source, Mapping) else read_config(source)),
        **(config_overrides or {}),
    }
    modality = "image" if modality == "vision" else modality
    entry = tower_entry(config.get("model_type", ""), modality)
    try:
        with torch.device("meta"):
            tower = entry.factory(config)
    except ValueError as error:
        raise ValueError(f"{config['model_type']} {modality} tower: {error}") from None
    if not isinstance(tower, torch.nn.Module) or not isinstance(tower, MultimodalEncoderMixin):
        raise TypeError(f"{type(tower).__name__} is not an nn.Module with MultimodalEncoderMixin")
    module: torch.nn.Module = tower
    module.to(dtype).requires_grad_(False).eval()
    return module, entry.prefixes


def _randomise(tower: Any, seed: int, std: float) -> None:
    """The same values for a seed on every device and in every dtype, up to rounding."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in tower.named_parameters():
            values = torch.randn(parameter.shape, generator=generator, dtype=torch.float32) * std
            is_norm_weight = "norm" in name and name.endswith(".weight")
            constant = tower.initial_value(name)
            drawn = values + 1 if is_norm_weight else values
            parameter.copy_(drawn if constant is None else constant)
