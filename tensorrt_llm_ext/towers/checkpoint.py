# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Weights by checkpoint key, from safetensors and nothing else.

Keys on disk are stable across transformers versions, module paths are not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


class DiskTensor(NamedTuple):
    """Where a parameter is in a checkpoint: key without prefix, and shape on disk."""

    key: str
    shape: tuple[int, ...]


def read_config(checkpoint: str | Path) -> dict[str, Any]:
    """Reads config.json.

    Args:
        checkpoint: Folder of a Hugging Face checkpoint.

    Returns:
        The parsed file.

    Raises:
        ValueError: No such folder or file, or it is not a JSON object with a ``model_type``.
    """
    path = Path(checkpoint) / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist; expected a Hugging Face folder") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ValueError(f"{path} has no model_type")
    return config


def weight_files(checkpoint: str | Path) -> dict[str, Path]:
    """The safetensors file of every key.

    Args:
        checkpoint: Folder with model.safetensors, or with an index and its shards.

    Returns:
        File by key.

    Raises:
        ValueError: No safetensors in the folder, a broken index, or one that names a file outside
            the folder or a missing one.
    """
    from safetensors import safe_open

    folder = Path(checkpoint)
    if (folder / _INDEX).exists():
        index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
        files = {}
        for key, name in index.get("weight_map", {}).items():
            if not isinstance(name, str) or Path(name).name != name:
                raise ValueError(f"{folder / _INDEX} names {name!r}, which is not in the folder")
            files[key] = folder / name
        missing = sorted({str(path) for path in files.values() if not path.exists()})
        if missing or not files:
            raise ValueError(f"{folder / _INDEX} names no weights or missing files: {missing}")
        return files
    if not (folder / _SINGLE).exists():
        others = sorted(p.name for p in folder.glob("*.bin")) + sorted(
            p.name for p in folder.glob("*.pt*")
        )
        hint = f" (it has {others}: convert them, pickled weights are not read)" if others else ""
        raise ValueError(f"{folder} has neither {_SINGLE} nor {_INDEX}{hint}")
    with safe_open(folder / _SINGLE, framework="pt") as weights:
        return dict.fromkeys(weights.keys(), folder / _SINGLE)


def load_parameters(
    module: nn.Module,
    disk: Mapping[str, DiskTensor],
    checkpoint: str | Path,
    prefixes: tuple[str, ...],
) -> None:
    """Copies a tower's weights from disk into its parameters.

    Args:
        module: Receives the weights, cast to its dtype.
        disk: Key and shape on disk of every parameter, by parameter name.
        checkpoint: Folder of the checkpoint.
        prefixes: Accepted prefixes; the first that the checkpoint uses is taken.

    Raises:
        ValueError: Keys are missing, unexpected or of another shape; all of them are listed.
    """
    from safetensors import safe_open

    files = weight_files(checkpoint)
    prefix = next((p for p in prefixes if any(key.startswith(p) for key in files)), prefixes[0])
    wanted = {prefix + tensor.key: (name, tensor.shape) for name, tensor in disk.items()}
    found = {key for key in files if key.startswith(prefix)}
    problems = [f"missing {key}" for key in sorted(wanted.keys() - found)]
    problems += [f"unexpected {key}" for key in sorted(found - wanted.keys())]
    parameters = dict(module.named_parameters())
    for path in sorted({files[key] for key in wanted.keys() & found}):
        with safe_open(path, framework="pt") as weights:
            for key in sorted(k for k in wanted.keys() & found if files[k] == path):
                name, shape = wanted[key]
                on_disk = tuple(weights.get_slice(key).get_shape())
                if on_disk != shape:
                    problems.append(f"{key} is {list(on_disk)}, expected {list(shape)}")
                elif not problems:
                    with torch.no_grad():
                        parameters[name].copy_(weights.get_tensor(key).view(parameters[name].shape))
    if problems:
        raise ValueError(
            f"{checkpoint} does not fit {type(module).__name__}: " + "; ".join(problems)
        )
