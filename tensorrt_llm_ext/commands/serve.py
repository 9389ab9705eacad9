# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""`trtllm-ext serve`: file, flags and `--set` to one checked configuration, then the server."""

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from tensorrt_llm_ext.commands.options import (
    checked_config,
    fail,
    field_option,
    given_options,
    set_option,
)
from tensorrt_llm_ext.llmapi.llm_args import ServeConfig
from tensorrt_llm_ext.llmapi.overrides import Layer, merge
from tensorrt_llm_ext.llmapi.problems import COMMAND_LINE, problems_of
from tensorrt_llm_ext.llmapi.yaml_io import YamlDocument
from tensorrt_llm_ext.serve import HttpOptions

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
    """
    flags = list(given_options(ctx, ServeConfig))
    if model is not None:
        flags.insert(0, Layer("MODEL", {"model": model}))
    config = checked_config(config_file, overrides, flags)
    if config.model is None:
        fail("no model: give its folder, trtllm-ext serve MODEL, or the file's key model")
    http = _checked_http(ctx, _api_key(api_key_file))
    try:
        from tensorrt_llm_ext.serve import run
    except ModuleNotFoundError as error:
        fail(f"serving needs {error.name}: pip install 'tensorrt_llm_ext[serve]'")
    sys.exit(run(config, http))


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
