# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""POST /v1/embeddings: features of pictures, videos and sound, without a language model."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from safetensors.torch import save
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from ..engine.encode_queue import EncodeJob
from .answers import EngineAnswer
from .lifeline import Events, Lifeline
from .protocol import EmbeddingsRequest
from .state import ServerState


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
            job = EncodeJob(await server.intake.run(partial(server.engine.encoders.plan, data)))
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

    def _response(self, items: Sequence[tuple[str, Any]]) -> Response:
        """The answer; copies the features to the host and waits for them."""
        model, form = self.server.model_name, self.body_in.encoding_format
        rows = sum(int(output["features"].shape[0]) for _, output in items)
        if form == "safetensors":
            tensors = {
                f"{i}.{name}": tensor
                for i, (_, output) in enumerate(items)
                for name, tensor in flat_tensors(output).items()
            }
            facts = {"model": model, "modalities": json.dumps([m for m, _ in items])}
            return Response(save(tensors, facts), media_type="application/octet-stream")
        data = []
        for i, (modality, output) in enumerate(items):
            tensors = flat_tensors(output)
            entry = {"object": "embedding", "index": i, "modality": modality}
            entry |= {"embedding": numbers(tensors["features"], form)}
            entry["shape"] = list(tensors.pop("features").shape)
            entry["extra"] = {
                name: {"embedding": numbers(tensor, form), "shape": list(tensor.shape)}
                for name, tensor in tensors.items()
            }
            data.append(entry)
        usage = {"prompt_tokens": rows, "total_tokens": rows}
        return JSONResponse({"object": "list", "data": data, "model": model, "usage": usage})


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


def numbers(tensor: torch.Tensor, form: str) -> list[float] | str:
    """A tensor's numbers, row by row.

    Args:
        tensor: [rows, width], any dtype.
        form: "float", or base64 of little-endian float32.
    """
    flat = tensor.float().flatten().numpy()
    if form == "float":
        values: list[float] = flat.tolist()
        return values
    return base64.b64encode(flat.astype("<f4").tobytes()).decode()
