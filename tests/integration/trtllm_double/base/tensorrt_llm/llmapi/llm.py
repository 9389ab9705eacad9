# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``llmapi/llm.py``: arguments, then workers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tensorrt_llm import _double
from tensorrt_llm.sampling_params import SamplingParams

from .llm_args import TorchLlmArgs


@dataclass
class CompletionOutput:
    index: int = 0
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None


@dataclass
class RequestOutput:
    prompt: str | None
    outputs: list[CompletionOutput]
    double_embeddings: torch.Tensor | None = None
    """Double only: what the encoder gave to the language model."""


class BaseLLM:
    def __init__(
        self,
        model: str,
        tokenizer: Any = None,
        tokenizer_mode: str = "auto",
        skip_tokenizer_init: bool = False,
        trust_remote_code: bool = False,
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        revision: str | None = None,
        tokenizer_revision: str | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.pop("backend", None)
        kwargs.pop("_tensorrt_engine_dir", None)
        self.args = TorchLlmArgs(
            model=str(model),
            tokenizer=tokenizer,
            trust_remote_code=trust_remote_code,
            tensor_parallel_size=tensor_parallel_size,
            dtype=dtype,
            **kwargs,
        )
        self.args.warn_on_unstable_feature_usage()
        for name, value in (self.args.env_overrides or {}).items():
            os.environ[name] = value
        self._executor: Any = None
        self._build_model()

    def _build_model(self) -> None:
        single = os.environ.get("TLLM_WORKER_USE_SINGLE_PROCESS") == "1"
        if single and self.args.tensor_parallel_size == 1:
            from tensorrt_llm.executor.worker import GenerationExecutorWorker

            self._executor = GenerationExecutorWorker(self.args.model, self.args)
        else:
            from tensorrt_llm.executor.proxy import GenerationExecutorProxy

            self._executor = GenerationExecutorProxy(self.args.model, self.args)
        _double.record("llm_ready")

    def generate(
        self,
        inputs: Any,
        sampling_params: SamplingParams | None = None,
        use_tqdm: bool = True,
        **kwargs: Any,
    ) -> Any:
        single = not isinstance(inputs, Sequence) or isinstance(inputs, str)
        params = sampling_params or SamplingParams()
        results = []
        for one in [inputs] if single else inputs:
            given = {"prompt": one} if isinstance(one, str) else dict(one)
            reply = self._executor.run(given, params.max_tokens)
            text = " ".join(str(token) for token in reply["token_ids"])
            output = CompletionOutput(0, text, reply["token_ids"], "length")
            results.append(RequestOutput(given.get("prompt"), [output], reply["embeddings"]))
        return results[0] if single else results

    def shutdown(self) -> None:
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown()
            _double.record("llm_down")

    def __enter__(self) -> BaseLLM:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.shutdown()


class LLM(BaseLLM):
    pass
