# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Weights by checkpoint key, from safetensors and nothing else.

Keys on disk are stable across transformers versions, module paths are not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from pydantic import BaseModel, ValidationError
from torch import nn

C = TypeVar("C", bound=BaseModel)

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


class DiskTensor(NamedTuple):
    """Where a parameter is in a checkpoint.

    Attributes:
        key: Without prefix.
        shape: On disk.
        axes: Order of the disk's axes in the parameter; None: the same.
        absolute: The key is whole: the tower's prefix does not stand before it.
    """

    key: str
    shape: tuple[int, ...]
    axes: tuple[int, ...] | None = None
    absolute: bool = False

    def key_under(self, prefix: str) -> str:
        """The key in a checkpoint that has the tower under a prefix."""
        return self.key if self.absolute else prefix + self.key


DiskTensors = dict[str, tuple[DiskTensor, ...]]
"""By parameter: the tensors on disk whose rows, one below the other, are the parameter's."""


def disk_tensors_of(
    module: nn.Module, renames: Mapping[str, str | tuple[str, ...]] | None = None
) -> DiskTensors:
    """Disk tensors of a module whose parameter names differ from the checkpoint's here and there.

    Args:
        module: Its parameters are to be loaded.
        renames: Pattern in a parameter's name -> what the checkpoint has instead, applied in
            order; several for a parameter that is apart on disk.

    Returns:
        Disk tensors of every parameter; a parameter that is apart is split evenly along its rows.
    """
    disk: DiskTensors = {}
    for name, parameter in module.named_parameters():
        keys: tuple[str, ...] = (name,)
        for ours, theirs in (renames or {}).items():
            if re.search(ours, keys[0]):
                options = (theirs,) if isinstance(theirs, str) else theirs
                keys = tuple(re.sub(ours, option, key) for key in keys for option in options)
        rows, *rest = parameter.shape
        shape = (rows // len(keys), *rest)
        disk[name] = tuple(DiskTensor(key, shape) for key in keys)
    return disk


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


def parse_section(model: type[C], config: Mapping[str, Any], *path: str, **defaults: Any) -> C:
    """Reads a nested object of a parsed config.json.

    Args:
        model: What it is validated as.
        config: The whole.
        path: Keys on the way to the object.
        defaults: Values for keys that the object does not have.

    Returns:
        The validated object.

    Raises:
        ValueError: It is not there or does not validate; every problem with its path.
    """
    section: Any = config
    for depth, key in enumerate(path, start=1):
        section = section.get(key)
        if not isinstance(section, Mapping):
            raise ValueError(f"{'.'.join(path[:depth])}: expected an object, found {section!r}")
    try:
        return model.model_validate({**defaults, **section})
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, (*path, *e['loc']))) or 'config'}: {e['msg']}"
            for e in error.errors()
        ]
        raise ValueError("; ".join(problems)) from None


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


class WeightSource(Protocol):
    """Where the tensors of a checkpoint come from."""

    name: str
    """For messages."""

    def keys(self) -> Collection[str]:
        """Keys of all tensors."""
        ...

    def problem(self, key: str) -> str | None:
        """Why a key's tensor cannot be read, although it is listed."""
        ...

    def shape(self, key: str) -> tuple[int, ...]:
        """Shape of a tensor."""
        ...

    def tensor(self, key: str) -> torch.Tensor:
        """A tensor.

        Returns:
            Tensor [...] of the shape that ``shape`` gives, any dtype.
        """
        ...


class FolderWeights:
    """The safetensors files of a folder, open as long as the stack is."""

    def __init__(self, checkpoint: str | Path, stack: ExitStack) -> None:
        """Reads which file has which key; files are opened when they are needed."""
        self.name = str(checkpoint)
        self._files = weight_files(checkpoint)
        self._stack = stack
        self._readers: dict[Path, Any] = {}
        self._stored: dict[Path, set[str]] = {}

    def keys(self) -> Collection[str]:
        """See ``WeightSource``."""
        return self._files.keys()

    def problem(self, key: str) -> str | None:
        """See ``WeightSource``."""
        self._reader(key)
        path = self._files[key]
        return None if key in self._stored[path] else f"in {path.name}, where the index has it"

    def shape(self, key: str) -> tuple[int, ...]:
        """See ``WeightSource``."""
        return tuple(self._reader(key).get_slice(key).get_shape())

    def tensor(self, key: str) -> torch.Tensor:
        """See ``WeightSource``.

        Returns:
            Tensor [...] as stored, any dtype.
        """
        tensor: torch.Tensor = self._reader(key).get_tensor(key)
        return tensor

    def _reader(self, key: str) -> Any:
        path = self._files[key]
        if path not in self._readers:
            self._readers[path] = self._stack.enter_context(_open(path))
            self._stored[path] = set(self._readers[path].keys())
        return self._readers[path]


