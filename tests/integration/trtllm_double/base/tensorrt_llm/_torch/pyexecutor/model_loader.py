# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``pyexecutor/model_loader.py``: build, materialise, load, in upstream's order."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch

from tensorrt_llm import _double
from tensorrt_llm.llmapi.llm_args import LoadFormat, TorchLlmArgs
from tensorrt_llm.logger import logger
from tensorrt_llm.mapping import Mapping

from ..models import AutoModelForCausalLM
from ..models.checkpoints import BaseCheckpointLoader, HfCheckpointLoader
from ..models.modeling_utils import MetaInitException, MetaInitMode


def _construct_checkpoint_loader(
    checkpoint_loader: BaseCheckpointLoader | None,
    checkpoint_format: str | None,
    **kwargs: Any,
) -> BaseCheckpointLoader:
    return checkpoint_loader or HfCheckpointLoader()


class ModelLoader:
    def __init__(
        self,
        llm_args: TorchLlmArgs,
        mapping: Mapping,
        spec_config: Any,
        sparse_attention_config: Any,
        max_num_tokens: int,
        max_seq_len: int | None,
        lora_config: Any = None,
        model_weights_memory_tag: str | None = None,
        model_weights_restore_mode: Any = None,
    ) -> None:
        self.llm_args, self.mapping = llm_args, mapping
        self.max_num_tokens, self.max_seq_len = max_num_tokens, max_seq_len
        self.weight_mapper: Any = None

    def load(
        self, checkpoint_dir: str, checkpoint_loader: BaseCheckpointLoader
    ) -> tuple[torch.nn.Module, Any]:
        config = checkpoint_loader.load_config(
            checkpoint_dir,
            mapping=self.mapping,
            max_num_tokens=self.max_num_tokens,
            max_seq_len=self.max_seq_len,
            attn_backend=self.llm_args.attn_backend,
            mm_encoder_only=self.llm_args.mm_encoder_only,
            disable_mm_encoder=self.llm_args.disable_mm_encoder,
            multimodal_config=self.llm_args.multimodal_config,
        )
        config._frozen = True
        config_copy = copy.deepcopy(config)
        config_copy._frozen = False
        try:
            with MetaInitMode():
                model = AutoModelForCausalLM.from_config(config_copy)
            memo: dict[torch.Tensor, torch.Tensor] = {}

            def init_meta_tensor(t: torch.Tensor) -> torch.Tensor:
                if t.device != torch.device("meta"):
                    return t
                if t not in memo:
                    memo[t] = torch.empty_like(t, device=_double.DEVICE)
                return memo[t]

            model._apply(init_meta_tensor)
            config = config_copy
            _double.record("model_built", how="meta")
        except (MetaInitException, NotImplementedError) as error:
            logger.info(f"Fallback to regular model init: {error}")
            config = copy.deepcopy(config)
            config._frozen = False
            model = AutoModelForCausalLM.from_config(config)
            _double.record("model_built", how="regular")
        model.to(_double.DEVICE)
        if self.llm_args.load_format == LoadFormat.AUTO:
            weights = checkpoint_loader.load_weights(checkpoint_dir, mapping=self.mapping)
            self.weight_mapper = checkpoint_loader.get_initialized_weight_mapper(model, config)
            _double.record("load_weights_begin", cls=type(model).__name__)
            self._call_load_weights(model.load_weights, weights, self.weight_mapper)
            _double.record("load_weights_end")
        else:
            for tensor in model.state_dict().values():
                if torch.is_floating_point(tensor):
                    tensor.uniform_(-1e-3, 1e-3)
        for module in model.modules():
            if hasattr(module, "post_load_weights"):
                module.post_load_weights()
        return model, None

    def reload(
        self, model: torch.nn.Module, weights: dict, allow_partial_loading: bool = False
    ) -> None:
        self._call_load_weights(
            model.load_weights, weights, self.weight_mapper, allow_partial_loading
        )

    def _call_load_weights(
        self,
        load_method: Callable[..., None],
        weights: Any,
        weight_mapper: Any,
        allow_partial_loading: bool = False,
    ) -> None:
        args = inspect.getfullargspec(load_method).args
        kwargs: dict[str, Any] = {}
        if "weight_mapper" in args:
            kwargs["weight_mapper"] = weight_mapper
        if "allow_partial_loading" in args:
            kwargs["allow_partial_loading"] = allow_partial_loading
        load_method(weights, **kwargs)

    def cleanup(self) -> None:
        self.weight_mapper = None
