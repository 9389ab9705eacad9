# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Reads configuration from YAML, strictly, and remembers the line of every value.

PyYAML's reader differs from what editors check against a JSON schema: it follows YAML 1.1 (`on`
is true, `1e3` is a string, `0777` is 511), keeps the last of two equal keys in silence, and expands
aliases without limit. The reader here follows the YAML 1.2 core schema and turns every trap into
an error of one line with its place.
"""

import math
import re
from collections.abc import Hashable
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import yaml

MAX_BYTES = 256 * 1024
MAX_NODES = 10_000
MAX_DEPTH = 64
_MAX_DIGITS = 100

ConfigPath = tuple[str | int, ...]
"""Keys and list positions from the root to a value."""


class ConfigFileError(ValueError):
    """A file (or other YAML text) that cannot be read as configuration.

    Attributes:
        source: File name, or what the text is ("--set ...").
        line: Line of the problem, from 1, or None where there is none.
        reason: What is wrong and how to put it right.
    """

    def __init__(self, source: str, line: int | None, reason: str) -> None:
        self.source, self.line, self.reason = source, line, reason
        place = source if line is None else f"{source}:{line}"
        super().__init__(f"{place}: {reason}")


@dataclass(frozen=True)
class YamlDocument:
    """A mapping read from YAML.

    Attributes:
        source: File name, or what the text is.
        values: The mapping.
        lines: The line, from 1, of every key and list item, by its path; () is the root.
    """

    source: str
    values: dict[str, Any]
    lines: dict[ConfigPath, int] = field(default_factory=dict)


_TAG = "tag:yaml.org,2002:"
_PLAIN = {
    "null": re.compile(r"^(?:~|null|Null|NULL|)$"),
    "bool": re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"),
    "int": re.compile(r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$"),
    "float": re.compile(
        r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
}


class _Loader(yaml.SafeLoader):
    """Composes the node tree with the YAML 1.2 core schema and limits on size and depth."""

    nodes = 0
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        line = self.peek_event().start_mark.line + 1
        self.nodes += 1
        self.depth += 1
        if self.nodes > MAX_NODES:
            raise _RefusedError(line, f"more than {MAX_NODES} values; that is no configuration")
        if self.depth > MAX_DEPTH:
            raise _RefusedError(line, f"nested more than {MAX_DEPTH} levels deep")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


_Loader.yaml_implicit_resolvers = {}
for _kind, _pattern in _PLAIN.items():
    _Loader.add_implicit_resolver(_TAG + _kind, _pattern, None)


class _RefusedError(Exception):
    def __init__(self, line: int | None, reason: str) -> None:
        self.line, self.reason = line, reason
        super().__init__(reason)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _scalar(node: yaml.ScalarNode) -> Any:
    text, kind = str(node.value), node.tag.removeprefix(_TAG)
    if kind == "str":
        return text
    if kind not in _PLAIN or not _PLAIN[kind].match(text):
        raise _RefusedError(
            _line(node),
            f"the tag {_shown(node.tag)} is not allowed (on {_shown(text)}); write plain values",
        )
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    if len(text) > _MAX_DIGITS:
        raise _RefusedError(_line(node), f"the number {_shown(text)} has too many digits")
    if kind == "float":
        number = math.nan if text.lower().endswith(("inf", "nan")) else float(text)
        if not math.isfinite(number):
            raise _RefusedError(_line(node), f"{_shown(text)} is not a finite number")
        return number
    if re.match(r"^[-+]?0[0-9]", text):
        raise _RefusedError(
            _line(node),
            f"the number {text} starts with 0, which YAML readers understand differently; write it "
            "without, or as 0o... if it is octal",
        )
    return int(text, 0)


def _shown(text: str, limit: int = 60) -> str:
    return repr(text if len(text) <= limit else text[: limit - 3] + "...")


class _Builder:
    """Turns the node tree into plain Python values and the map of lines."""

    def __init__(self) -> None:
        self.lines: dict[ConfigPath, int] = {}
        self.count = 0
        self.open: set[int] = set()

    def build(self, node: yaml.Node, path: ConfigPath) -> Any:
        # Aliases share nodes, so the tree is counted as it expands, not as it was composed.
        self.count += 1
        if self.count > MAX_NODES:
            raise _RefusedError(_line(node), f"aliases expand to more than {MAX_NODES} values")
        if id(node) in self.open:
            raise _RefusedError(_line(node), "an alias refers to a value that contains it")
        if len(path) > MAX_DEPTH:
            raise _RefusedError(_line(node), f"nested more than {MAX_DEPTH} levels deep")
        self.lines.setdefault(path, _line(node))
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node)
        if node.tag not in (_TAG + "map", _TAG + "seq"):
            raise _RefusedError(_line(node), f"the tag {_shown(node.tag)} is not allowed")
        self.open.add(id(node))
        value: Any
        if isinstance(node, yaml.MappingNode):
            value = self._mapping(node, path)
        else:
            value = [self.build(child, (*path, i)) for i, child in enumerate(node.value)]
        self.open.discard(id(node))
        return value

    def _mapping(self, node: yaml.MappingNode, path: ConfigPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        seen: dict[Hashable, int] = {}
        for key_node, value_node in node.value:
            line = _line(key_node)
            if not isinstance(key_node, yaml.ScalarNode):
                raise _RefusedError(line, "a key is a list or a mapping; keys are names")
            key = _scalar(key_node)
            if key_node.style is None and key == "<<":
                raise _RefusedError(line, "merge keys (<<) are not supported; repeat the keys")
            if not isinstance(key, str):
                raise _RefusedError(line, f"the key {_shown(str(key_node.value))} is not a name")
            if key in seen:
                raise _RefusedError(
                    line, f"duplicate key {_shown(key)}, first given in line {seen[key]}; keep one"
                )
            seen[key] = line
            here = (*path, key)
            self.lines[here] = line
            values[key] = self.build(value_node, here)
        return values


def _decode(data: bytes, source: str) -> str:
    if len(data) > MAX_BYTES:
        raise ConfigFileError(
            source, None, f"larger than {MAX_BYTES // 1024} KiB; that is no configuration file"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigFileError(
            source, line, f"not UTF-8 (byte 0x{data[error.start]:02x}); save the file as UTF-8"
        ) from None


def _reason(error: yaml.YAMLError, text: str) -> tuple[int | None, str]:
    """Line and a one-line reason of a PyYAML error."""
    if isinstance(error, yaml.reader.ReaderError):
        # A control character; the reader gives it as a number, or as bytes for other encodings.
        code = error.character if isinstance(error.character, int) else ord(error.character)
        return text.count("\n", 0, error.position) + 1, f"the character U+{code:04X} is not allowed"
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line = None if mark is None else int(mark.line) + 1
    problem = getattr(error, "problem", None) or "not valid YAML"
    lines = text.splitlines()
    if line is not None and line <= len(lines) and "\t" in lines[line - 1]:
        return line, f"a tab: indent and separate with spaces ({problem})"
    if "expected a single document" in str(getattr(error, "context", "")):
        return line, "more than one document; a configuration file holds one"
    return line, " ".join(str(problem).split())


def _parse(text: str, source: str) -> tuple[Any, dict[ConfigPath, int]]:
    loader: _Loader | None = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        builder = _Builder()
        value = None if node is None else builder.build(node, ())
    except yaml.YAMLError as error:
        line, reason = _reason(error, text)
        raise ConfigFileError(source, line, reason) from None
    except _RefusedError as refused:
        raise ConfigFileError(source, refused.line, refused.reason) from None
    finally:
        if loader is not None:
            loader.dispose()
    return value, builder.lines


def parse_yaml_value(text: str, source: str) -> Any:
    """One YAML value of any type, read with the rules of this module.

    Args:
        text: The YAML text.
        source: What the text is, for error messages.

    Returns:
        Plain Python values: dict, list, str, int, float, bool or None.

    Raises:
        ConfigFileError: The text is not acceptable.
    """
    return _parse(_decode(text.encode(), source), source)[0]


def load_yaml_text(text: str | bytes, source: str) -> YamlDocument:
    """A configuration mapping from YAML text; see `load_yaml_file`."""
    decoded = _decode(text if isinstance(text, bytes) else text.encode(), source)
    value, lines = _parse(decoded, source)
    if value is None:
        value = {}
    if not isinstance(value, dict):
        kind = "a list" if isinstance(value, list) else "a single value"
        raise ConfigFileError(
            source, lines.get((), 1), f"the file holds {kind}; it must hold a mapping (key: value)"
        )
    return YamlDocument(source, value, lines)


def load_yaml_file(path: str | PathLike[str]) -> YamlDocument:
    """Reads a configuration file.

    Args:
        path: A YAML file: UTF-8, one document, a mapping at the root, at most 256 KiB, 10 000
            values and 64 levels. An empty file is an empty mapping.

    Returns:
        The values and their lines.

    Raises:
        ConfigFileError: The file cannot be read or is not acceptable; one line that says where.
    """
    source = str(path)
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigFileError(source, None, f"cannot be read: {error.strerror}") from error
    return load_yaml_text(data, source)
