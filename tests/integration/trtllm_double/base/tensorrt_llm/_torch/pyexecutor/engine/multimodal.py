# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``pyexecutor/engine/multimodal.py`` (commit 06048c6cee66).

Budgets, the item scheduler that raises them, and the set-up of encoder metadata.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tensorrt_llm import _double
from tensorrt_llm._torch.models.modeling_multimodal_encoder import MultimodalEncoderMixin
from tensorrt_llm._torch.models.modeling_multimodal_mixin import (
    MultimodalEncoderContractError,
    MultimodalModelMixin,
)
from tensorrt_llm._utils import prefer_pinned
from tensorrt_llm.inputs.multimodal import MultimodalParams, strip_mm_encoder_inputs
from tensorrt_llm.inputs.registry import (
    BaseMultimodalDummyInputsBuilder,
    BaseMultimodalInputProcessor,
    InputProcessor,
)
from tensorrt_llm.llmapi.llm_args import MultimodalEncoderSchedulingPolicy, TorchLlmArgs
from tensorrt_llm.logger import logger

from ..llm_request import (
    LlmRequest,
    MultimodalEncoderProgress,
    MultimodalEncoderRequestError,
)


def resolve_mm_encoder_token_budget(base_budget: int, model_max_atomic_item_tokens: int) -> int:
    return max(base_budget, model_max_atomic_item_tokens)


def validate_mm_encoder_scheduling_compatibility(
    llm_args: TorchLlmArgs, item_scheduling_enabled: bool
) -> None:
    config = llm_args.multimodal_config
    if not item_scheduling_enabled:
        return
    if llm_args.pipeline_parallel_size > 1:
        raise ValueError("MM encoder item scheduling does not yet support pipeline parallelism")
    if config.encoder_side_stream_max_ahead > 0:
        raise ValueError("MM encoder item scheduling does not yet support side-stream prefetch")
    eager = config.encoder_scheduling_policy == MultimodalEncoderSchedulingPolicy.EAGER
    if eager and llm_args.enable_attention_dp:
        raise ValueError("encoder_scheduling_policy=EAGER does not yet support attention DP")


def is_multimodal(model: nn.Module, input_processor: InputProcessor) -> bool:
    if isinstance(model, MultimodalModelMixin):
        return True
    return isinstance(input_processor, BaseMultimodalInputProcessor)


def mm_item_scheduling_enabled(llm_args: TorchLlmArgs, model: nn.Module) -> bool:
    policy = llm_args.multimodal_config.encoder_scheduling_policy
    return (
        not llm_args.disable_mm_encoder
        and isinstance(model, MultimodalModelMixin)
        and model.supports_mm_encoder_item_scheduling
        and policy != MultimodalEncoderSchedulingPolicy.DISABLED
    )


def mm_encoder_cache_enabled(model: nn.Module) -> bool:
    return isinstance(model, MultimodalModelMixin) and model.encoder_cache_active


def setup_mm_encoder_attn_metadata(
    model: nn.Module,
    input_processor: InputProcessor,
    encoder_max_num_tokens: int,
    attention_metadata_capacity: dict[str, int] | None,
) -> None:
    encoders = [module for module in model.modules() if isinstance(module, MultimodalEncoderMixin)]
    _double.record(
        "setup_attn_metadata",
        encoders=[type(module).__name__ for module in encoders],
        tokens=encoder_max_num_tokens,
        capacity=attention_metadata_capacity,
    )
    if not encoders:
        return
    max_seq_len = encoder_max_num_tokens
    if isinstance(input_processor, BaseMultimodalDummyInputsBuilder):
        per_item = input_processor.get_mm_max_tokens_per_item()
        max_seq_len = max(max_seq_len, max(per_item.values(), default=0))
    for module in encoders:
        setup_kwargs: dict[str, Any] = {"max_num_tokens": encoder_max_num_tokens}
        if attention_metadata_capacity is not None:
            setup_kwargs["attention_metadata_capacity"] = attention_metadata_capacity
        module.setup_attn_metadata(**setup_kwargs)
        module.set_attn_max_seq_len(max_seq_len)


def resolve_bytes_per_mm_encoder_embedding(model: MultimodalModelMixin) -> int:
    return model.embedding_dim * model.embedding_dtype.itemsize


def resolve_mm_encoder_output_budget(
    input_processor: BaseMultimodalDummyInputsBuilder,
    encoder_max_num_tokens: int,
    model: MultimodalModelMixin,
) -> tuple[int, int]:
    rows = input_processor.get_max_mm_encoder_output_embeddings(encoder_max_num_tokens)
    if rows is None or rows <= 0:
        raise ValueError("item scheduling needs get_max_mm_encoder_output_embeddings() > 0")
    per_row = resolve_bytes_per_mm_encoder_embedding(model)
    return rows * per_row, per_row


