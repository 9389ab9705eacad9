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
from .encode_queue import EncodeJob
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
        job: Its media on their way through the encoders.
        admitted_at: When it left the queue, seconds of the monotonic clock; None before.
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
    job: EncodeJob
    admitted_at: float | None = None
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

        Args:
            prompt_length: Tokens of its prompt.
            wanted: Tokens it wants; None: as many as fit.

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
        room, held = self.max_seq_len - prompt_length, self.kv_tokens - self.state_tokens
        new = max(1, min(room, held - prompt_length)) if wanted is None else min(wanted, room)
        if prompt_length + new > held:
            raise RequestError(
                f"the prompt has {prompt_length} tokens and may generate {new}, the KV cache holds "
                f"{held}; ask for max_tokens <= {max(held - prompt_length, 0)} or raise "
                "kv_cache_config.max_tokens"
            )
        return new


class Scheduler:
    """Requests that wait, are admitted and run; first come, first served.

    Args:
        limits: What the engine can hold.

    Attributes:
        waiting: Not admitted yet.
        admitted: In the batch; their media are being encoded, their prompts are read next.
        running: In the batch and the KV cache, in the order of its rows.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.waiting: deque[Request] = deque()
        self.admitted: list[Request] = []
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
        before = len(self.admitted)
        tokens = sum(request.prompt_length for request in self.admitted)
        items: Counter[str] = Counter()
        rows: Counter[str] = Counter()
        for request in self.admitted:
            _count(request, items, rows)
        while self.waiting and len(self.admitted) + len(self.running) < limits.max_batch_size:
            head = self.waiting[0]
            if limits.cost([*self.running, *self.admitted, head]) > limits.kv_tokens:
                break
            tokens += head.prompt_length
            _count(head, items, rows)
            # Only what the head needs itself can keep it out: text does not wait for pictures.
            crowded = tokens > limits.max_num_tokens or any(
                items[tower] > limits.encoder_items or rows[tower] > limits.encoder_rows
                for tower in head.job.loads
            )
            if self.admitted and crowded:
                break
            self.admitted.append(self.waiting.popleft())
        return self.admitted[before:]

    def start(self, requests: Iterable[Request]) -> None:
        """Their prompts were read: they are the last rows of the KV cache now."""
        for request in requests:
            self.admitted.remove(request)
            self.running.append(request)

    def remove(self, request: Request) -> None:
        """Take a request out of the queue or the batch, wherever it is."""
        for place in (self.waiting, self.admitted, self.running):
            if request in place:
                place.remove(request)

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing runs."""
        return not (self.waiting or self.admitted or self.running)


def _count(request: Request, items: Counter[str], rows: Counter[str]) -> None:
    """Add what a request still has to encode."""
    for tower, (its_items, its_rows) in request.job.loads.items():
        items[tower] += its_items
        rows[tower] += its_rows
