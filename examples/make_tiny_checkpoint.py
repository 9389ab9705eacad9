# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Build a small random-weight checkpoint of a real architecture, with tokenizer and chat template.

    python examples/make_tiny_checkpoint.py --family qwen3_vl --out build/tiny_qwen3_vl

The result is an ordinary Hugging Face folder: everything that loads a published model of the family
loads it. RADIO has no language model and no tokenizer; Nemotron Omni comes without its own. Answers
are nonsense, but logits and features depend on every picture, sound, weight and bias, so a wrong
encoder cannot hide behind them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from tiny.architectures import FAMILIES, build_model, generation_config
from tiny.preprocessors import preprocessor_files
from tiny.tokenizers_of import QWEN, VOCAB_SIZE, build_tokenizer
from transformers.utils import logging

DTYPES = ("float32", "bfloat16", "float16")
SPECIAL_TOKENS = QWEN.special

__all__ = ["DTYPES", "FAMILIES", "SPECIAL_TOKENS", "VOCAB_SIZE", "make_tiny_checkpoint"]


def make_tiny_checkpoint(
    out: str | Path,
    family: str = "qwen3_vl",
    seed: int = 0,
    *,
    dtype: str = "float32",
    **sections: dict[str, Any],
) -> Path:
    """Write a tiny checkpoint and return its folder.

    The same arguments give the same weights. The tokenizer is trained on the running Python's own
    standard library, so its merges may differ between Python versions.

    Args:
        out: Folder to write; created when missing, files in it are replaced.
        family: Architecture, one of ``FAMILIES``.
        seed: Seed of the weights.
        dtype: Dtype of the saved weights, one of ``DTYPES``.
        **sections: ``vision``, ``text`` and ``audio``: fields of these configurations that replace
            the family's own.

    Returns:
        ``out`` as a path.

    Raises:
        ValueError: ``family`` or ``dtype`` is not known, or the family has no such section.
    """
    if family not in FAMILIES:
        raise ValueError(f"family {family!r} is not known; choose one of {', '.join(FAMILIES)}")
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r} is not known; choose one of {', '.join(DTYPES)}")
    chosen = FAMILIES[family]
    for section in sections:
        if section not in chosen.sections:
            raise ValueError(
                f"{family} has no section {section!r}; it has {', '.join(chosen.sections)}"
            )
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    ids: dict[str, int] = {}
    if chosen.vocabulary is not None:
        tokenizer = build_tokenizer(chosen.vocabulary)
        tokenizer.save_pretrained(out)
        ids = tokenizer.get_vocab()
    model = build_model(chosen, ids, sections)
    randomize(model, seed)
    model.to(getattr(torch, dtype)).save_pretrained(out)
    if chosen.vocabulary is not None:
        generation_config(chosen.vocabulary, ids).save_pretrained(out)
    for name, content in preprocessor_files(chosen.preprocessors).items():
        text_of = json.dumps(content, indent=2, sort_keys=True) + "\n"
        (out / name).write_text(text_of, encoding="utf-8")
    return out


def randomize(model: torch.nn.Module, seed: int, std: float = 0.05) -> None:
    """Fill every parameter with noise, biases too: zero biases and unit norms hide mistakes.

    The decoder's matrices get twice the deviation: with less, every token ends up predicting
    itself, and equal texts would prove little. The few channels of the audio tower's convolutions
    get four times: with less, sound drowns in the positions that are added to it. RADIO's layer
    scales stay ones: published checkpoints have none.

    Args:
        model: Model to fill in place.
        seed: Seed of the noise; the generator is private, global state is left alone. The numbers
            are those of the model's device.
        std: Standard deviation; norm weights are ``1 + std * noise``.
    """
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("lambda1"):
                continue
            noise = torch.randn(parameter.shape, generator=generator, device=device) * std
            if parameter.dim() == 1 and name.endswith("weight"):
                noise += 1
            elif "language_model.layers" in name or "model.layers" in name:
                noise *= 2
            elif "audio_tower.conv" in name and name.endswith("weight"):
                noise *= 4
            parameter.copy_(noise)
        for name, buffer in model.named_buffers():
            if name.endswith("correction_bias"):  # of a router; saved like a parameter
                noise = torch.randn(buffer.shape, generator=generator, device=device)
                buffer.copy_(noise * std)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--family", choices=tuple(FAMILIES), default="qwen3_vl")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    args = parser.parse_args()
    logging.disable_progress_bar()
    out = make_tiny_checkpoint(args.out, args.family, args.seed, dtype=args.dtype)
    megabytes = sum(file.stat().st_size for file in out.iterdir()) / 1e6
    print(f"wrote {out} ({args.family}, seed {args.seed}, {megabytes:.1f} MB)")


if __name__ == "__main__":
    main()
