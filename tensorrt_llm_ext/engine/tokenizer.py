# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of a checkpoint, or another one in its place."""

from __future__ import annotations

import json
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase


def load_tokenizer(
    checkpoint: Path, other: str | None = None, *, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """Load a tokenizer from a folder on this machine; it takes no weights.

    Args:
        checkpoint: Checkpoint folder.
        other: Another folder to take it from.
        trust_remote_code: Whether code in the folder may run.

    Returns:
        The tokenizer, with the checkpoint's chat template.

    Raises:
        ValueError: No such folder, or no usable tokenizer in it.
    """
    folder = checkpoint if other is None else Path(other)
    if not folder.is_dir():  # transformers would look for it in the Hub
        raise ValueError(f"tokenizer {other!r} is not a folder; give the path of one")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        why = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
        raise ValueError(f"the tokenizer in {folder} cannot be loaded: {why}") from error
    # Without its vocabulary transformers makes one that knows no words.
    if not tokenizer.encode("Hello", add_special_tokens=False):
        raise ValueError(
            f"{folder} has no vocabulary for its tokenizer; copy tokenizer.json from the published "
            "checkpoint"
        )
    path = checkpoint / "chat_template.json"
    if not getattr(tokenizer, "chat_template", None) and path.is_file():
        # Older checkpoints keep the template of the processor in a file of its own.
        tokenizer.chat_template = json.loads(path.read_text(encoding="utf-8"))["chat_template"]
    return tokenizer
