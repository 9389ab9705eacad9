# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``pyexecutor/_util.py``: how much memory is left for the KV cache, by measurement."""

from __future__ import annotations

import gc
from typing import Any

from tensorrt_llm import _double
from tensorrt_llm.inputs.multimodal import MultimodalParams
from tensorrt_llm.inputs.registry import BaseMultimodalDummyInputsBuilder
from tensorrt_llm.logger import logger


class KvCacheCreator:
    """Upstream takes a dozen keyword arguments more."""

    def __init__(
        self,
        *,
        model_engine: Any,
        draft_model_engine: Any,
        mapping: Any,
        llm_args: Any,
        kv_cache_config: Any,
        max_num_tokens: int,
        max_seq_len: int,
        max_batch_size: int,
        **kwargs: Any,
    ) -> None:
        self._model_engine, self._draft_model_engine = model_engine, draft_model_engine
        self._mapping, self._llm_args = mapping, llm_args
        self._kv_cache_config = kv_cache_config
        self._max_kv_tokens_in = kv_cache_config.max_tokens

    def _kv_bytes_per_token(self) -> int:
        config = self._model_engine.model.model_config.pretrained_config
        layers = getattr(config, "num_hidden_layers", 1) or 1
        return 4 * config.hidden_size * layers

    def try_prepare_estimation(self) -> bool:
        config = self._model_engine.model.model_config
        if config.attn_backend == "VANILLA":
            logger.info("KV cache size estimation is not supported for Vanilla attention backend")
            return False
        return "cp_type" not in self._mapping.cp_config

    def _create_dummy_encoder_inputs(self) -> list[MultimodalParams]:
        engine = self._model_engine
        processor = engine.input_processor
        if getattr(engine.model, "mm_encoder", object()) is None:
            return []  # disable_mm_encoder, or encoders in processes of their own
        if not hasattr(engine.model, "encode_multimodal_inputs") or not isinstance(
            processor, BaseMultimodalDummyInputsBuilder
        ):
            return []
        per_item = processor.get_mm_max_tokens_per_item(engine.encoder_max_num_tokens)
        count = max(1, engine.encoder_max_num_tokens // max(per_item.values(), default=1))
        data = processor.get_dummy_mm_data(
            max_num_encoder_tokens=engine.encoder_max_num_tokens,
            mm_counts={"image": min(count, engine.encoder_batch_size)},
        )
        return [MultimodalParams(multimodal_data=data)] if data else []

    def _encode_dummy_inputs(self) -> Any:
        inputs = self._create_dummy_encoder_inputs()
        if not inputs:
            return None
        _double.record("dummy_encode")
        return self._model_engine.model.encode_multimodal_inputs(inputs)

    def build_managers(self, resources: dict[str, Any], estimating_kv_cache: bool = False) -> None:
        resources["kv_cache_manager"] = {"tokens": self._kv_cache_config.max_tokens}
        _double.record("kv_managers_built", estimating=estimating_kv_cache)

    def teardown_managers(self, resources: dict[str, Any]) -> None:
        resources.clear()
        _double.record("kv_managers_torn_down")

    def configure_kv_cache_capacity(self, py_executor: Any | None = None) -> None:
        gc.collect()
        embeddings = self._encode_dummy_inputs() if py_executor is not None else None
        used = _double.used_bytes()
        del embeddings
        _, total = _double.mem_get_info()
        reserve = 0
        if self._model_engine.mm_encoder_output_budget_bytes:
            reserve = self._model_engine.mm_encoder_output_budget_bytes
        fraction = self._kv_cache_config.free_gpu_memory_fraction
        memory = max(int((total - used - reserve) * fraction), 0)
        tokens = memory // self._kv_bytes_per_token()
        if self._max_kv_tokens_in is not None:
            tokens = min(tokens, self._max_kv_tokens_in)
        self._kv_cache_config.max_tokens = tokens
        self._kv_cache_config.max_gpu_total_bytes = memory
        _double.record("kv_sized", tokens=tokens, used=used, total=total)
