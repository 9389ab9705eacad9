# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Commands of `trtllm-ext` about TensorRT-LLM: `doctor`, `module-dir`, `expand`."""

import json
import sys
from pathlib import Path

import click

from ..commands.options import fail, note


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON. [beta]")
def doctor(as_json: bool) -> None:
    """Print what TensorRT-LLM is installed, what registered with it and what did not (beta).

    Imports TensorRT-LLM where it is there. Exit code 1 where it is and nothing registered.
    """
    from .doctor import diagnose

    found = diagnose()
    click.echo(json.dumps(found.as_dict(), indent=2) if as_json else found.render())
    sys.exit(0 if found.healthy else 1)


@click.command("module-dir")
def print_module_dir() -> None:
    """Print the folder for `trtllm-serve --custom_module_dirs` (beta)."""
    from .arrival import module_dir

    click.echo(module_dir())


@click.command("expand")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    help="Checkpoint folder; of it config.json alone is read. Left out: the FILE's model. [beta]",
)
def print_expanded(file: Path, model: Path | None) -> None:
    """Print a configuration FILE in TensorRT-LLM's own keys (beta).

    The result is for `trtllm-serve --config` of every version, with or without this package; what
    had to be left out is printed to standard error.
    """
    import yaml

    from ..llmapi.yaml_io import ConfigFileError, load_yaml_file
    from .expand import expand

    try:
        expanded = expand(load_yaml_file(file).values, model)
    except (ConfigFileError, ValueError) as error:
        fail(str(error))
    note(*expanded.notes)
    click.echo(yaml.safe_dump(expanded.values, sort_keys=False), nl=False)
