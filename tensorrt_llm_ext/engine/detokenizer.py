# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Tokens to text while they arrive: half characters and half stop strings are held back."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

_INCOMPLETE = "\ufffd"  # what a decoder gives for bytes that are not a whole character yet


class Detokenizer:
    """The text of one request.

    Args:
        tokenizer: The checkpoint's tokenizer.
        stop: Strings that end the text; the text is cut before the first of them.
        skip_special_tokens: Whether special tokens are left out of the text.
        min_tokens: Stop strings count only from this many tokens on.

    Attributes:
        text: Text so far, without what is held back.
        stopped: Whether a stop string was found.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        stop: Sequence[str] = (),
        *,
        skip_special_tokens: bool = True,
        min_tokens: int = 0,
    ) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._skip_special = skip_special_tokens
        self._min_tokens = min_tokens
        self._ids: list[int] = []
        self._window = 0  # first token of the window that is decoded anew each time
        self._settled = 0  # tokens whose text is in self._whole
        self._whole = ""
        self._stop_from = 0  # stop strings that end before this are not looked for
        self.text = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """Add a token and return the text that became certain."""
        self._ids.append(token)
        before = self._decode(self._ids[self._window : self._settled])
        after = self._decode(self._ids[self._window :])
        if not after.endswith(_INCOMPLETE):
            self._whole += after[len(before) :]
            self._window, self._settled = self._settled, len(self._ids)
        return self._release(final=False)

    def finish(self) -> str:
        """Return the text that was held back; call once, when no more tokens come."""
        if not self.stopped:
            before = self._decode(self._ids[self._window : self._settled])
            self._whole += self._decode(self._ids[self._window :])[len(before) :]
            self._settled = len(self._ids)
        return self._release(final=True)

    def _release(self, *, final: bool) -> str:
        end = len(self._whole)
        if self._stop and not self.stopped:
            if len(self._ids) >= self._min_tokens:
                cuts = [self._whole.find(s, self._stop_from) for s in self._stop]
                hits = [cut for cut in cuts if cut >= 0]
                if hits:
                    self.stopped = True
                    self._whole = self._whole[: min(hits)]
            else:
                # Text of the first min_tokens tokens can neither be nor begin a stop string.
                self._stop_from = len(self._whole)
            end = len(self._whole)
            if not self.stopped and not final:
                end -= self._held_back()
        new = self._whole[len(self.text) : end]
        self.text += new
        return new

    def _held_back(self) -> int:
        """Length of the longest end of the text that begins a stop string."""
        text, held = self._whole, 0
        for stop in self._stop:
            start = text.find(stop[0], max(self._stop_from, len(text) - len(stop) + 1))
            while start >= 0:
                if stop.startswith(text[start:]):
                    held = max(held, len(text) - start)
                    break
                start = text.find(stop[0], start + 1)
        return held

    def _decode(self, ids: list[int]) -> str:
        if not ids:
            return ""
        return str(
            self._tokenizer.decode(
                ids, skip_special_tokens=self._skip_special, clean_up_tokenization_spaces=False
            )
        )
