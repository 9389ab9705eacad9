# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``llmapi/mm_encoder.py``: the encoders of a model in workers of their own.

Its arguments are an ``LLM``'s; the mode is set after they are checked, before workers start.
"""

from __future__ import annotations

from typing import Any

from .llm import LLM


class MultimodalEncoder(LLM):
    def __init__(
        self,
        model: str,
        trust_remote_code: bool = False,
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        **kwargs: Any,
    ) -> None:
        if kwargs.get("encode_only") is True:
            raise ValueError("MultimodalEncoder does not support encode_only=True.")
        if kwargs.get("max_num_tokens") is None:
            kwargs["max_num_tokens"] = 16384
        super().__init__(
            model,
            trust_remote_code=trust_remote_code,
            tensor_parallel_size=tensor_parallel_size,
            dtype=dtype,
            **kwargs,
        )

    def _build_model(self) -> None:
        self.args.mm_encoder_only = True
        super()._build_model()

    def generate(self, inputs: Any, use_tqdm: bool = True) -> Any:
        return super().generate(inputs, None, use_tqdm)
