# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Build a small random-weight checkpoint with a real architecture, tokenizer and chat template.

    python examples/make_tiny_checkpoint.py --family qwen3_vl --out build/tiny_qwen3_vl

The result is an ordinary Hugging Face folder: everything that loads a published Qwen3-VL loads it.
Its answers are nonsense, but its logits depend on every picture, weight and bias, so a wrong
encoder cannot hide behind it.
"""

from __future__ import annotations

import argparse
import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GenerationConfig,
    Qwen2Tokenizer,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)
from transformers.utils import logging

FAMILIES = ("qwen3_vl",)
DTYPES = ("float32", "bfloat16", "float16")

# Ordinary tokens plus the special ones; no padding rows, so that every id decodes to something.
VOCAB_SIZE = 1536

# In the order in which the published tokenizers append them.
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)

# Modules that every supported Python has: code for the merges, docstrings for English.
TRAINING_MODULES = (
    "argparse.py",
    "ast.py",
    "calendar.py",
    "configparser.py",
    "difflib.py",
    "doctest.py",
    "email",
    "fractions.py",
    "http",
    "json",
    "logging",
    "statistics.py",
    "textwrap.py",
    "typing.py",
)

CHAT_TEMPLATE = """\
{%- set images = ('image', 'image_url') -%}
{%- set videos = ('video', 'video_url') -%}
{%- macro render(content) -%}
    {%- if content is string -%}
        {{- content -}}
    {%- else -%}
        {%- for part in content -%}
            {%- if part is string -%}
                {{- part -}}
            {%- elif part.type in images or 'image' in part or 'image_url' in part -%}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
            {%- elif part.type in videos or 'video' in part or 'video_url' in part -%}
                {{- '<|vision_start|><|video_pad|><|vision_end|>' -}}
            {%- elif 'text' in part -%}
                {{- part.text -}}
            {%- else -%}
                {{- raise_exception('content part is neither text, image nor video') -}}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- for message in messages -%}
    {{- '<|im_start|>' ~ message.role ~ '\\n' -}}
    {{- render(message.content) -}}
    {{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""

VISION = {
    "depth": 4,
    "hidden_size": 64,
    "num_heads": 2,
    "intermediate_size": 160,
    "in_channels": 3,
    "patch_size": 16,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "num_position_embeddings": 2304,  # a 48 x 48 table, as published
    "deepstack_visual_indexes": [0, 2],
}

TEXT = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 32768,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 5_000_000.0,
        "mrope_section": [4, 2, 2],  # sums to head_dim / 2
        "mrope_interleaved": True,
    },
}

PATCHIFY = {
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}

# Bounds on H * W: one row of a picture is 16 x 16 pixels, so at most 1024 rows (256 tokens).
IMAGE_SIZE = {"shortest_edge": 64 * 64, "longest_edge": 512 * 512}
# Bounds on T * H * W, T counting frames.
VIDEO_SIZE = {"shortest_edge": 64 * 64, "longest_edge": 32 * 32 * 768}


def make_tiny_checkpoint(
    out: str | Path,
    family: str = "qwen3_vl",
    seed: int = 0,
    *,
    dtype: str = "float32",
    vision: dict[str, Any] | None = None,
    text: dict[str, Any] | None = None,
) -> Path:
    """Write a tiny checkpoint and return its folder.

    The same arguments give the same weights. The tokenizer is trained on the running Python's own
    standard library, so its merges may differ between Python versions.

    Args:
        out: Folder to write; created when missing, files in it are replaced.
        family: Architecture, one of ``FAMILIES``.
        seed: Seed of the weights.
        dtype: Dtype of the saved weights, one of ``DTYPES``.
        vision: Fields of the vision config that replace the ones in ``VISION``.
        text: Fields of the text config that replace the ones in ``TEXT``.

    Returns:
        ``out`` as a path.

    Raises:
        ValueError: ``family`` or ``dtype`` is not known.
    """
    if family not in FAMILIES:
        raise ValueError(f"family {family!r} is not known; choose one of {', '.join(FAMILIES)}")
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r} is not known; choose one of {', '.join(DTYPES)}")
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(out)
    model = build_qwen3_vl(tokenizer, seed, vision=vision or {}, text=text or {})
    model.to(getattr(torch, dtype)).save_pretrained(out)
    _write_json(
        out / "preprocessor_config.json",
        {
            "image_processor_type": "Qwen2VLImageProcessor",
            "processor_class": "Qwen3VLProcessor",
            "size": IMAGE_SIZE,
            **PATCHIFY,
        },
    )
    _write_json(
        out / "video_preprocessor_config.json",
        {
            "video_processor_type": "Qwen3VLVideoProcessor",
            "processor_class": "Qwen3VLProcessor",
            "size": VIDEO_SIZE,
            "fps": 2,
            "min_frames": 4,
            "max_frames": 768,
            **PATCHIFY,
        },
    )
    return out


