# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Requests in, tokens out: one step admits, encodes, prefills and decodes once.

Between steps anything may change: requests join, leave and are cancelled.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import DynamicCache

from ..llmapi.sampling_params import SamplingParams
from .detokenizer import Detokenizer
from .encode_queue import EncodeJob, EncodeQueue
from .errors import EngineClosedError, RequestError
from .generation import Generator
from .prompts import PromptBuilder
from .results import CompletionOutput, RequestOutput, StepEvent
from .sampling import NO_TOKEN, Sampler
from .scheduler import FinishReason, Limits, Request, Scheduler


class StepLoop:
    """Serves requests; all methods may be called from several threads, a step runs under one lock.

    Args:
        generator: Runs the language model.
        prompts: Builds prompts.
        queue: Encodes media.
        limits: What fits.
        eos_token_ids: Ids that end a text.
    """

    def __init__(
        self,
        *,
        generator: Generator,
        prompts: PromptBuilder,
        queue: EncodeQueue,
        limits: Limits,
        eos_token_ids: Sequence[int],
    ) -> None:
        self.limits = limits
        self._generator = generator
        self._prompts = prompts
        self._queue = queue
        self._eos = tuple(eos_token_ids)
        self._scheduler = Scheduler(limits)
        self._requests: dict[int, Request] = {}
        self._ids = itertools.count()
        self._lock = threading.RLock()
        self._closed = False

    def submit(self, inputs: Any, params: SamplingParams | None = None) -> int:
        """Prepare a request and queue it; see :meth:`prepare` and :meth:`add`.

        Returns:
            The request's id.
        """
        request = self.prepare(inputs, params)
        self.add(request)
        return request.id

    def prepare(
        self, inputs: Any, params: SamplingParams | None = None, *, fill_context: bool = False
    ) -> Request:
        """Check a request, render and tokenize its prompt. Waits for no step.

        Args:
            inputs: See :meth:`PromptBuilder.prepare`. Media are only decoded in the step that
                encodes them, and have to stay as they are until then.
            params: Sampling parameters; defaults when None.
            fill_context: Generate as much as fits, whatever ``max_tokens`` says.

        Returns:
            The request, not queued yet.

        Raises:
            RequestError: It can never be served; nothing was decoded or encoded for it.
            EngineClosedError: The engine was shut down.
        """
        self._check_open()
        params = params or SamplingParams()
        prompt = self._prompts.prepare(inputs)
        # Before pixels are touched: a hopeless request costs arithmetic on sizes only.
        wanted = None if fill_context else params.max_tokens
        return Request(
            id=next(self._ids),
            prompt=prompt,
            params=params,
            max_new_tokens=self.limits.new_tokens(len(prompt.token_ids), wanted),
            sampler=Sampler(params, self._eos, self._generator.device),
            detokenizer=Detokenizer(
                self._prompts.tokenizer,
                params.stop or (),
                skip_special_tokens=params.skip_special_tokens,
                min_tokens=params.min_tokens or 0,
            ),
            job=EncodeJob(prompt.items),
        )

    def add(self, request: Request) -> None:
        """Queue a prepared request. Waits for a step that runs.

        Raises:
            EngineClosedError: The engine was shut down.
        """
        with self._lock:
            self._check_open()
            self._requests[request.id] = request
            self._scheduler.add(request)

    def generate(
        self, prompts: Sequence[Any], params: Sequence[SamplingParams]
    ) -> list[RequestOutput]:
        """Serve a list of prompts to the end, batched with whatever else runs.

        Args:
            prompts: One prompt each, see :meth:`PromptBuilder.prepare`.
            params: One entry a prompt.

        Returns:
            One result a prompt; a prompt that cannot be served has ``error`` set and no outputs.

        Raises:
            EngineClosedError: The engine was shut down.
        """
        self._check_open()
        results: list[RequestOutput | int] = []
        try:
            for prompt, its_params in zip(prompts, params, strict=True):
                try:
                    results.append(self.submit(prompt, its_params))
                except RequestError as error:
                    text = prompt.get("prompt") if isinstance(prompt, Mapping) else None
                    results.append(RequestOutput(-1, text, error=str(error)))
            return [r if isinstance(r, RequestOutput) else self._finish(r) for r in results]
        finally:
            # On the way out by an exception nobody else knows these ids, so nobody could end them.
            for result in results:
                if not isinstance(result, RequestOutput):
                    self.cancel(result)
                    self._requests.pop(result, None)

    def step(self) -> list[StepEvent]:
        """Admit, encode, prefill and decode once.

        One step encodes no more than the encoder's budget, so a running request waits for one call
        of each tower at most, however many media others bring.

        Returns:
            What happened, in order; empty when nothing waits or runs.

        Raises:
            EngineClosedError: The engine was shut down.
        """
        with self._lock:
            self._check_open()
            healthy = False
            try:
                self._admit()
                self._queue.step(wait=self._waits_for_media())
                events = self._read_prompts() + self._decode()
                healthy = True
            finally:
                if not healthy:
                    self._drop_batch("the step it ran in failed")
            return events

    def cancel(self, request_id: int) -> StepEvent | None:
        """End a request now; unknown and finished ids are ignored.

        Returns:
            Its last event, or None when there was nothing to end.
        """
        with self._lock:
            request = self._requests.get(request_id)
            if request is None or request.finish_reason is not None:
                return None
            return self._end(request, "cancelled")

    def take(self, request_id: int) -> RequestOutput | None:
        """Hand over the result of a finished request and forget it; None while it runs.

        Raises:
            KeyError: No such request, or it was taken before.
        """
        with self._lock:
            request = self._requests[request_id]
            if request.finish_reason is None:
                return None
            del self._requests[request_id]
        outputs = []
        if request.finish_reason != "error":
            text = request.detokenizer.text
            outputs.append(CompletionOutput(0, text, request.token_ids, request.finish_reason))
        return RequestOutput(
            request_id=request.id,
            prompt=request.prompt.text,
            prompt_token_ids=request.prompt.token_ids,
            outputs=outputs,
            error=request.error,
        )

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing runs."""
        return self._scheduler.idle and self._queue.idle

    @property
    def num_running(self) -> int:
        """Requests in the batch: admitted, or generating."""
        return len(self._scheduler.admitted) + len(self._scheduler.running)

    def close(self) -> None:
        """Cancel everything and take no more requests. May be called twice."""
        with self._lock:
            self._closed = True
            for request in list(self._requests.values()):
                if request.finish_reason is None:
                    self._end(request, "cancelled")

    def _finish(self, request_id: int) -> RequestOutput:
        while (output := self.take(request_id)) is None:
            self.step()
        return output

    # ---- one step ----

    def _admit(self) -> None:
        for request in self._scheduler.admit():
            request.admitted_at = time.monotonic()
            self._queue.add(request.job)

    def _waits_for_media(self) -> bool:
        """Whether nobody can have a token before some media are encoded."""
        waiting = [request for request in self._scheduler.admitted if not request.job.done]
        return not self._scheduler.running and len(waiting) == len(self._scheduler.admitted)

    def _read_prompts(self) -> list[StepEvent]:
        """Prompts of the admitted whose media are encoded; draws their first tokens."""
        ready = [request for request in self._scheduler.admitted if request.job.done]
        events = [self._end(r, "error", r.job.error) for r in ready if r.job.error is not None]
        ready = [request for request in ready if request.finish_reason is None]
        if not ready:
            return events
        try:
            read = [self._read_prompt(request) for request in ready]
        except torch.OutOfMemoryError as error:
            # None of them is in the cache yet, so whoever runs already can go on.
            why = f"out of memory while the prompt was read: {error}"
            return events + [self._end(request, "error", why) for request in ready]
        self._scheduler.start(ready)
        self._generator.batch.join([cache for _, cache in read])
        return events + self._take_tokens(ready, torch.stack([token for token, _ in read]))

    def _read_prompt(self, request: Request) -> tuple[torch.Tensor, DynamicCache]:
        """First token and cache of a newcomer."""
        logits, cache = self._generator.prefill(request, request.job.outputs)
        request.job.outputs.clear()
        request.prompt.items.clear()  # the caller's media, which nobody looks at again
        return request.sampler.next_token(logits, ()), cache

    def _decode(self) -> list[StepEvent]:
        running = list(self._scheduler.running)
        if not running:
            return []
        logits = self._generator.decode(running)
        tokens = [
            request.sampler.next_token(row, request.token_ids)
            for request, row in zip(running, logits, strict=True)
        ]
        return self._take_tokens(running, torch.stack(tokens))

    def _take_tokens(self, requests: Sequence[Request], tokens: torch.Tensor) -> list[StepEvent]:
        """Give each request its token; those that end leave the batch, together."""
        events, ended = [], []
        for request, token in zip(requests, tokens.tolist(), strict=True):
            if token == NO_TOKEN:
                events.append(self._end(request, "error", "the model's scores are no numbers"))
                continue
            request.token_ids.append(token)
            text = request.detokenizer.push(token)
            request.finish_reason = self._finish_reason(request, token)
            if request.finish_reason is not None:
                text += request.detokenizer.finish()
                ended.append(request)
            events.append(StepEvent(request.id, token, text, request.finish_reason))
        self._leave(ended)
        return events

    def _finish_reason(self, request: Request, token: int) -> FinishReason | None:
        if request.detokenizer.stopped:
            return "stop"
        if token in self._eos and not request.params.ignore_eos:
            return "stop"
        return "length" if len(request.token_ids) >= request.max_new_tokens else None

    def _end(self, request: Request, reason: FinishReason, error: str | None = None) -> StepEvent:
        """End a request from outside: its text so far is kept."""
        request.finish_reason, request.error = reason, error
        request.prompt.items.clear()
        self._queue.remove(request.job)
        self._leave([request])
        return StepEvent(request.id, None, request.detokenizer.finish(), reason, error)

    def _leave(self, requests: Sequence[Request]) -> None:
        """Take requests out of queue, batch and cache (row i of the cache is running[i])."""
        if not requests:
            return
        batch, running = self._generator.batch, self._scheduler.running
        rows = range(len(batch.lengths))
        batch.keep([row for row in rows if running[row] not in requests])
        for request in requests:
            self._scheduler.remove(request)

    def _drop_batch(self, why: str) -> None:
        """After a failed step cache and batch may disagree: nothing of the batch can go on."""
        self._generator.batch.keep([])
        for request in [*self._scheduler.running, *self._scheduler.admitted]:
            self._end(request, "error", why)

    def _check_open(self) -> None:
        if self._closed:
            raise EngineClosedError("the engine was shut down; make a new LLM")