class MultimodalItemScheduler:
    def __init__(
        self,
        *,
        model: MultimodalModelMixin,
        input_processor: BaseMultimodalDummyInputsBuilder | None = None,
        attention_metadata_capacity: dict[str, int] | None = None,
        encoder_max_num_tokens: int | None = None,
        output_budget_bytes: int | None = None,
        bytes_per_embedding: int | None = None,
    ) -> None:
        self.model, self.input_processor = model, input_processor
        self.attention_metadata_capacity = attention_metadata_capacity
        self.encoder_max_num_tokens = encoder_max_num_tokens
        self.output_budget_bytes = output_budget_bytes
        self.bytes_per_embedding = bytes_per_embedding

    @classmethod
    def maybe_create(
        cls,
        *,
        llm_args: TorchLlmArgs,
        model: nn.Module,
        input_processor: BaseMultimodalDummyInputsBuilder,
        encoder_max_num_tokens: int | None,
    ) -> MultimodalItemScheduler | None:
        enabled = mm_item_scheduling_enabled(llm_args, model)
        validate_mm_encoder_scheduling_compatibility(llm_args, enabled)
        if not enabled:
            return None
        return cls.create(
            model=model,
            input_processor=input_processor,
            encoder_max_num_tokens=encoder_max_num_tokens,
            configured_encoder_max_num_tokens=llm_args.encoder_max_num_tokens,
        )

    @classmethod
    def create(
        cls,
        *,
        model: MultimodalModelMixin,
        input_processor: BaseMultimodalDummyInputsBuilder,
        encoder_max_num_tokens: int | None,
        configured_encoder_max_num_tokens: int | None,
    ) -> MultimodalItemScheduler:
        if encoder_max_num_tokens is None:
            raise ValueError("MM encoder item scheduling requires a token budget")
        per_item = input_processor.get_mm_max_tokens_per_item()
        if not per_item or any(value <= 0 for value in per_item.values()):
            raise ValueError("get_mm_max_tokens_per_item() must return positive token counts")
        raised = resolve_mm_encoder_token_budget(encoder_max_num_tokens, max(per_item.values()))
        if raised > encoder_max_num_tokens:
            logger.warning_once(
                f"encoder_max_num_tokens={encoder_max_num_tokens} is smaller than the largest "
                f"atomic multimodal item; using {raised}",
                key="raise_encoder_max_num_tokens_for_atomic_item",
            )
        _double.record("item_scheduler", base=encoder_max_num_tokens, effective=raised)
        capacity = input_processor.get_mm_encoder_attention_metadata_capacity(raised)
        if capacity is not None and (not capacity or any(v <= 0 for v in capacity.values())):
            raise ValueError("get_mm_encoder_attention_metadata_capacity() must be positive")
        budget, per_row = resolve_mm_encoder_output_budget(input_processor, raised, model)
        return cls(
            model=model,
            input_processor=input_processor,
            attention_metadata_capacity=capacity,
            encoder_max_num_tokens=raised,
            output_budget_bytes=budget,
            bytes_per_embedding=per_row,
        )

    @property
    def encoder_cache(self) -> Any:
        return self.model._multimodal_encoder_cache

    @torch.inference_mode()
    def forward_items(
        self, requests: list[LlmRequest], scheduled_items: dict[int, list[int]]
    ) -> None:
        by_id = {request.request_id: request for request in requests}
        items, targets = [], []
        for request_id, indices in scheduled_items.items():
            request = by_id[request_id]
            param = MultimodalParams(multimodal_data=request.py_multimodal_data)
            state = request.py_mm_encoder_state
            for index in indices:
                items.append((param, index))
                targets.append((state.item_cache_keys[index], state.embedding_lengths[index]))
        try:
            inputs = self.model.prepare_multimodal_encoder_inputs(items)
            for encoder_input, _, _ in inputs:
                encoder_input.to_device(
                    "multimodal_data",
                    "cuda",
                    pin_memory=prefer_pinned(),
                    target_keywords=getattr(self.model, "multimodal_data_device_paths", None),
                )
            outputs = self.model.forward_multimodal_encoder_items(inputs)
        except MultimodalEncoderContractError as error:
            raise MultimodalEncoderRequestError(str(error), request_ids=set(by_id)) from error
        if len(outputs) != len(targets):
            raise MultimodalEncoderRequestError("one output per item", request_ids=set(by_id))
        for output, (key, rows) in zip(outputs, targets, strict=True):
            if output.shape[0] != rows:
                raise MultimodalEncoderRequestError(
                    f"MM item produced {output.shape[0]} embeddings; expected {rows}"
                )
            self.encoder_cache.commit(key, output)
        for request in requests:
            request.py_mm_encoder_state.progress = MultimodalEncoderProgress.READY
            strip_mm_encoder_inputs(request.py_multimodal_data)

    def build_multimodal_data_for_llm(self, request: LlmRequest) -> dict[str, Any] | None:
        state = request.py_mm_encoder_state
        if state is None:
            return request.py_multimodal_data
        segments = [self.encoder_cache.get(key) for key in state.item_cache_keys]
        data = dict(request.py_multimodal_data or {})
        data["multimodal_embedding"] = torch.cat(segments, dim=0)
        return data
