# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The command `trtllm-ext`."""

import sys
from pathlib import Path

import click

from tensorrt_llm_ext import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="trtllm-ext")
def main() -> None:
    """Multimodal encoders with CUDA graphs, beside TensorRT-LLM or on their own."""


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--set",
    "overrides",
    metavar="PATH=VALUE",
    multiple=True,
    help="Replace a value of the file, for example multimodal_config.encoder_cuda_graph.image."
    "max_batch_size=8. VALUE is YAML. Repeatable. Not for secrets: others can see arguments. "
    "[beta]",
)
def validate(file: Path, overrides: tuple[str, ...]) -> None:
    """Check a configuration FILE (beta).

    Prints ok, or every problem with its line, path, bad value and what is allowed; exit code 1.
    """
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
    click.echo("ok")


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
