# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``commands/serve.py``: reads its options as upstream does, starts the model, answers.

Precedence: ``--set`` over explicit flags over the YAML over defaults. Instead of serving HTTP it
says what it made of its options and exits.
"""

from __future__ import annotations

import json
from typing import Any

import click
import yaml
from click.core import ParameterSource
from PIL import Image

from tensorrt_llm.llmapi.llm import LLM
from tensorrt_llm.llmapi.llm_args import update_llm_args_with_extra_options
from tensorrt_llm.llmapi.mm_encoder import MultimodalEncoder
from tensorrt_llm.tools.importlib_utils import import_custom_module

_RESERVED = ("model", "backend")


def _apply_set(args: dict[str, Any], overrides: tuple[str, ...]) -> dict[str, Any]:
    for override in overrides:
        path, found, value = override.partition("=")
        if not found:
            raise click.BadParameter(f"--set wants PATH=YAML_VALUE, got {override!r}")
        keys = path.split(".")
        if keys[0] in _RESERVED:
            raise click.BadParameter(f"--set cannot change {keys[0]!r}")
        place = args
        for key in keys[:-1]:
            inner = place.get(key)
            if hasattr(inner, "model_dump"):
                inner = inner.model_dump(exclude_unset=True)
            place[key] = dict(inner or {})
            place = place[key]
        place[keys[-1]] = yaml.safe_load(value)
    return args


class DefaultGroup(click.Group):
    """``trtllm-serve MODEL`` means ``trtllm-serve serve MODEL``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = ["serve", *args]
        return super().parse_args(ctx, args)


@click.group(cls=DefaultGroup)
def main() -> None:
    """Double of ``trtllm-serve``."""


@main.command("serve")
@click.argument("model", type=str)
@click.option("--host", type=str, default="localhost")
@click.option("--port", type=int, default=8000)
@click.option("--backend", type=str, default="pytorch")
@click.option("--custom_module_dirs", type=click.Path(exists=True), default=None, multiple=True)
@click.option("--max_batch_size", type=int, default=2048)
@click.option("--max_num_tokens", type=int, default=8192)
@click.option("--max_seq_len", type=int, default=None)
@click.option("--tp_size", "--tensor_parallel_size", "tp_size", type=int, default=1)
@click.option("--trust_remote_code", is_flag=True, default=False)
@click.option("--config", "--extra_llm_api_options", "extra_llm_api_options", type=str)
@click.option("--set", "overrides", type=str, multiple=True)
@click.pass_context
def serve(
    ctx: click.Context,
    model: str,
    host: str,
    port: int,
    backend: str,
    custom_module_dirs: tuple[str, ...],
    max_batch_size: int,
    max_num_tokens: int,
    max_seq_len: int | None,
    tp_size: int,
    trust_remote_code: bool,
    extra_llm_api_options: str | None,
    overrides: tuple[str, ...],
) -> None:
    for custom_module_dir in custom_module_dirs:
        import_custom_module(custom_module_dir)
    args: dict[str, Any] = {
        "model": model,
        "max_batch_size": max_batch_size,
        "max_num_tokens": max_num_tokens,
        "max_seq_len": max_seq_len,
        "tensor_parallel_size": tp_size,
        "trust_remote_code": trust_remote_code,
    }
    explicit = {
        name for name in args if ctx.get_parameter_source(name) == ParameterSource.COMMANDLINE
    }
    args = update_llm_args_with_extra_options(args, extra_llm_api_options, explicit)
    args = _apply_set(args, overrides)
    llm = LLM(**args)
    answer = llm.generate({"prompt": "Hello"})
    config = llm.args.multimodal_config.model_dump(mode="json")
    click.echo(json.dumps({"serving": model, "multimodal_config": config}))
    click.echo(json.dumps({"answer": answer.outputs[0].token_ids[:4]}))
    llm.shutdown()


@main.command("mm_embedding_serve")
@click.argument("model", type=str)
@click.option("--host", type=str, default="localhost")
@click.option("--port", type=int, default=8000)
@click.option("--max_batch_size", type=int, default=2048)
@click.option("--max_num_tokens", type=int, default=16384)
@click.option("--tensor_parallel_size", type=int, default=1)
@click.option("--config", "--extra_encoder_options", "extra_encoder_options", type=str)
def serve_encoder(
    model: str,
    host: str,
    port: int,
    max_batch_size: int,
    max_num_tokens: int,
    tensor_parallel_size: int,
    extra_encoder_options: str | None,
) -> None:
    """It takes no ``--custom_module_dirs`` and no ``--set``."""
    args = {
        "model": model,
        "max_batch_size": max_batch_size,
        "max_num_tokens": max_num_tokens,
        "tensor_parallel_size": tensor_parallel_size,
    }
    llm = MultimodalEncoder(**update_llm_args_with_extra_options(args, extra_encoder_options))
    picture = Image.new("RGB", (64, 64))
    answer = llm.generate({"prompt": "", "multi_modal_data": {"image": [picture]}})
    click.echo(json.dumps({"serving": model, "rows": len(answer.double_embeddings)}))
    llm.shutdown()


if __name__ == "__main__":
    main()
