# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Flags made from fields of models, and the check of flags, file and `--set` together."""

import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, Union, get_args, get_origin

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

    from tensorrt_llm_ext.llmapi.llm_args import ServeConfig
    from tensorrt_llm_ext.llmapi.overrides import Layer
    from tensorrt_llm_ext.llmapi.problems import CheckedConfig

set_option = click.option(
    "--set",
    "overrides",
    metavar="PATH=VALUE",
    multiple=True,
    help="Replace a value of the file, for example multimodal_config.encoder_cuda_graph.image."
    "max_batch_size=8. VALUE is YAML. Repeatable. Not for secrets: others can see arguments. "
    "[beta]",
)


class FieldOption(click.Option):
    """A flag for a field of a model: type, help, default and status are the field's.

    For click it has no default: a flag that is not given says nothing.

    Args:
        declarations: The long flag, and its aliases.
        model: The model.
        path: Keys from the model to the field.
        **attributes: Passed on to `click.Option`; what is given here wins over the field.
    """

    def __init__(
        self,
        declarations: Sequence[str],
        *,
        model: "type[BaseModel]",
        path: tuple[str, ...],
        **attributes: Any,
    ) -> None:
        field = _field_at(model, path)
        super().__init__(declarations, default=None, **{**_described(field, path), **attributes})
        self.model = model
        self.path = path
        self.field_default = field.default


def field_option(model: "type[BaseModel]", path: str, *declarations: str, **attributes: Any) -> Any:
    """Decorator that adds a `FieldOption`.

    Args:
        model: The model.
        path: Dotted path of the field.
        *declarations: The long flag and its aliases; left out, the flag has the field's name.
        **attributes: See `FieldOption`.
    """
    keys = tuple(path.split("."))
    kind = _plain(_field_at(model, keys).annotation)
    if not declarations:
        name = keys[-1]
        # What is on by default needs a word that turns it off.
        on_by_default = kind is bool and _field_at(model, keys).default is True
        declarations = (f"--{name}/--no_{name}" if on_by_default else f"--{name}",)
    return click.option(*declarations, cls=FieldOption, model=model, path=keys, **attributes)


def _field_at(model: Any, path: tuple[str, ...]) -> "FieldInfo":
    for key in path[:-1]:
        model = model.model_fields[key].annotation
    field: FieldInfo = model.model_fields[path[-1]]
    return field


def _plain(annotation: Any) -> Any:
    """The type behind `Annotated` and `| None`."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        (kind,) = (part for part in get_args(annotation) if part is not type(None))
        return _plain(kind)
    return annotation


def _described(field: "FieldInfo", path: tuple[str, ...]) -> dict[str, Any]:
    """What click is to know of a field."""
    kind = _plain(field.annotation)
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    default = "unset" if field.default is None else str(field.default).lower()
    text = f"{field.description} [default: {default}] [{extra['status']}]"
    if len(path) > 1:
        text = f"{'.'.join(path)}: {text}"
    if kind is bool:
        return {"is_flag": True, "help": text}
    if get_origin(kind) is Literal:
        return {"type": click.Choice(get_args(kind)), "help": text}
    return {"type": kind, "help": text}


def given_options(ctx: click.Context, model: "type[BaseModel]") -> Iterator["Layer"]:
    """A layer for each flag of a model that was given on the command line."""
    from tensorrt_llm_ext.llmapi.overrides import Layer

    for option in ctx.command.params:
        if not isinstance(option, FieldOption) or option.model is not model or not option.name:
            continue
        if ctx.get_parameter_source(option.name) is ParameterSource.COMMANDLINE:
            values: Any = ctx.params[option.name]
            for key in reversed(option.path):
                values = {key: values}
            yield Layer(option.opts[0], values)


def checked_config(
    file: Path | None, overrides: Sequence[str], flags: Sequence["Layer"] = ()
) -> "ServeConfig":
    """The configuration; prints every problem and leaves where there is one."""
    from tensorrt_llm_ext.llmapi.problems import check_serve_config

    return accepted(check_serve_config(file, overrides, flags))


def accepted(checked: "CheckedConfig") -> "ServeConfig":
    """The configuration that was checked; prints every problem and leaves where there is one."""
    if checked.merged is not None:
        note(*checked.merged.replaced)
    if checked.config is None:
        fail(*map(str, checked.problems))
    note(*checked.config.notices)
    return checked.config


def note(*notes: object) -> None:
    """Print a line for each thing that the user should know."""
    for text in notes:
        click.echo(f"note: {text}", err=True)


def fail(*problems: str) -> NoReturn:
    """Print a line for each problem and leave with exit code 1."""
    for problem in problems:
        click.echo(f"error: {problem}", err=True)
    sys.exit(1)
