# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Handing over to ``trtllm-serve``, and what it can carry by itself.

``trtllm-ext serve`` starts ``trtllm-serve`` with the same flags, a file that upstream's strict
models accept, and our settings beside it. Plain ``trtllm-serve --custom_module_dirs`` reads its
file with upstream's models alone: keys that these lack would end in an error that names neither us
nor a way out, so that the import of this package looks first.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import click
import yaml

from ..llmapi.base import StrictBaseModel
from ..llmapi.overrides import OverrideError, parse_overrides
from ..llmapi.yaml_io import ConfigFileError, load_yaml_file
from ..towers.checkpoint import read_config
from .arrival import DISABLE, available, disabled, installed, module_dir, register_now
from .config import (
    ENTRY_FIELDS,
    GRAPHS,
    NEWER_ENTRY_FIELDS,
    VARIABLE,
    Settings,
    checked_graphs,
    configured_budget,
    encoder_is_off,
    entry_fields,
    known_to_upstream,
    plain,
    spelling_of,
)
from .memory_file import memory_file

COMMAND = "trtllm-serve"
_FILE_FLAGS = ("--config", "--extra_llm_api_options", "--extra_encoder_options")
_WAYS = (
    "Start `trtllm-ext serve` with the same file and flags, which carries them, or write them in "
    "upstream's keys by `trtllm-ext expand FILE`"
)
_WAY = (
    "Write them in upstream's keys by `trtllm-ext expand FILE`; `trtllm-ext serve` would carry "
    "them, but nothing of ours is registered here: see `trtllm-ext doctor`"
)


@dataclass(frozen=True)
class Refusal:
    """Why there is no hand-over.

    Attributes:
        reason: One line, with what to do.
    """

    reason: str


