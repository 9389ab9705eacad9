# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Who is in the batch: requests, their life, and the rule of admission. No tensors here."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from ..llmapi.sampling_params import SamplingParams
from .detokenizer import Detokenizer
from .errors import RequestError
from .prompts import PreparedPrompt
from .sampling import Sampler

FinishReason = Literal["length", "stop", "cancelled", "error"]


@dataclass(eq=False)
class Request:
    """One request from submission to its last token.

    Attributes:
        id: Number given by the engine.
        prompt: Expanded prompt and its media.
        params: Sampling parameters.
        max_new_tokens: Tokens it may generate at most.
        sampler: Draws its tokens.
        detokenizer: Builds its text.
        token_ids: Tokens generated so far.
        rope_delta: What mRoPE adds to the text position of generated tokens.
        finish_reason: None while it runs.
        error: What went wrong, with finish reason "error".
    """

    id: int
    prompt: PreparedPrompt
    params: SamplingParams
    max_new_tokens: int
    sampler: Sampler
    detokenizer: Detokenizer
    token_ids: list[int] = field(default_factory=list)
    rope_delta: float = 0
    finish_reason: FinishReason | None = None
    error: str | None = None

    @property
    def prompt_length(self) -> int:
        """Tokens of the expanded prompt."""
        return len(self.prompt.token_ids)

    @property
    def span(self) -> int:
        """Tokens it may occupy in the KV cache."""
        return self.prompt_length + self.max_new_tokens


@dataclass(frozen=True)
class Limits:
    """What one engine can hold.

    Attributes:
        max_batch_size: Requests running at once.
        max_num_tokens: Prompt tokens of one step.
        max_seq_len: Prompt and generated tokens of one request.
        kv_tokens: Tokens of the KV cache.
        encoder_items: Items that each tower encodes in one step.
        encoder_rows: Rows that each tower encodes in one step.
        state_tokens: What a request takes besides its tokens (recurrent states), in KV tokens.
        shared_cache: Whether requests share a cache padded to the longest of them.
    """

    max_batch_size: int
    max_num_tokens: int
    max_seq_len: int
    kv_tokens: int
    encoder_items: int
    encoder_rows: int
    state_tokens: int = 0
    shared_cache: bool = True

    def cost(self, requests: Iterable[Request]) -> int:
        """KV tokens that a batch of these requests can come to occupy."""
        spans = [request.span + self.state_tokens for request in requests]
        return len(spans) * max(spans, default=0) if self.shared_cache else sum(spans)

    def new_tokens(self, prompt_length: int, wanted: int | None) -> int:
        """Tokens a request may generate: what it wants, at most what is left of max_seq_len.

        Raises:
            RequestError: The request can never run.
        """
        if prompt_length + 1 > self.max_seq_len:
            raise RequestError(
                f"the prompt has {prompt_length} tokens; with one generated token that is more "
                "than max_seq_len "
                f"{self.max_seq_len}. Shorten the prompt, shrink the pictures, or raise max_seq_len"
            )
        if prompt_length > self.max_num_tokens:
            raise RequestError(
                f"the prompt has {prompt_length} tokens, max_num_tokens is {self.max_num_tokens}; "
                "shorten the prompt, shrink the pictures, or raise max_num_tokens"
            )
        room = self.max_seq_len - prompt_length
        new = room if wanted is None else min(wanted, room)
        held = self.kv_tokens - self.state_tokens
        if prompt_length + new > held:
            raise RequestError(
                f"the prompt has {prompt_length} tokens and may generate {new}, the KV cache holds "
                f"{held}; ask for max_tokens <= {max(held - prompt_length, 0)} or raise "
                "kv_cache_config.max_tokens"
            )
        return new


class Scheduler:
    """Waiting and running requests; first come, first served.

    Args:
        limits: What the engine can hold.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def add(self, request: Request) -> None:
        """Put a request at the end of the queue."""
        self.waiting.append(request)

    def admit(self) -> list[Request]:
        """Move the requests that fit from the queue into the batch and return them.

        A shared cache is padded to its longest row, so a batch costs its size times its largest
        span.
        The head of the queue is never overtaken: a large request waits, but not for ever.
        """
        limits = self.limits
        admitted: list[Request] = []
        tokens = 0
        items: Counter[str] = Counter()
        rows: Counter[str] = Counter()
        while self.waiting and len(self.running) < limits.max_batch_size:
            head = self.waiting[0]
            if limits.cost([*self.running, head]) > limits.kv_tokens:
                break
            tokens += head.prompt_length
            for tower, (its_items, its_rows) in head.prompt.loads.items():
                items[tower] += its_items
                rows[tower] += its_rows
            crowded = (
                tokens > limits.max_num_tokens
                or max(items.values(), default=0) > limits.encoder_items
                or max(rows.values(), default=0) > limits.encoder_rows
            )
            if admitted and crowded:
                break
            self.running.append(self.waiting.popleft())
            admitted.append(head)
        return admitted

    def remove(self, request: Request) -> None:
        """Take a request out of the queue or the batch, wherever it is."""
        if request in self.waiting:
            self.waiting.remove(request)
        if request in self.running:
            self.running.remove(request)

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing runs."""
        return not self.waiting and not self.running
