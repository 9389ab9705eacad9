# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""POST /v1/embeddings: features of pictures, videos and sound, without a language model."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from pydantic_core import to_json
from safetensors.torch import save
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..engine.encode_queue import EncodeJob
from .answers import EngineAnswer
from .errors import bad_request
from .lifeline import Events, Lifeline
from .protocol import EmbeddingsRequest
from .state import ServerState

MAX_NUMBERS = 2**24
"""Written out in one answer; they are some three hundred megabytes."""


class FeaturesAnswer(EngineAnswer):
    """Encoder outputs, one entry an item, in the order of the input.

    Args:
        server: The server.
        request: The HTTP request.
        body: Its body.
    """

    def __init__(self, server: ServerState, request: Request, body: EmbeddingsRequest) -> None:
        super().__init__(server, request)
        self.body_in = body

    async def answer(self, life: Lifeline, scope: Scope, receive: Receive, send: Send) -> None:
        """Decode, queue, encode."""
        server = self.server
        parts = [part.media() for part in self.body_in.input]
        modalities = [part.modality for part in parts]
        media = await server.intake.open(parts, life.deadline)
        try:
            del parts
            self.drop_body(self.body_in.input)
            data: dict[str, list[Any]] = {}
            for modality, content in media.contents:
                data.setdefault(modality, []).append(content)
            planned = await server.intake.run(partial(server.engine.encoders.plan, data))
            self._check_size(planned)
            job = EncodeJob(planned)
            events = Events(job)
            server.thread.add(job, events)
            try:
                await events.next()
            finally:
                server.thread.cancel(job)
        finally:
            media.release()
        turn = {modality: iter(outputs) for modality, outputs in job.outputs.items()}
        items = [(modality, next(turn[modality])) for modality in modalities]
        response = await server.intake.run(partial(self._response, items))
        self.request.state.outcome = "encoded"
        await response(scope, receive, send)

    def _check_size(self, planned: dict[str, list[Any]]) -> None:
        """Refuse what would fill the memory of the device or the host."""
        rows = sum(item.num_tokens for its in planned.values() for item in its)
        most = self.server.options.max_feature_rows
        if rows > most:
            raise bad_request(
                f"the media come to {rows:,} features; at most {most:,} are given at a time: send "
                "fewer or smaller ones",
                "input",
            )

    def _response(self, items: Sequence[tuple[str, Any]]) -> Response:
        """The answer; copies the features to the host and waits for them."""
        model, form = self.server.model_name, self.body_in.encoding_format
        flat = [flat_tensors(output) for _, output in items]
        if form == "safetensors":
            tensors = {f"{i}.{name}": t for i, its in enumerate(flat) for name, t in its.items()}
            facts = {"model": model, "modalities": json.dumps([m for m, _ in items])}
            return Response(save(tensors, facts), media_type="application/octet-stream")
        count = sum(tensor.numel() for its in flat for tensor in its.values())
        if form == "float" and count > MAX_NUMBERS:
            raise bad_request(
                f"the features are {count:,} numbers, too many to be written out; ask for "
                "encoding_format base64 or safetensors",
                "encoding_format",
            )
        entries = []
        for i, ((modality, _), its) in enumerate(zip(items, flat, strict=True)):
            fields = {"object": "embedding", "index": i, "modality": modality}
            fields["shape"] = list(its["features"].shape)
            extra = {
                name: _object({"shape": list(tensor.shape)}, embedding=numbers(tensor, form))
                for name, tensor in its.items()
                if name != "features"
            }
            entry = _object(
                fields, embedding=numbers(its["features"], form), extra=_object({}, **extra)
            )
            entries.append(entry)
        rows = sum(its["features"].shape[0] for its in flat)
        usage = {"prompt_tokens": rows, "total_tokens": rows}
        data = b"[" + b",".join(entries) + b"]"
        body = _object({"object": "list", "model": model, "usage": usage}, data=data)
        return Response(body, media_type="application/json")


def flat_tensors(output: dict[str, Any]) -> dict[str, torch.Tensor]:
    """All tensors of an item's output on the host; those of a list are numbered.

    Args:
        output: Tensors [rows, width] of any dtype, or lists of such, by name.

    Returns:
        Contiguous tensors [rows, width] of the same dtype, by name.
    """
    tensors: dict[str, torch.Tensor] = {}
    for name, value in output.items():
        if isinstance(value, list):
            tensors |= {f"{name}.{i}": tensor for i, tensor in enumerate(value)}
        else:
            tensors[name] = value
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def numbers(tensor: torch.Tensor, form: str) -> bytes:
    """A tensor's numbers as JSON, row by row.

    Args:
        tensor: [..., width], any dtype.
        form: "float", or base64 of little-endian float32.
    """
    rows = tensor.float().reshape(-1, tensor.shape[-1]).numpy()
    if form == "float":
        # A call for each row: none can be interrupted, and the event loop is to have its turn.
        return b"[" + b",".join(to_json(row.tolist())[1:-1] for row in rows) + b"]"
    return b'"' + base64.b64encode(rows.astype("<f4").tobytes()) + b'"'


def _object(fields: Mapping[str, Any], **texts: bytes) -> bytes:
    """A JSON object of values and of texts that are JSON already."""
    members = {**{key: to_json(value) for key, value in fields.items()}, **texts}
    return b"{" + b",".join(to_json(key) + b":" + text for key, text in members.items()) + b"}"
