# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""POST /v1/chat/completions."""

from __future__ import annotations

import time
import uuid
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from ..engine.results import StepEvent
from ..engine.scheduler import Request as EngineRequest
from .answers import DONE, EngineAnswer, sse
from .errors import bad_request
from .lifeline import Events, Lifeline
from .protocol import ChatCompletionRequest
from .state import ServerState


class ChatAnswer(EngineAnswer):
    """A generated message, whole or as a stream.

    Nothing is sent before the first token, so what goes wrong until then has a status of its own.

    Args:
        server: The server.
        request: The HTTP request.
        body: Its body.
    """

    def __init__(self, server: ServerState, request: Request, body: ChatCompletionRequest) -> None:
        super().__init__(server, request)
        self.body_in = body
        self._head = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion.chunk" if body.stream else "chat.completion",
            "created": int(time.time()),
            "model": server.model_name,
        }

    async def answer(self, life: Lifeline, scope: Scope, receive: Receive, send: Send) -> None:
        """Decode, queue, generate."""
        server, body = self.server, self.body_in
        params = body.sampling_params()
        if body.num_chars > server.options.max_prompt_chars:
            raise bad_request(
                f"the messages have {body.num_chars:,} characters of text; at most "
                f"{server.options.max_prompt_chars:,} are taken",
                "messages",
                "context_length_exceeded",
            )
        media = await server.intake.open(body.media_parts(), life.deadline)
        try:
            fill = body.wanted_tokens is None
            prepare = partial(server.engine.loop.prepare, fill_context=fill)
            prompt = body.prompt(media.contents)
            work = await server.intake.run(partial(prepare, prompt, params))
            del prompt
            self.drop_body(body.messages)
            events, run = Events(work.job), Run(life.began, work)
            server.thread.add(work, events)
            try:
                first = await events.next()
                media.release()
                run.see(first)
                reply = self._stream if body.stream else self._whole
                await reply(first, events, run, scope, receive, send)
                self.request.state.outcome = run.finish_reason
                run.record(server)
            finally:
                server.thread.cancel(work)
        finally:
            media.release()

    async def _whole(
        self,
        event: StepEvent,
        events: Events,
        run: Run,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        texts = [event.text]
        while event.finish_reason is None:
            event = await events.next()
            run.see(event)
            texts.append(event.text)
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": "".join(texts)},
            "logprobs": None,
            "finish_reason": run.finish_reason,
        }
        response = JSONResponse({**self._head, "choices": [choice], "usage": run.usage})
        await response(scope, receive, send)

    async def _stream(
        self,
        event: StepEvent,
        events: Events,
        run: Run,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        self.started = True
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        headers.append((b"cache-control", b"no-cache"))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        opening = self._chunk({"role": "assistant", "content": ""})
        while True:
            body = opening
            if event.text:
                body += self._chunk({"content": event.text})
            if body:
                await send({"type": "http.response.body", "body": body, "more_body": True})
            opening = b""
            if event.finish_reason is not None:
                break
            event = await events.next()
            run.see(event)
        ending = self._chunk({}, run.finish_reason)
        options = self.body_in.stream_options
        if options is not None and options.include_usage:
            ending += sse({**self._head, "choices": [], "usage": run.usage})
        await send({"type": "http.response.body", "body": ending + DONE, "more_body": False})

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return sse({**self._head, "choices": [choice]})


class Run:
    """Times and counts of one generation.

    Args:
        began: When the request arrived, by ``time.monotonic()``.
        work: The engine's request.
    """

    def __init__(self, began: float, work: EngineRequest) -> None:
        self._began = began
        self._work = work
        self._first = self._last = began
        self._generated = 0
        self.finish_reason: str | None = None

    def see(self, event: StepEvent) -> None:
        """An event came."""
        self._last = time.monotonic()
        if event.token_id is not None:
            self._generated += 1
            if self._generated == 1:
                self._first = self._last
        self.finish_reason = event.finish_reason

    @property
    def usage(self) -> dict[str, int]:
        """Tokens, in OpenAI's form."""
        prompt, generated = self._work.prompt_length, self._generated
        return {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
        }

    def record(self, server: ServerState) -> None:
        """Put it into the histograms."""
        metrics = server.metrics
        metrics.first_token.observe(self._first - self._began)
        metrics.whole.observe(self._last - self._began)
        if self._work.admitted_at is not None:
            metrics.queue.observe(self._work.admitted_at - self._began)
        if self._generated > 1:
            metrics.per_token.observe((self._last - self._first) / (self._generated - 1))
        metrics.count_tokens(self._work.prompt_length, self._generated)
