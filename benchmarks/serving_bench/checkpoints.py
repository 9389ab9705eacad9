# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of published dimensions with random weights, as ordinary folders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from make_tiny_checkpoint import make_tiny_checkpoint, randomize
from published_towers import OMNI_AUDIO, OMNI_VISION, QWEN3_VL_2B
from tiny.architectures import FAMILIES, build_model, generation_config
from tiny.preprocessors import preprocessor_files
from tiny.tokenizers_of import build_tokenizer

# Deviation of the weights: rows of these widths neither vanish nor blow up.
_STD = 0.02
_HEADS = {
    "num_attention_heads": 16,
    "head_dim": 128,
    "max_position_embeddings": 32768,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 5_000_000.0,
        "mrope_section": [24, 20, 20],
        "mrope_interleaved": True,
    },
}


@dataclass(frozen=True)
class Published:
    """A model to serve.

    Attributes:
        family: Its family, a key of ``FAMILIES``.
        title: What it is.
        sections: Fields of its configuration, by section.
        processors: Fields of its preprocessor files, by file name.
    """

    family: str
    title: str
    sections: Mapping[str, dict[str, Any]]
    processors: Mapping[str, dict[str, Any]]


_IMAGE_SIZE = {"size": {"shortest_edge": 65536, "longest_edge": 16777216}}
_VIDEO_SIZE = {"size": {"shortest_edge": 128 * 32 * 32, "longest_edge": 768 * 32 * 32}}

MODELS = {
    "qwen3_vl_2b": Published(
        "qwen3_vl",
        "Qwen3-VL-2B",
        {
            "vision": QWEN3_VL_2B,
            "text": {
                **_HEADS,
                "vocab_size": 151936,
                "hidden_size": 2048,
                "intermediate_size": 6144,
                "num_hidden_layers": 28,
                "num_key_value_heads": 8,
            },
        },
        {"preprocessor_config.json": _IMAGE_SIZE},
    ),
    "qwen3_omni": Published(
        "qwen3_omni_thinker",
        "Qwen3-Omni thinker, towers at published size, language model of 4 layers",
        {
            "vision": OMNI_VISION,
            "audio": {**OMNI_AUDIO, "downsample_hidden_size": 480},
            "text": {
                **_HEADS,
                "vocab_size": 151936,
                "hidden_size": 2048,
                "intermediate_size": 768,
                "num_hidden_layers": 4,
                "num_key_value_heads": 4,
                "num_experts": 8,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 768,
            },
        },
        {"preprocessor_config.json": _IMAGE_SIZE, "video_preprocessor_config.json": _VIDEO_SIZE},
    ),
}


def make_checkpoint(out: Path, name: str, device: torch.device, *, tiny: bool) -> Path:
    """Write a checkpoint with random weights, made on the device, and return its folder.

    Args:
        out: Folder to write.
        name: Key of ``MODELS``.
        device: Where the weights are drawn; on a GPU it takes seconds.
        tiny: The family's small model in float32 instead, to try things.
    """
    model = MODELS[name]
    if tiny:
        return make_tiny_checkpoint(out, model.family)
    family = FAMILIES[model.family]
    if family.vocabulary is None:
        raise ValueError(f"{model.family} has no tokenizer, so that it cannot be served")
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer(family.vocabulary)
    tokenizer.save_pretrained(out)
    fill_vocabulary(out / "tokenizer.json", model.sections["text"]["vocab_size"])
    ids = tokenizer.get_vocab()
    with torch.device(device):
        module = build_model(family, ids, model.sections).to(torch.bfloat16)
    randomize(module, 0, _STD)
    module.save_pretrained(out)
    generation_config(family.vocabulary, ids).save_pretrained(out)
    for file, content in preprocessor_files(family.preprocessors).items():
        text = json.dumps({**content, **model.processors.get(file, {})}, indent=2)
        (out / file).write_text(text + "\n", encoding="utf-8")
    return out


def fill_vocabulary(path: Path, size: int) -> None:
    """Give every id up to the size a text of its own, so that equal texts mean equal tokens.

    Args:
        path: A tokenizer.json with a byte-level BPE.
        size: Number of ids.
    """
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    # Special tokens are looked up in the vocabulary first; elsewhere they would be numbered anew.
    for token in tokenizer["added_tokens"]:
        vocabulary[token["content"]] = token["id"]
    taken = set(vocabulary.values())
    for number in range(size):
        if number not in taken:
            vocabulary[f"\u0120w{number}"] = number
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