@dataclass(frozen=True)
class HandOver:
    """How to go on, for ``os.execvpe`` or ``subprocess``.

    Attributes:
        argv: Command and arguments.
        env: Variables to set beside those there are.
        config_file: The file that was written for it. It is in memory, and there as long as this
            process or the one that it becomes.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    config_file: Path

    def go(self) -> NoReturn:
        """Becomes that command.

        Raises:
            OSError: It is not on the path.
        """
        os.execvpe(self.argv[0], self.argv, {**os.environ, **self.env})


def wants_hand_over(values: Mapping[str, Any]) -> bool:
    """Whether a serve configuration means TensorRT-LLM, as `LLM` would read it; imports nothing.

    Args:
        values: The configuration as merged from file, flags and ``--set``.
    """
    backend, device = values.get("backend", "auto"), values.get("device", "auto")
    if backend == "auto":
        return device != "cpu" and available()
    return bool(backend == "tensorrt_llm")


def serve_command(
    model: str, values: Mapping[str, Any], flags: Sequence[str] = ()
) -> HandOver | Refusal:
    """The ``trtllm-serve`` call that does what a configuration says. Imports TensorRT-LLM.

    Args:
        model: Checkpoint folder.
        values: The configuration as merged from file, flags and ``--set``; our keys included.
            Nothing but ``multimodal_config.encoder_cuda_graph`` is looked at: the rest is
            upstream's to check.
        flags: Flags of the caller that ``trtllm-serve`` has too, such as ``--port 8000``.

    Returns:
        The call, or why there is none.
    """
    if disabled():
        return Refusal(f"{DISABLE} is set; unset it, or use --backend torch")
    if not installed():
        return Refusal("TensorRT-LLM is not installed; use --backend torch")
    if values.get("mm_encoder_only"):
        return Refusal(
            "mm_encoder_only: TensorRT-LLM serves encoders alone by `trtllm-serve "
            "mm_embedding_serve`; docs/tensorrt-llm.md says how it is started with this package"
        )
    registration = register_now()
    if not registration.active:
        return Refusal(f"{registration.refusal}; see trtllm-ext doctor")
    try:
        theirs, settings = split(values, model)
    except ValueError as error:
        return Refusal(str(error))
    # The descriptor stays open: whoever this process becomes holds the file.
    _, file = memory_file("serve.yaml", yaml.safe_dump(theirs, sort_keys=False))
    argv = (COMMAND, model, "--config", file.path, "--custom_module_dirs", str(module_dir()))
    env = {VARIABLE: settings.model_dump_json(exclude_unset=True)}
    return HandOver((*argv, *flags), env, Path(file.path))


def split(values: Mapping[str, Any], model: str) -> tuple[dict[str, Any], Settings]:
    """What upstream is given, and what travels beside it.

    Args:
        values: Arguments of ``LLM``, or a serve configuration.
        model: Checkpoint folder.

    Returns:
        Upstream's part, and ours.

    Raises:
        ValueError: An entry is wrong, its encoder is switched off, or the folder is none.
    """
    theirs = {
        key: plain(value) if isinstance(value, StrictBaseModel) else value  # a model of ours
        for key, value in values.items()
        if key not in ("model", "backend", "device")
    }
    config = checked_graphs(values.get("multimodal_config"), "multimodal_config")
    multimodal = plain(values.get("multimodal_config"))
    multimodal.pop(GRAPHS, None)
    if config.encoder_cuda_graph:
        if values.get("disable_mm_encoder"):
            raise ValueError(encoder_is_off(config.encoder_cuda_graph))
        entries = known_to_upstream(config, spelling_of(read_config(model)["model_type"]))
        if entries:
            multimodal[GRAPHS] = entries
    theirs.pop("multimodal_config", None)
    if multimodal:
        theirs["multimodal_config"] = multimodal
    graphs = config.encoder_cuda_graph or {}
    return theirs, Settings(graphs=graphs, max_num_tokens=configured_budget(values))


def refuse_uncarried_keys(active: bool) -> None:
    """Looks at the file of the ``trtllm-serve`` that this process is, before upstream does.

    Args:
        active: Whether ``trtllm-ext serve`` would work here.

    Raises:
        click.ClickException: It has keys of ours that the installed version's models do not have.
            The command prints it and ends.
    """
    if click.get_current_context(silent=True) is None:  # a command of upstream's runs inside one
        return
    # Where the version's model of an entry is not found, what no version has is lost all the same.
    carried = set(entry_fields() or (*ENTRY_FIELDS, *NEWER_ENTRY_FIELDS))
    for source, values in _given():
        for modality, entry in _mapping(_mapping(values, "multimodal_config"), GRAPHS).items():
            keys = entry if isinstance(entry, Mapping) else ()
            lost = [str(key) for key in keys if key not in carried]
            if lost:
                raise click.ClickException(
                    f"{source}: multimodal_config.{GRAPHS}.{modality} has {', '.join(lost)}, which "
                    f"{COMMAND} of this TensorRT-LLM does not take (it takes "
                    f"{', '.join(sorted(carried))}). {_WAYS if active else _WAY}"
                )


def _mapping(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A mapping below a key; {} for anything else, of which upstream says what is wrong."""
    value = values.get(key)
    return value if isinstance(value, Mapping) else {}


def _given() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Configuration of the running command: its file, and what it sets."""
    arguments = sys.argv[1:]
    settings = []
    for flag, value in _options(arguments):
        if flag in _FILE_FLAGS:
            try:
                yield value, load_yaml_file(value).values
            except ConfigFileError:
                continue  # upstream says it
        elif flag == "--set":
            settings.append(value)
    try:
        yield "--set", parse_overrides(settings)
    except OverrideError:
        return  # upstream says it


def _options(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Flags that are followed by a value, or hold one after an equals sign."""
    for index, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if flag.startswith("--") and equals:
            yield flag, value
        elif flag.startswith("--") and index + 1 < len(arguments):
            yield flag, arguments[index + 1]
