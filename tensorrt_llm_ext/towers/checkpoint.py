# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Weights by checkpoint key, from safetensors and nothing else.

Keys on disk are stable across transformers versions, module paths are not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
    config = _read_json(path)
    if not isinstance(config.get("model_type"), str):
        raise ValueError(f"{path} has no model_type")
    return config


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{path} does not exist; expected a Hugging Face folder") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is a JSON {type(content).__name__}, not an object")
    return content


def weight_files(checkpoint: str | Path) -> dict[str, Path]:
    """The safetensors file of every key.

    Args:
        checkpoint: Folder with model.safetensors, or with an index and its shards.

    Returns:
        File by key.

    Raises:
        ValueError: No safetensors in the folder, a broken file or index, or an index that names a
            file outside the folder or a missing one.
    """
    folder = Path(checkpoint)
    if (folder / _INDEX).exists():
        weight_map = _read_json(folder / _INDEX).get("weight_map")
        if not isinstance(weight_map, dict):
            raise ValueError(f"{folder / _INDEX} has no weight_map")
        files = {}
        for key, name in weight_map.items():
            if not isinstance(name, str) or Path(name).name != name or name in ("", ".."):
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
    with _open(folder / _SINGLE) as weights:
        return dict.fromkeys(weights.keys(), folder / _SINGLE)


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as weights:
            yield weights
    except SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file: {error}") from error


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
    files = weight_files(checkpoint)
    prefix = next((p for p in prefixes if any(key.startswith(p) for key in files)), prefixes[0])
    wanted = {prefix + tensor.key: (name, tensor.shape) for name, tensor in disk.items()}
    found = {key for key in files if key.startswith(prefix)}
    problems = [f"missing {key}" for key in sorted(wanted.keys() - found)]
    problems += [f"unexpected {key}" for key in sorted(found - wanted.keys())]
    parameters = dict(module.named_parameters())
    for path in sorted({files[key] for key in wanted.keys() & found}):
        with _open(path) as weights:
            stored = set(weights.keys())
            for key in sorted(k for k in wanted.keys() & found if files[k] == path):
                name, shape = wanted[key]
                if key not in stored:
                    problems.append(f"missing {key} in {path.name}, where the index has it")
                    continue
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
