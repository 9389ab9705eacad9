# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The command `trtllm-ext`."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tensorrt_llm_ext import __version__
from tensorrt_llm_ext.trtllm.commands import doctor, print_expanded, print_module_dir

if TYPE_CHECKING:
    from tensorrt_llm_ext.llmapi.llm_args import ServeConfig


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="trtllm-ext")
def main() -> None:
    """Multimodal encoders with CUDA graphs, beside TensorRT-LLM or on their own."""


for _command in (doctor, print_module_dir, print_expanded):
    main.add_command(_command)

_set_option = click.option(
    "--set",
    "overrides",
    metavar="PATH=VALUE",
    multiple=True,
    help="Replace a value of the file, for example multimodal_config.encoder_cuda_graph.image."
    "max_batch_size=8. VALUE is YAML. Repeatable. Not for secrets: others can see arguments. "
    "[beta]",
)


def _checked(file: Path, overrides: tuple[str, ...]) -> "ServeConfig":
    """The configuration; prints every problem and leaves where there is one."""
    from tensorrt_llm_ext.llmapi.problems import check_serve_config

    checked = check_serve_config(file, overrides)
    if checked.merged is not None:
        for replaced in checked.merged.replaced:
            click.echo(f"note: {replaced}", err=True)
    if checked.config is None:
        for problem in checked.problems:
            click.echo(f"error: {problem}", err=True)
        sys.exit(1)
    for notice in checked.config.notices:
        click.echo(f"note: {notice}", err=True)
    return checked.config


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@_set_option
def validate(file: Path, overrides: tuple[str, ...]) -> None:
    """Check a configuration FILE (beta).

    Prints ok, or every problem with its line, path, bad value and what is allowed; exit code 1.
    """
    _checked(file, overrides)
    click.echo("ok")


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    help="Checkpoint folder; of it config.json alone is read. Left out: the FILE's model. [beta]",
)
@_set_option
@click.option(
    "--device",
    type=click.Choice(["cuda", "cpu"]),
    help="Kind of device to plan for; it need not be there. Left out: the FILE's, cuda for auto. "
    "[beta]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON. [beta]")
def plan(
    file: Path, model: Path | None, overrides: tuple[str, ...], device: str | None, as_json: bool
) -> None:
    """Print what a configuration FILE would capture and the memory it would take (beta).

    Needs neither a GPU nor weights. Bytes of static tensors are exact, the rest is an estimate.
    """
    config = _checked(file, overrides)
    source = model or config.model
    if source is None:
        click.echo(f"error: {file} names no model: give --model DIR", err=True)
        sys.exit(1)
    import torch

    from tensorrt_llm_ext.towers.planning import plan_encoder_cuda_graphs

    try:
        result = plan_encoder_cuda_graphs(
            source,
            config.multimodal_config,
            max_num_tokens=config.encoder_token_budget,
            device=device or ("cpu" if config.device == "cpu" else "cuda"),
            dtype=None if config.dtype == "auto" else getattr(torch, config.dtype),
        )
    except ValueError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
    click.echo(result.model_dump_json(indent=2) if as_json else result.render())


@main.command("collect-env")
@click.option("--json", "as_json", is_flag=True, help="Print JSON. [beta]")
def collect_env(as_json: bool) -> None:
    """Print versions, devices, backends and our variables, for a bug report (beta).

    No secrets and nothing that names the machine.
    """
    from tensorrt_llm_ext.collect_env import collect, render

    facts = collect()
    click.echo(json.dumps(facts, indent=2) if as_json else render(facts))


@main.command()
@click.option(
    "--output_dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("schemas"),
    show_default=True,
    help="Folder of the JSON schemas. [beta]",
)
@click.option(
    "--docs_dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("docs"),
    show_default=True,
    help="Folder of the page about upstream keys. [beta]",
)
@click.option("--check", is_flag=True, help="Write nothing; fail if a file is not fresh. [beta]")
def schema(output_dir: Path, docs_dir: Path, check: bool) -> None:
    """Write the JSON schemas and the page of upstream keys, generated from the models (beta)."""
    from tensorrt_llm_ext.llmapi.schema import stale_files, write_files

    if not check:
        for path in write_files(output_dir, docs_dir):
            click.echo(f"wrote {path}")
        return
    stale = stale_files(output_dir, docs_dir)
    for path, why in stale.items():
        click.echo(f"error: {path}: {why}", err=True)
    if stale:
        click.echo("run `trtllm-ext schema` and commit the result", err=True)
        sys.exit(1)
    click.echo("ok")


if __name__ == "__main__":
    main()
