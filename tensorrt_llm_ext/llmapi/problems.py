# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Reports what is wrong with a configuration: file, line, path, bad value, allowed values."""

import difflib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from os import PathLike
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from tensorrt_llm_ext.llmapi.llm_args import ServeConfig
from tensorrt_llm_ext.llmapi.overrides import (
    Layer,
    Merged,
    OverrideError,
    merge,
    parse_overrides,
    source_of,
)
from tensorrt_llm_ext.llmapi.upstream_fields import accepted_keys, own_keys
from tensorrt_llm_ext.llmapi.yaml_io import ConfigFileError, YamlDocument, load_yaml_file

SET_SOURCE = "--set"
COMMAND_LINE = "command line"  # where a problem is that neither a file nor one flag has alone
_LISTED = 20  # keys without effect that a message names; the docs have a page of them


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        source: File name or "--set".
        line: Line in the file, from 1; None if there is none.
        path: Dotted path of the value, "" for the whole.
        message: What is wrong and how to put it right.
        value: The bad value in JSON, shortened; None where the message says it all.
    """

    source: str
    line: int | None
    path: str
    message: str
    value: str | None = None

    def __str__(self) -> str:
        place = self.source if self.line is None else f"{self.source}:{self.line}"
        got = "" if self.value is None else f" (got {self.value})"
        return ": ".join(part for part in (place, self.path, self.message + got) if part)


@dataclass(frozen=True)
class CheckedConfig:
    """The outcome of `check_serve_config`: the configuration, or the problems."""

    config: ServeConfig | None
    problems: list[Problem]
    merged: Merged | None = None


def _shown(value: Any, limit: int = 60) -> str:
    text = json.dumps(value, default=repr)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _nested_model(annotation: Any) -> type[BaseModel] | None:
    """The first model inside an annotation such as `dict[str, Model] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((m for m in map(_nested_model, get_args(annotation)) if m is not None), None)


def _model_at(model: type[BaseModel], loc: tuple[str | int, ...]) -> type[BaseModel]:
    """The model that holds the value at a location."""
    for part in loc:
        # A part that is no field is the key of a mapping or the position in a list of models.
        field = model.model_fields.get(str(part))
        model = (_nested_model(field.annotation) if field else None) or model
    return model


def _unknown_key(model: type[BaseModel], loc: tuple[str | int, ...]) -> str:
    owner, key = _model_at(model, loc[:-1]), str(loc[-1])
    every = [field.alias or name for name, field in owner.model_fields.items()]
    close = difflib.get_close_matches(key, every, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ";"
    text = f"unknown key {key!r}{hint} allowed: {', '.join(own_keys(owner))}"
    others = accepted_keys(owner)
    if len(others) > _LISTED:
        text += f", and {len(others)} keys without effect (docs/upstream-keys.md)"
    elif others:
        text += f", and without effect: {', '.join(others)}"
    return text


def explain(error: ValidationError, source: str, model: type[BaseModel] = ServeConfig) -> str:
    """The problems in a validation error of values that no file gave, in one text.

    Args:
        error: What validating the values raised.
        source: Who gave them.
        model: The model that was validated.
    """
    return "; ".join(map(str, problems_of(error, YamlDocument(source, {}), model=model)))


def problems_of(
    error: ValidationError,
    document: YamlDocument,
    merged: Merged | None = None,
    model: type[BaseModel] = ServeConfig,
) -> list[Problem]:
    """The problems in a validation error, with lines of the file that the values came from.

    Args:
        error: What validating the values raised.
        document: The file.
        merged: The layers that were validated; left out, all values are the file's.
        model: The model that was validated.

    Returns:
        One problem for each error, in order of their lines.
    """
    found = []
    for item in error.errors(include_url=False):
        loc = tuple(part for part in item["loc"] if part != "[key]")
        message, value = item["msg"], item.get("input")
        shown: str | None = _shown(value)
        if item["type"] == "extra_forbidden":
            message, shown = _unknown_key(model, loc), None
        elif item["type"] == "missing":
            message, shown = "is required", None
        elif isinstance(value, (dict, BaseModel)) or item["loc"][-1:] == ("[key]",):
            shown = None
        source = document.source
        if merged is not None:
            known = source_of(merged, loc)
            source = document.source if known == "defaults" else known
        line = _line_of(document, loc) if source == document.source else None
        found.append(Problem(source, line, _dotted(loc), message, shown))
    return sorted(found, key=lambda p: (p.source, p.line or 0, p.path))


def _dotted(loc: tuple[str | int, ...]) -> str:
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _line_of(document: YamlDocument, loc: tuple[str | int, ...]) -> int | None:
    for end in range(len(loc), -1, -1):
        if loc[:end] in document.lines:
            return document.lines[loc[:end]]
    return None


def check_serve_config(
    path: str | PathLike[str] | None,
    overrides: Iterable[str] = (),
    flags: Iterable[Layer] = (),
) -> CheckedConfig:
    """Reads, merges and validates a serve configuration.

    Args:
        path: The YAML file; None: there is none.
        overrides: `PATH=YAML_VALUE` texts, which replace values of the file and of the flags.
        flags: A layer for each flag that was given, which replaces values of the file.

    Returns:
        The configuration, or every problem found.
    """
    document = YamlDocument(COMMAND_LINE, {})
    try:
        if path is not None:
            document = load_yaml_file(path)
        values = parse_overrides(overrides)
        file = Layer(document.source, document.values)
        merged = merge(file, *flags, Layer(SET_SOURCE, values))
    except ConfigFileError as error:
        return CheckedConfig(None, [Problem(error.source, error.line, "", error.reason)])
    except OverrideError as error:
        return CheckedConfig(None, [Problem(COMMAND_LINE, None, "", str(error))])
    try:
        return CheckedConfig(ServeConfig.model_validate(merged.values), [], merged)
    except ValidationError as error:
        return CheckedConfig(None, problems_of(error, document, merged), merged)
