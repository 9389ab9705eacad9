# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Text while tokens arrive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from tensorrt_llm_ext.engine.detokenizer import Detokenizer


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoint: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny_checkpoint)


def feed(detokenizer: Detokenizer, ids: list[int]) -> list[str]:
    pieces = []
    for token in ids:
        pieces.append(detokenizer.push(token))
        if detokenizer.stopped:
            break
    return [*pieces, detokenizer.finish()]


@settings(deadline=None, max_examples=200)
@given(ids=st.lists(st.integers(0, 1535), max_size=40), special=st.booleans())
def test_pieces_add_up_to_the_whole_text(tokenizer: Any, ids: list[int], special: bool) -> None:
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=special)
    pieces = feed(detokenizer, ids)
    assert "".join(pieces) == detokenizer.text
    assert detokenizer.text == tokenizer.decode(ids, skip_special_tokens=special)


def test_half_characters_are_held_back(tokenizer: Any) -> None:
    text = "π≈3 日本 🙂!"
    ids = tokenizer(text)["input_ids"]
    assert len(ids) > len(text)  # bytes, so that characters arrive in parts
    pieces = feed(Detokenizer(tokenizer), ids)
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


@settings(deadline=None, max_examples=200)
@given(text=st.text("abc ", max_size=30), stop=st.lists(st.text("abc ", min_size=1, max_size=4)))
def test_stop_strings(tokenizer: Any, text: str, stop: list[str]) -> None:
    """The text ends before the first stop string, and nothing after that was ever handed out."""
    detokenizer = Detokenizer(tokenizer, stop)
    ids = tokenizer(text)["input_ids"]
    pieces = feed(detokenizer, ids)
    assert "".join(pieces) == detokenizer.text
    cuts = [text.index(s) for s in stop if s in text]
    assert detokenizer.stopped == bool(cuts)
    if not cuts:
        assert detokenizer.text == text
    else:
        assert text.startswith(detokenizer.text)
        assert not any(s in detokenizer.text for s in stop)


@given(text=st.text("abc", max_size=30), stop=st.lists(st.text("abc", min_size=1), min_size=1))
def test_what_may_begin_a_stop_string_is_held_back(
    tokenizer: Any, text: str, stop: list[str]
) -> None:
    detokenizer = Detokenizer(tokenizer, stop)
    detokenizer._whole = text
    ends = range(1, len(text) + 1)
    begun = [n for n in ends for s in stop if len(s) > n and s.startswith(text[-n:])]
    assert detokenizer._held_back() == max(begun, default=0)


def test_stop_string_over_several_tokens(tokenizer: Any) -> None:
    ids = [tokenizer(letter)["input_ids"][0] for letter in "xENDy"]
    detokenizer = Detokenizer(tokenizer, ["END"])
    pieces = feed(detokenizer, ids)
    assert pieces == ["x", "", "", "", ""]
    assert detokenizer.text == "x"
    harmless = Detokenizer(tokenizer, ["END"])
    assert feed(harmless, ids[:3]) == ["x", "", "", "EN"]


def test_stop_strings_wait_for_min_tokens(tokenizer: Any) -> None:
    ids = [tokenizer(letter)["input_ids"][0] for letter in "ababab"]
    detokenizer = Detokenizer(tokenizer, ["ab"], min_tokens=3)
    feed(detokenizer, ids)
    assert detokenizer.stopped
    assert detokenizer.text == "ab"
