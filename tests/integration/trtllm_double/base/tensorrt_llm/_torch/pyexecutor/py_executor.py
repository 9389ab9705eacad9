# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``pyexecutor/py_executor.py``: encode, answer, shut down."""

from __future__ import annotations

from typing import Any

import torch

from tensorrt_llm import _double
from tensorrt_llm.inputs.multimodal import MultimodalParams

from .llm_request import LlmRequest, MultimodalEncoderRequestState


class PyExecutor:
    def __init__(
        self, resource_manager: Any, model_engine: Any, draft_model_engine: Any, dist: Any
    ) -> None:
        self.resource_manager = resource_manager
        self.model_engine, self.draft_model_engine = model_engine, draft_model_engine
        self.dist = dist
        self._next_id = 0
        self._worker_started = False

    def start_worker(self) -> None:
        self._worker_started = True

    def encode(self, multimodal_data: dict[str, Any]) -> torch.Tensor:
        """Encoder rows of one request, by items when those are scheduled."""
        engine = self.model_engine
        scheduler = engine._mm_item_scheduler
        if scheduler is None:
            param = MultimodalParams(multimodal_data=multimodal_data)
            param.to_device("multimodal_data", "cuda")
            return engine.model.encode_multimodal_inputs([param])
        self._next_id += 1
        rows = multimodal_data["multimodal_embedding_lengths"]
        metadata = multimodal_data["multimodal_encoder_item_metadata"]
        request = LlmRequest(
            self._next_id,
            multimodal_data,
            MultimodalEncoderRequestState(
                embedding_lengths=list(rows),
                encoder_token_lengths=metadata.encoder_token_lengths,
                item_cache_keys=[("mm", self._next_id, i) for i in range(len(rows))],
            ),
        )
        scheduler.forward_items([request], {request.request_id: list(range(len(rows)))})
        return scheduler.build_multimodal_data_for_llm(request)["multimodal_embedding"]

    def encode_only(self, extra: dict[str, Any]) -> torch.Tensor | None:
        data = extra.get("multimodal_data")
        if not data:
            return None
        param = MultimodalParams(multimodal_data=data)
        param.to_device("multimodal_data", "cuda")
        lengths = data["multimodal_embedding_lengths"]
        return self.model_engine.forward_mm_encoder_only([param], [list(lengths)])[0]

    @torch.inference_mode()
    def run(self, inputs: dict[str, Any], max_tokens: int) -> dict[str, Any]:
        engine = self.model_engine
        ids, extra = engine.input_processor(inputs, None)
        model = engine.model
        if engine.llm_args.mm_encoder_only:
            return {"token_ids": [], "embeddings": self.encode_only(extra)}
        llm = getattr(model, "llm", model)
        state = llm.model.embed_tokens.weight[torch.tensor(ids, device=_double.DEVICE)]
        rows = inputs.get("multi_modal_embeddings")  # of an encoder's worker
        if rows is not None:
            state = torch.cat([state, *(c.to(state) for c in rows.split(state.shape[1], dim=1))])
        elif extra.get("multimodal_data"):
            rows = self.encode(extra["multimodal_data"])
            width = state.shape[1]
            state = torch.cat([state, *(c.to(state) for c in rows.split(width, dim=1))])
        return {"token_ids": llm.next_tokens(state, max_tokens), "embeddings": rows}

    def shutdown(self) -> None:
        _double.record("executor_shutdown")
        for engine in (self.model_engine, self.draft_model_engine):
            if engine is not None:
                engine._release_cuda_graphs()
        self.resource_manager.clear()
