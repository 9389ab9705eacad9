# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Write or check ``api_manifest.json``, the list of everything that users can name.

    python scripts/api_manifest.py            # rewrite it
    python scripts/api_manifest.py --check    # exit 1 and print the difference when it is stale

It holds every argument of the public functions, constructors and methods, every field of the
pydantic models with type, default and status, and every command and flag of the command line. It is
committed, so that an addition, a removal or a changed default shows in review.
"""

from __future__ import annotations

import argparse
import difflib
import enum
import importlib
import inspect
import json
import pkgutil
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "tensorrt_llm_ext"

# Modules whose __all__ is the public surface.
PUBLIC_MODULES = (
    PACKAGE,
    *(f"{PACKAGE}.{name}" for name in ("llmapi", "towers", "graphs", "media", "serve")),
)
# What public methods return, and users read.
RESULTS = {f"{PACKAGE}.engine.results": ("CompletionOutput", "RequestOutput")}
# Packages whose pydantic models users construct or read.
MODEL_PACKAGES = (f"{PACKAGE}.llmapi", f"{PACKAGE}.graphs", f"{PACKAGE}.serve")

Json = dict[str, Any]


def build_manifest() -> Json:
    """Collect the manifest of the installed package."""
    cli = importlib.import_module(f"{PACKAGE}.cli")
    objects: Json = {}
    seen: dict[int, str] = {}
    for name in PUBLIC_MODULES:
        module = importlib.import_module(name)
        objects.update(describe_module(module, module.__all__, seen))
    for name, results in RESULTS.items():
        objects.update(describe_module(importlib.import_module(name), results, seen))
    models: Json = {}
    for name in MODEL_PACKAGES:
        for module in walk_modules(importlib.import_module(name)):
            models.update(describe_models(module))
    return {"api": objects, "models": models, "cli": describe_command(cli.main, "trtllm-ext")}


def walk_modules(package: ModuleType) -> Iterator[ModuleType]:
    """Import and yield a package and every module in it."""
    yield package
    for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        yield importlib.import_module(info.name)


def describe_module(module: ModuleType, names: Iterable[str], seen: dict[int, str]) -> Json:
    """Describe functions and classes of a module.

    Pydantic models are left to `describe_models`: their arguments are their fields.

    Args:
        module: The module.
        names: The names to describe.
        seen: Key of each object described before, by id; one with two names is described once.

    Returns:
        Name to description, or to the key of its description.
    """
    out: Json = {}
    for name in sorted(names):
        value = getattr(module, name)
        if not callable(value):
            continue
        key = f"{module.__name__}.{name}"
        if seen.setdefault(id(value), key) != key:
            out[key] = f"see {seen[id(value)]}"
        elif inspect.isclass(value):
            out[key] = describe_class(value)
        else:
            out[key] = describe_arguments(value)
    return out


def describe_class(cls: type) -> Json:
    """Describe constructor, public methods and properties that this project defined."""
    out: Json = {}
    if not issubclass(cls, BaseModel):
        out["__init__"] = describe_arguments(cls)
    for base in reversed(cls.__mro__):
        if base.__module__.split(".")[0] != cls.__module__.split(".")[0]:
            continue
        for name, value in vars(base).items():
            if name.startswith("_"):
                continue
            if isinstance(value, staticmethod | classmethod):
                value = value.__func__
            if inspect.isfunction(value):
                out[name] = describe_arguments(value)
            elif isinstance(value, property):
                out[name] = "property"
    return dict(sorted(out.items()))


def describe_arguments(function: Any) -> Json:
    """Describe each argument but self: annotation, default, and how it is passed."""
    out: Json = {}
    try:
        signature = inspect.signature(function)
    except ValueError:  # a subclass of dict, say: what it takes is its base's business
        return out
    for name, parameter in signature.parameters.items():
        if name in ("self", "cls"):
            continue
        entry: Json = {}
        if parameter.annotation is not parameter.empty:
            written = getattr(parameter.annotation, "__forward_arg__", None)  # a named tuple's
            shown = written or inspect.formatannotation(parameter.annotation).strip("'")
            entry["type"] = _no_address(shown)
        if parameter.default is not parameter.empty:
            entry["default"] = to_json(parameter.default)
        if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
            entry["kind"] = parameter.kind.description
        out[name] = entry
    return out


def describe_models(module: ModuleType) -> Json:
    """Describe the public pydantic models that a module defines."""
    out: Json = {}
    for name, value in sorted(vars(module).items()):
        if (
            inspect.isclass(value)
            and issubclass(value, BaseModel)
            and value.__module__ == module.__name__
            and not name.startswith("_")
        ):
            out[f"{module.__name__}.{name}"] = describe_model(value)
    return out


def describe_model(model: type[BaseModel]) -> Json:
    """Describe every field of a model: type, default or required, status."""
    properties = model.model_json_schema(by_alias=False).get("properties", {})
    out: Json = {}
    for name, field in sorted(model.model_fields.items()):
        entry: Json = {"type": type_name(properties.get(name, {}))}
        if field.is_required():
            entry["required"] = True
        else:
            entry["default"] = _field_default(field)
        extra = field.json_schema_extra
        if isinstance(extra, dict) and "status" in extra:
            entry["status"] = extra["status"]
        out[name] = entry
    return out


def _field_default(field: FieldInfo) -> Any:
    if field.default_factory is not None:
        return f"{getattr(field.default_factory, '__name__', 'factory')}()"
    return to_json(field.default)


# Keywords that say nothing about which values are allowed.
_NOT_TYPE = {"title", "description", "default", "examples", "status", "deprecated", "type"}


def type_name(schema: Json) -> str:
    """A JSON schema in one line: ``integer (minimum 1) | null``."""
    if "$ref" in schema:
        return str(schema["$ref"]).rsplit("/", 1)[-1]
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " | ".join(type_name(option) for option in schema[key])
    if "const" in schema or "enum" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " | ".join(json.dumps(value) for value in values)
    rest = {key: value for key, value in schema.items() if key not in _NOT_TYPE}
    kind = schema.get("type", "any")
    base = " | ".join(kind) if isinstance(kind, list) else str(kind)
    if "prefixItems" in rest:
        base = f"[{', '.join(type_name(item) for item in rest.pop('prefixItems'))}]"
        rest.pop("minItems", None)
        rest.pop("maxItems", None)
    elif isinstance(rest.get("items"), dict):
        base = f"array[{type_name(rest.pop('items'))}]"
    elif isinstance(rest.get("additionalProperties"), dict):
        base = f"object[{type_name(rest.pop('additionalProperties'))}]"
    if not rest:
        return base
    limits = ", ".join(
        f"{key} {value if isinstance(value, int | float) else json.dumps(value, sort_keys=True)}"
        for key, value in sorted(rest.items())
    )
    return f"{base} ({limits})"


def describe_command(command: click.Command, path: str) -> Json:
    """Describe a command and its subcommands: every argument and flag with type and default."""
    flags: Json = {}
    for parameter in command.params:
        long = sorted(parameter.opts, key=len)[-1]
        entry: Json = {"type": _click_type(parameter)}
        if parameter.required:
            entry["required"] = True
        else:
            # A flag made from a field has no default of its own.
            default = to_json(getattr(parameter, "field_default", parameter.default))
            is_off = default is None and entry["type"] == "flag"
            entry["default"] = False if is_off else default
        others = sorted({*parameter.opts, *parameter.secondary_opts} - {long})
        if others:
            entry["also"] = others
        if parameter.multiple if isinstance(parameter, click.Option) else parameter.nargs != 1:
            entry["multiple"] = True
        flags[long if isinstance(parameter, click.Option) else long.upper()] = entry
    out: Json = {path: dict(sorted(flags.items()))}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            if (sub := command.get_command(context, name)) is not None:
                out.update(describe_command(sub, f"{path} {name}"))
    return out


def _click_type(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return "flag"
    if isinstance(parameter.type, click.Choice):
        return " | ".join(str(choice) for choice in parameter.type.choices)
    return parameter.type.name


def to_json(value: Any) -> Any:
    """A default as JSON; what JSON cannot say becomes its repr without memory addresses."""
    if type(value).__name__ == "Sentinel":  # click's "no default given"
        return None
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Path):
        return value.as_posix()
    if isinstance(value, enum.Enum):
        return to_json(value.value)
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return _no_address(repr(value))


def _no_address(text: str) -> str:
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def dump(manifest: Json) -> str:
    """The manifest as the text of the file."""
    return json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"


def difference(committed: str, generated: str) -> str:
    """A unified diff, empty when the two texts are equal."""
    lines = difflib.unified_diff(
        committed.splitlines(), generated.splitlines(), "committed", "generated", "", n=4
    )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 when stale")
    parser.add_argument("--file", type=Path, default=ROOT / "api_manifest.json")
    args = parser.parse_args(argv)
    generated = dump(build_manifest())
    if not args.check:
        args.file.write_text(generated, encoding="utf-8")
        return 0
    committed = args.file.read_text(encoding="utf-8") if args.file.exists() else ""
    diff = difference(committed, generated)
    if diff:
        print(diff)
        print(f"{args.file.name} is stale: run `make manifest` and review it", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
