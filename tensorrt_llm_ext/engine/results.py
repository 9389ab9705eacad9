# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""What a caller gets back."""

from __future__ import annotations

from dataclasses import dataclass, field

from .scheduler import FinishReason


@dataclass(frozen=True)
class StepEvent:
    """News of one request from one step.

    Attributes:
        request_id: The request.
        token_id: The new token, or None for an end without a token (cancelled, failed).
        text: Text that became certain; the pieces of a request add up to its whole text.
        finish_reason: Set on the last event of a request.
        error: What went wrong, with finish reason "error".
    """

    request_id: int
    token_id: int | None = None
    text: str = ""
    finish_reason: FinishReason | None = None
    error: str | None = None


@dataclass(frozen=True)
class CompletionOutput:
    """One generated text.

    Attributes:
        index: Always 0: one text a request.
        text: The text, cut before a stop string.
        token_ids: Generated ids, an end-of-text id included as transformers does.
        finish_reason: "length", "stop", "cancelled" or "error".
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None


@dataclass(frozen=True)
class RequestOutput:
    """The result of one prompt.

    Attributes:
        request_id: Number given by the engine; -1 for a request that was refused.
        prompt: The prompt's text before placeholders were expanded, or None for token ids.
        prompt_token_ids: Ids after expansion; empty for a refused request.
        outputs: One entry, or none when the request was refused or failed.
        error: What was wrong with the request, or None.
    """

    request_id: int
    prompt: str | None
    prompt_token_ids: list[int] = field(default_factory=list)
    outputs: list[CompletionOutput] = field(default_factory=list)
    error: str | None = None
