# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""`trtllm-ext serve`: file, flags and `--set` to one checked configuration, then the server."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import click
from pydantic import ValidationError

from tensorrt_llm_ext.commands.options import (
    accepted,
    fail,
    field_option,
    given_options,
    note,
    set_option,
)
from tensorrt_llm_ext.llmapi.llm_args import ServeConfig
from tensorrt_llm_ext.llmapi.overrides import Layer, merge
from tensorrt_llm_ext.llmapi.problems import COMMAND_LINE, check_serve_config, problems_of
from tensorrt_llm_ext.llmapi.yaml_io import YamlDocument
from tensorrt_llm_ext.serve import HttpOptions
from tensorrt_llm_ext.trtllm import HandOver, serve_command, wants_hand_over

API_KEY_VARIABLE = "TRTLLM_EXT_API_KEY"
_MAX_KEY = 4096
LOG_LEVELS = {
    "internal_error": "error",
    "error": "error",
    "warning": "warning",
    "info": "info",
    "verbose": "debug",
    "debug": "debug",
    "trace": "debug",
}
"""TensorRT-LLM's levels, and which of ours each is."""

_NO_MODEL = "no model: give its folder, trtllm-ext serve MODEL, or the file's key model"
_UPSTREAM_HAS = {"host", "port", "served_model_name", "log_level"}
"""Flags of ours that trtllm-serve has, with the same meaning and values."""

_config = partial(field_option, ServeConfig)


def _http_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds a flag for every field of `HttpOptions` but the key, which no argument may hold."""
    for name in reversed(HttpOptions.model_fields):
        levels = {"type": click.Choice(list(LOG_LEVELS))} if name == "log_level" else {}
        if name != "api_key":
            command = field_option(HttpOptions, name, **levels)(command)
    return command


@click.command()
@click.argument("model", required=False)
@click.option(
    "--config",
    "--extra_llm_api_options",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="YAML file with the configuration; examples/serve has some. [stable]",
)
@set_option
@_config("tokenizer", metavar="DIR")
@_config("trust_remote_code")
@_config("backend")
@_config("device", metavar="DEVICE")
@_config("dtype")
@_config("max_batch_size")
@_config("max_num_tokens")
@_config("max_seq_len")
@_config(
    "kv_cache_config.free_gpu_memory_fraction",
    "--kv_cache_free_gpu_memory_fraction",
    "--free_gpu_memory_fraction",
)
@_http_options
@click.option(
    "--api_key_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File that holds the key which clients must send (Authorization: Bearer KEY). Left out: "
    f"the environment variable {API_KEY_VARIABLE}; without it no key is asked for. [beta]",
)
@click.pass_context
def serve(
    ctx: click.Context,
    model: str | None,
    config_file: Path | None,
    overrides: tuple[str, ...],
    api_key_file: Path | None,
    **fields: Any,
) -> None:
    """Serve the checkpoint folder MODEL over HTTP, for OpenAI's clients and others (beta).

    Precedence: defaults, then the file, then flags, then --set; mappings are merged key by key.
    What is wrong is reported before weights are loaded, a line each, and the exit code is 1.

    Where TensorRT-LLM is installed (--backend auto) or asked for, trtllm-serve takes over with the
    same file and flags, and this package inside it.
    """
    flags = list(given_options(ctx, ServeConfig))
    if model is not None:
        flags.insert(0, Layer("MODEL", {"model": model}))
    checked = check_serve_config(config_file, overrides, flags)
    if checked.merged is not None and wants_hand_over(checked.merged.values):
        note(*checked.merged.replaced)
        _hand_over(checked.merged.values, list(given_options(ctx, HttpOptions)), api_key_file)
    config = accepted(checked)
    if config.model is None:
        fail(_NO_MODEL)
    http = _checked_http(ctx, _api_key(api_key_file))
    try:
        from tensorrt_llm_ext.serve import run
    except ModuleNotFoundError as error:
        fail(f"serving needs {error.name}: pip install 'tensorrt_llm_ext[serve]'")
    sys.exit(run(config, http))


def _hand_over(
    values: Mapping[str, Any], http: Sequence[Layer], api_key_file: Path | None
) -> NoReturn:
    """Becomes ``trtllm-serve``; leaves where that cannot do what was asked."""
    if not values.get("model"):
        fail(_NO_MODEL)
    theirs = [layer for layer in http if layer.values.keys() <= _UPSTREAM_HAS]
    ours = [layer.source for layer in http if layer not in theirs]
    if api_key_file is not None:
        ours.append("--api_key_file")
    if "media_limits" in values:
        ours.append("media_limits")
    if API_KEY_VARIABLE in os.environ:  # nobody would ask for it
        ours.append(API_KEY_VARIABLE)
    if ours:
        fail(
            f"{', '.join(ours)}: of the embedded server only, and TensorRT-LLM's trtllm-serve "
            "takes over here; leave it out, or use --backend torch"
        )
    words = [str(word) for layer in theirs for word in (layer.source, *layer.values.values())]
    call = serve_command(values["model"], values, words)
    if not isinstance(call, HandOver):
        fail(call.reason)
    note(f"TensorRT-LLM is the host (--backend torch: not): {' '.join(call.argv)}")
    try:
        call.go()
    except OSError as error:
        fail(f"{call.argv[0]} cannot be started: {error.strerror}")


def _checked_http(ctx: click.Context, api_key: str | None) -> HttpOptions:
    """The server's own options; prints every problem and leaves where there is one."""
    merged = merge(*given_options(ctx, HttpOptions))
    values = {**merged.values, "api_key": api_key}
    if "log_level" in values:
        values["log_level"] = LOG_LEVELS[values["log_level"]]
    try:
        return HttpOptions.model_validate(values)
    except ValidationError as error:
        document = YamlDocument(COMMAND_LINE, {})
        fail(*map(str, problems_of(error, document, merged, HttpOptions)))


def _api_key(file: Path | None) -> str | None:
    """The key from the file, or else from the environment; leaves where it is no key."""
    if file is None:
        source, key = API_KEY_VARIABLE, os.environ.get(API_KEY_VARIABLE)
        if key is None:
            return None
    else:
        source = str(file)
        try:
            with file.open("rb") as opened:
                key = opened.read(_MAX_KEY + 1).decode("ascii", "replace").strip()
        except OSError as error:
            fail(f"--api_key_file {file}: cannot be read: {error.strerror}")
    # The value is a secret: what is wrong with it is said without it.
    if not key or len(key) > _MAX_KEY or not all("!" <= character <= "~" for character in key):
        fail(
            f"{source}: no key: it must be 1 to {_MAX_KEY} visible ASCII characters without spaces"
        )
    return key
