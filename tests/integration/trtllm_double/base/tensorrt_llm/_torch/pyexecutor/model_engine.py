# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``pyexecutor/model_engine.py`` (commit 06048c6cee66): the engine's constructor.

What it does between loading and sizing, in upstream's order; decoding is left out.
"""

from __future__ import annotations

from typing import Any

import torch

from tensorrt_llm import _double
from tensorrt_llm._utils import release_gc
from tensorrt_llm.inputs.multimodal import MultimodalParams
from tensorrt_llm.inputs.registry import create_input_processor
from tensorrt_llm.llmapi.llm_args import TorchLlmArgs
from tensorrt_llm.logger import logger
from tensorrt_llm.mapping import Mapping

from ..attention.backends.interface import AttentionRuntimeFeatures
from ..distributed import Distributed
from ..models.checkpoints.base_checkpoint_loader import BaseCheckpointLoader
from ..models.modeling_multimodal_mixin import MultimodalModelMixin
from ..utils import set_torch_compiling
from .engine.multimodal import (
    MultimodalItemScheduler,
    is_multimodal,
    mm_encoder_cache_enabled,
    setup_mm_encoder_attn_metadata,
)
from .model_loader import ModelLoader, _construct_checkpoint_loader


class ModelEngine:
    def get_max_num_sequences(self) -> int:
        raise NotImplementedError

    def warmup(self, resource_manager: Any) -> None:
        return


class PyTorchModelEngine(ModelEngine):
    def __init__(
        self,
        *,
        model_path: str,
        llm_args: TorchLlmArgs,
        mapping: Mapping | None = None,
        attn_runtime_features: AttentionRuntimeFeatures | None = None,
        dist: Distributed | None = None,
        spec_config: Any = None,
        model: torch.nn.Module | None = None,
        checkpoint_loader: BaseCheckpointLoader | None = None,
        model_weights_memory_tag: str | None = None,
        model_weights_restore_mode: Any = None,
    ) -> None:
        _double.record("engine_init", model_path=model_path)
        if llm_args.encode_only and llm_args.mm_encoder_only:
            raise ValueError("encode_only and mm_encoder_only are mutually exclusive.")
        _, max_num_tokens, max_seq_len, max_batch_size = llm_args.get_runtime_sizes()
        self.batch_size, self.max_num_tokens = max_batch_size, max_num_tokens
        self.max_seq_len = max_seq_len
        self.encoder_batch_size = (
            llm_args.encoder_max_batch_size
            if llm_args.encoder_max_batch_size is not None
            else self.batch_size
        )
        self.encoder_max_num_tokens = (
            llm_args.encoder_max_num_tokens
            if llm_args.encoder_max_num_tokens is not None
            else self.max_num_tokens
        )
        if checkpoint_loader is None:
            checkpoint_loader = _construct_checkpoint_loader(
                llm_args.checkpoint_loader, llm_args.checkpoint_format
            )
        self.mapping = mapping or Mapping()
        self.dist, self.llm_args, self.spec_config = dist, llm_args, spec_config
        self.is_spec_decode = spec_config is not None
        input_processor_kwargs = {}
        if llm_args.multimodal_config.video_pruning_rate is not None:
            input_processor_kwargs["video_pruning_rate"] = (
                llm_args.multimodal_config.video_pruning_rate
            )
        self.input_processor = create_input_processor(
            model_path,
            tokenizer=None,
            checkpoint_format=llm_args.checkpoint_format,
            trust_remote_code=llm_args.trust_remote_code,
            **input_processor_kwargs,
        )
        self.model_loader: ModelLoader | None = None
        if model is None:
            self.model_loader = ModelLoader(
                llm_args=llm_args,
                mapping=self.mapping,
                spec_config=self.spec_config,
                sparse_attention_config=None,
                max_num_tokens=self.max_num_tokens,
                max_seq_len=self.max_seq_len,
                lora_config=None,
                model_weights_memory_tag=model_weights_memory_tag,
                model_weights_restore_mode=model_weights_restore_mode,
            )
            self.model, _ = self.model_loader.load(
                checkpoint_dir=model_path, checkpoint_loader=checkpoint_loader
            )
        else:
            self.model = model
        if not hasattr(self.model, "extra_attrs"):
            self.model.extra_attrs = {}
        mm_item_scheduler = MultimodalItemScheduler.maybe_create(
            llm_args=self.llm_args,
            model=self.model,
            input_processor=self.input_processor,
            encoder_max_num_tokens=self.encoder_max_num_tokens,
        )
        self._mm_item_scheduler = mm_item_scheduler
        self.mm_encoder_item_scheduling_enabled = mm_item_scheduler is not None
        self.mm_encoder_output_budget_bytes: int | None = None
        if mm_item_scheduler is not None:
            self.encoder_max_num_tokens = mm_item_scheduler.encoder_max_num_tokens
            self.mm_encoder_output_budget_bytes = mm_item_scheduler.output_budget_bytes
            self.bytes_per_mm_encoder_embedding = mm_item_scheduler.bytes_per_embedding
        if isinstance(self.model, MultimodalModelMixin) and self.mapping.is_first_pp_rank():
            config = self.model.model_config.multimodal_config
            reuse = config.encoder_cache_max_bytes if self.model.encoder_cache_active else 0
            self.model._initialize_multimodal_encoder_cache(
                max(self.mm_encoder_output_budget_bytes or 0, reuse)
            )
        setup_mm_encoder_attn_metadata(
            self.model,
            self.input_processor,
            self.encoder_max_num_tokens,
            mm_item_scheduler.attention_metadata_capacity
            if mm_item_scheduler is not None
            else None,
        )
        self.dtype = self.model.config.torch_dtype
        self._init_model_capacity()
        self.cuda_graph_config = self.llm_args.cuda_graph_config
        # With a torch.compile configuration upstream leaves this process-wide flag on.
        set_torch_compiling(False)
        self._decoder_graphs: list[str] = []
        self._cleanup_done = False
        _double.record("engine_ready")

    def _init_max_seq_len(self) -> None:
        inferred = getattr(self.model, "infer_max_seq_len", lambda: 2048)()
        self.max_seq_len = inferred if self.max_seq_len is None else min(self.max_seq_len, inferred)

    def _init_max_num_tokens(self) -> None:
        """The language model's number is clamped here, after the encoders have had theirs."""
        most = self.max_seq_len * self.batch_size
        if self.max_num_tokens is None or self.max_num_tokens > most:
            logger.warning(f"max_num_tokens ({self.max_num_tokens}) is cut to {most}")
            self.max_num_tokens = most

    def _init_model_capacity(self) -> None:
        self._init_max_seq_len()
        self._init_max_num_tokens()
        _double.record("model_capacity", max_num_tokens=self.max_num_tokens)

    def get_max_num_sequences(self) -> int:
        return self.mapping.pp_size * self.batch_size

    @property
    def is_multimodal(self) -> bool:
        return is_multimodal(self.model, self.input_processor)

    @property
    def mm_encoder_cache_enabled(self) -> bool:
        return mm_encoder_cache_enabled(self.model)

    def warmup(self, resource_manager: Any) -> None:
        if self.llm_args.mm_encoder_only:  # upstream: ``MultimodalEncoderRunner``
            return
        if self.cuda_graph_config is not None:
            self._decoder_graphs = ["decode"]
            _double.record("decoder_graphs_captured")

    def forward_mm_encoder_only(
        self, multimodal_params: list[MultimodalParams], lengths: list[list[int]]
    ) -> list[torch.Tensor]:
        """Upstream: ``_forward_step`` of ``engine/runners/mm_encoder.py``."""
        if not multimodal_params:
            return []
        embeddings = self.model.forward(multimodal_params)
        assert len(embeddings) == 1, "mixed modalities are not supported"
        return list(torch.split(embeddings[0], [sum(of) for of in lengths], dim=0))

    def _release_cuda_graphs(self) -> None:
        self._decoder_graphs = []
        _double.record("decoder_graphs_released")

    def cleanup(self) -> None:
        """From ``__del__`` only."""
        if self._cleanup_done:
            return
        self._cleanup_done = True
        if self.model_loader is not None:
            self.model_loader.cleanup()
        self._release_cuda_graphs()
        self.model = None
        release_gc()
        _double.record("engine_cleaned")

    def __del__(self) -> None:
        if getattr(self, "_cleanup_done", True) is False:
            self.cleanup()
