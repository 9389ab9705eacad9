# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The command `trtllm-ext`."""

import importlib
import json
import sys
from pathlib import Path

import click

from tensorrt_llm_ext import __version__
from tensorrt_llm_ext.commands.options import checked_config, fail, set_option
from tensorrt_llm_ext.trtllm.commands import doctor, print_expanded, print_module_dir


class Commands(click.Group):
    """The commands below, and those of modules that are imported when they are asked for."""

    modules = ("serve",)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands."""
        return sorted([*super().list_commands(ctx), *self.modules])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name."""
        if cmd_name not in self.modules:
            return super().get_command(ctx, cmd_name)
        module = importlib.import_module(f"tensorrt_llm_ext.commands.{cmd_name}")
        command: click.Command = getattr(module, cmd_name)
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="trtllm-ext")
def main() -> None:
    """Multimodal encoders with CUDA graphs, beside TensorRT-LLM or on their own."""


for _command in (doctor, print_module_dir, print_expanded):
    main.add_command(_command)


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@set_option
def validate(file: Path, overrides: tuple[str, ...]) -> None:
    """Check a configuration FILE (beta).

    Prints ok, or every problem with its line, path, bad value and what is allowed; exit code 1.
    """
    checked_config(file, overrides)
    click.echo("ok")


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    help="Checkpoint folder; of it config.json alone is read. Left out: the FILE's model. [beta]",
)
@set_option
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
    config = checked_config(file, overrides)
    source = model or config.model
    if source is None:
        fail(f"{file} names no model: give --model DIR")
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
        fail(str(error))
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