def build_tokenizer() -> Qwen2Tokenizer:
    """Train a byte-level BPE on the standard library and append the Qwen special tokens."""
    scaffold = Qwen2Tokenizer().backend_tokenizer  # its normalizer and word splitter, no vocabulary
    trained = Tokenizer(models.BPE())
    trained.normalizer = scaffold.normalizer
    trained.pre_tokenizer = scaffold.pre_tokenizer
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    trained.train_from_iterator(_training_texts(), trainer)
    bpe = json.loads(trained.to_str())["model"]
    merges: Any = [tuple(pair) for pair in bpe["merges"]]  # annotated as list[str], takes pairs
    tokenizer = Qwen2Tokenizer(
        vocab=bpe["vocab"],
        merges=merges,
        model_max_length=TEXT["max_position_embeddings"],
    )
    tokenizer.add_special_tokens({"extra_special_tokens": list(SPECIAL_TOKENS)})
    tokenizer.eos_token = "<|im_end|>"
    tokenizer.chat_template = CHAT_TEMPLATE
    if len(tokenizer) != VOCAB_SIZE:
        raise RuntimeError(f"trained {len(tokenizer)} tokens, wanted {VOCAB_SIZE}: too little text")
    return tokenizer


def build_qwen3_vl(
    tokenizer: Qwen2Tokenizer, seed: int, *, vision: dict[str, Any], text: dict[str, Any]
) -> Qwen3VLForConditionalGeneration:
    """Build the model, every weight and bias random, with the special ids of ``tokenizer``."""
    ids: dict[str, int] = tokenizer.get_vocab()
    text_config = {
        **TEXT,
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
        "tie_word_embeddings": True,
        **text,
    }
    config = Qwen3VLConfig(
        vision_config={**VISION, "out_hidden_size": text_config["hidden_size"], **vision},
        text_config=text_config,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )
    model = Qwen3VLForConditionalGeneration(config)
    randomize(model, seed)
    model.generation_config = GenerationConfig(
        bos_token_id=ids["<|endoftext|>"],
        eos_token_id=[ids["<|im_end|>"], ids["<|endoftext|>"]],
        pad_token_id=ids["<|endoftext|>"],
        do_sample=False,
    )
    return model.eval()


def randomize(model: torch.nn.Module, seed: int, std: float = 0.05) -> None:
    """Fill every parameter with noise, biases too: zero biases and unit norms hide mistakes.

    The decoder's matrices get twice the deviation: with less, every token ends up predicting
    itself, and equal texts would prove little.

    Args:
        model: Model to fill in place.
        seed: Seed of the noise; the generator is private, global state is left alone.
        std: Standard deviation; norm weights are ``1 + std * noise``.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator) * std
            if parameter.dim() == 1 and name.endswith("weight"):
                noise += 1
            elif "language_model.layers" in name:
                noise *= 2
            parameter.copy_(noise)


def _training_texts() -> Iterator[str]:
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    for name in TRAINING_MODULES:
        path = stdlib / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            yield file.read_text(encoding="utf-8", errors="replace")


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--family", choices=FAMILIES, default="qwen3_vl")
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
