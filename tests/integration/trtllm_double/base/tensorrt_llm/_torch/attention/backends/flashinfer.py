# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of the FlashInfer backend: planned in ``prepare()``, buffers of a fixed address.

Its ragged prefill (no KV cache) takes ``kv_layout="NHD"`` and plans once per layout; a replay reads
``_ragged_qo_indptr_buf``, ``_ragged_kv_indptr_buf`` and ``workspace_buffer``, which it must find
where they were.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from tensorrt_llm import _double

from .interface import (
    AttentionBackend,
    AttentionForwardArgs,
    AttentionMetadata,
    merge_attention_forward_args,
)


@dataclass(kw_only=True)
class FlashInferAttentionMetadata(AttentionMetadata):
    workspace_buffer: torch.Tensor | None = None
    _ragged_qo_indptr_buf: torch.Tensor = field(init=False)
    _ragged_kv_indptr_buf: torch.Tensor = field(init=False)
    _planned: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.workspace_buffer is None:
            self.workspace_buffer = torch.empty(1024, dtype=torch.uint8, device=_double.DEVICE)
        size = self.max_num_requests + 1
        self._ragged_qo_indptr_buf = torch.zeros(size, dtype=torch.int, device=_double.DEVICE)
        self._ragged_kv_indptr_buf = torch.zeros(size, dtype=torch.int, device=_double.DEVICE)

    def prepare(self) -> None:
        count = self.num_seqs
        if count > self.max_num_requests:
            raise RuntimeError(f"{count} sequences exceed max_num_requests={self.max_num_requests}")
        if self.num_tokens > self.max_num_tokens:
            raise RuntimeError(
                f"{self.num_tokens} tokens exceed max_num_tokens={self.max_num_tokens}"
            )
        ends = torch.cumsum(self.seq_lens_cuda, 0, dtype=torch.int32)
        for buffer in (self._ragged_qo_indptr_buf, self._ragged_kv_indptr_buf):
            buffer[1 : count + 1].copy_(ends)
            buffer[count + 1 :].fill_(self.num_tokens)
        self._planned = True
        _double.record("plan", tokens=self.num_tokens, sequences=count)


class FlashInferAttention(AttentionBackend[FlashInferAttentionMetadata]):
    Metadata = FlashInferAttentionMetadata

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        metadata: FlashInferAttentionMetadata,
        forward_args: AttentionForwardArgs | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        args = merge_attention_forward_args(forward_args, kwargs)
        if not metadata._planned:
            raise RuntimeError("FlashInfer metadata was not planned: call prepare() first")
        if metadata.kv_cache_manager is None and metadata.kv_layout != "NHD":
            raise RuntimeError('ragged prefill without a KV cache takes kv_layout="NHD"')
        return self._packed(q, k, v, args, metadata._ragged_qo_indptr_buf)
