# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""A byte-level BPE trained on the standard library, with the special tokens of a family."""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Tokenizer

# Ordinary tokens plus the special ones; no padding rows, so that every id decodes to something.
VOCAB_SIZE = 1536
MAX_LENGTH = 32768

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

_TEMPLATE = """\
{%- macro render(content) -%}
    {%- if content is string -%}
        {{- content -}}
    {%- else -%}
        {%- for part in content -%}
            {%- if part is string -%}
                {{- part -}}
            PARTS
            {%- elif 'text' in part -%}
                {{- part.text -}}
            {%- else -%}
                {{- raise_exception('content part is neither NAMES') -}}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{{- 'PREFIX' -}}
{%- for message in messages -%}
    {{- 'OPEN' -}}
    {{- render(message.content) -}}
    {{- 'CLOSE' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- 'ANSWER' -}}
{%- endif -%}
"""

_PART = """\
            {%- elif part.type in ('KIND', 'KIND_url') or 'KIND' in part or 'KIND_url' in part -%}
                {{- 'TOKENS' -}}
"""


@dataclass(frozen=True)
class Vocabulary:
    """Special tokens and chat format of a family.

    Attributes:
        special: Special tokens in the order of their ids.
        media: What stands for a picture, a video and a clip in a prompt.
        prefix: Start of every chat.
        opening: Start of a message; ``ROLE`` stands for its role.
        closing: End of a message.
        end: Token that ends an answer.
        pad: Padding token.
        named: Special tokens by the name that the family's processor looks for.
        qwen: Whether the tokenizer class is Qwen's.
    """

    special: tuple[str, ...]
    media: dict[str, str]
    prefix: str
    opening: str
    closing: str
    end: str
    pad: str = "<|endoftext|>"
    named: dict[str, str] = field(default_factory=dict)
    qwen: bool = True

    @property
    def chat_template(self) -> str:
        """Jinja template of a chat."""
        parts = "".join(
            _PART.replace("KIND", kind).replace("TOKENS", tokens)
            for kind, tokens in self.media.items()
        )
        *others, last = self.media
        opening = self.opening.replace("ROLE", "' ~ message.role ~ '")
        return (
            _TEMPLATE.replace("            PARTS\n", parts)
            .replace("NAMES", f"{', '.join(['text', *others])} nor {last}")
            .replace("PREFIX", self.prefix)
            .replace("OPEN", opening)
            .replace("CLOSE", self.closing)
            .replace("ANSWER", self.opening.replace("ROLE", "assistant"))
        )


QWEN = Vocabulary(
    special=(
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
    ),
    media={
        "image": "<|vision_start|><|image_pad|><|vision_end|>",
        "video": "<|vision_start|><|video_pad|><|vision_end|>",
    },
    prefix="",
    opening="<|im_start|>ROLE\\n",
    closing="<|im_end|>\\n",
    end="<|im_end|>",
)

QWEN_OMNI = Vocabulary(
    special=(*QWEN.special, "<|audio_start|>", "<|audio_end|>", "<|audio_pad|>"),
    media={**QWEN.media, "audio": "<|audio_start|><|audio_pad|><|audio_end|>"},
    prefix=QWEN.prefix,
    opening=QWEN.opening,
    closing=QWEN.closing,
    end=QWEN.end,
    named={
        "image_token": "<|image_pad|>",
        "video_token": "<|video_pad|>",
        "audio_token": "<|audio_pad|>",
        "vision_bos_token": "<|vision_start|>",
        "vision_eos_token": "<|vision_end|>",
        "audio_bos_token": "<|audio_start|>",
        "audio_eos_token": "<|audio_end|>",
    },
)

QWEN_ASR = replace(QWEN_OMNI, media={"audio": QWEN_OMNI.media["audio"]})

GLM = Vocabulary(
    special=(
        "<|endoftext|>",
        "[MASK]",
        "[gMASK]",
        "[sMASK]",
        "<sop>",
        "<eop>",
        "<|system|>",
        "<|user|>",
        "<|assistant|>",
        "<|observation|>",
        "<|begin_of_image|>",
        "<|end_of_image|>",
        "<|begin_of_video|>",
        "<|end_of_video|>",
        "<|image|>",
        "<|video|>",
    ),
    media={
        "image": "<|begin_of_image|><|image|><|end_of_image|>",
        "video": "<|begin_of_video|><|video|><|end_of_video|>",
    },
    prefix="[gMASK]<sop>",
    opening="<|ROLE|>\\n",
    closing="",
    end="<|user|>",
    qwen=False,
)


def build_tokenizer(vocabulary: Vocabulary = QWEN) -> Any:
    """Train a byte-level BPE on the standard library and append the special tokens."""
    trained = _train(VOCAB_SIZE - len(vocabulary.special))
    tokenizer: Any
    if vocabulary.qwen:
        bpe = json.loads(trained)["model"]
        merges: Any = [tuple(pair) for pair in bpe["merges"]]  # annotated as list[str]
        tokenizer = Qwen2Tokenizer(vocab=bpe["vocab"], merges=merges, model_max_length=MAX_LENGTH)
    else:
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer.from_str(trained), model_max_length=MAX_LENGTH
        )
    tokenizer.add_special_tokens({"extra_special_tokens": list(vocabulary.special)})
    tokenizer.eos_token, tokenizer.pad_token = vocabulary.end, vocabulary.pad
    tokenizer.init_kwargs.update(vocabulary.named)  # saved, and attributes once loaded again
    tokenizer.chat_template = vocabulary.chat_template
    if len(tokenizer) != VOCAB_SIZE:
        raise RuntimeError(f"trained {len(tokenizer)} tokens, wanted {VOCAB_SIZE}: too little text")
    return tokenizer


@cache
def _train(size: int) -> str:
    """A byte-level BPE of so many tokens, as JSON: it takes a second, and families share it."""
    scaffold = Qwen2Tokenizer().backend_tokenizer  # its normalizer and word splitter, no vocabulary
    trained = Tokenizer(models.BPE())
    trained.normalizer = scaffold.normalizer
    trained.pre_tokenizer = scaffold.pre_tokenizer
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    trained.train_from_iterator(_training_texts(), trainer)
    text: str = trained.to_str()
    return text


def _training_texts() -> Iterator[str]:
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    for name in TRAINING_MODULES:
        path = stdlib / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            yield file.read_text(encoding="utf-8", errors="replace")