class MappedWeights:
    """Tensors by key, as a host's loader hands them over; slices of files count as tensors."""

    def __init__(self, weights: Mapping[str, Any], name: str) -> None:
        """Takes them, and how messages are to call them."""
        self.name = name
        self._weights = weights

    def keys(self) -> Collection[str]:
        """See ``WeightSource``."""
        return self._weights.keys()

    def problem(self, key: str) -> str | None:
        """See ``WeightSource``."""
        return None

    def shape(self, key: str) -> tuple[int, ...]:
        """See ``WeightSource``."""
        value = self._weights[key]
        return tuple(value.shape if isinstance(value, torch.Tensor) else value.get_shape())

    def tensor(self, key: str) -> torch.Tensor:
        """See ``WeightSource``.

        Returns:
            Tensor [...] as given, any dtype.
        """
        tensor: torch.Tensor = self._weights[key][...]
        return tensor


def load_parameters(
    module: nn.Module,
    disk: Mapping[str, tuple[DiskTensor, ...]],
    checkpoint: str | Path,
    prefixes: tuple[str, ...],
    ignored: Mapping[str, float | None] | None = None,
) -> None:
    """Copies a tower's weights from disk into its parameters; see ``copy_parameters``.

    Args:
        module: Receives the weights, cast to its dtype.
        disk: Disk tensors of every parameter, by parameter name.
        checkpoint: Folder of the checkpoint.
        prefixes: Accepted prefixes; the first that the checkpoint uses is taken.
        ignored: Patterns of keys (without prefix) that the tower has no use for -> the value that
            all their elements must have for that to be right, or None.

    Raises:
        ValueError: Keys are missing, unexpected or of another shape; all of them are listed.
    """
    with ExitStack() as stack:
        copy_parameters(module, disk, FolderWeights(checkpoint, stack), prefixes, ignored)


def copy_parameters(
    module: nn.Module,
    disk: Mapping[str, tuple[DiskTensor, ...]],
    source: WeightSource,
    prefixes: tuple[str, ...],
    ignored: Mapping[str, float | None] | None = None,
) -> None:
    """Copies a tower's weights into its parameters.

    Args:
        module: Receives the weights, cast to its dtype.
        disk: Disk tensors of every parameter, by parameter name.
        source: Has the weights under the keys of the checkpoint.
        prefixes: Accepted prefixes; the first that the checkpoint uses is taken.
        ignored: Patterns of keys (without prefix) that the tower has no use for -> the value that
            all their elements must have for that to be right, or None.

    Raises:
        ValueError: Keys are missing, unexpected or of another shape; all of them are listed.
    """
    keys = source.keys()
    prefix = next((p for p in prefixes if any(key.startswith(p) for key in keys)), prefixes[0])
    wanted = {t.key_under(prefix): t.shape for tensors in disk.values() for t in tensors}
    found = {key for key in keys if key.startswith(prefix) or key in wanted}
    unused = {
        key: value
        for key in found - wanted.keys()
        for pattern, value in (ignored or {}).items()
        if re.fullmatch(pattern, key.removeprefix(prefix))
    }
    found -= unused.keys()
    problems = [f"missing {key}" for key in sorted(wanted.keys() - found)]
    problems += [f"unexpected {key}" for key in sorted(found - wanted.keys())]
    for key, value in sorted(unused.items()):
        if value is not None and (source.tensor(key) != value).any():
            problems.append(f"{key} is supported only where it is {value:g} throughout")
    for key in sorted(wanted.keys() & found):
        problem = source.problem(key)
        if problem is not None:
            problems.append(f"missing {key} {problem}")
        elif source.shape(key) != wanted[key]:
            shape = list(source.shape(key))
            problems.append(f"{key} is {shape}, expected {list(wanted[key])}")
    if problems:
        raise ValueError(
            f"{source.name} does not fit {type(module).__name__}: " + "; ".join(problems)
        )
    for name, parameter in module.named_parameters():
        parts = []
        for tensor in disk[name]:
            part = source.tensor(tensor.key_under(prefix))
            parts.append(part if tensor.axes is None else part.permute(tensor.axes))
        with torch.no_grad():
            parameter.copy_(torch.cat(parts).view(parameter.shape))
