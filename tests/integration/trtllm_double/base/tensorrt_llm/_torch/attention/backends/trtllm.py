# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of the TRTLLM attention backend as an encoder without a KV cache uses it."""

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
class TrtllmAttentionMetadata(AttentionMetadata):
    workspace: torch.Tensor | None = None
    host_request_types: torch.Tensor | None = field(init=False, default=None)
    _prepared: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.host_request_types = torch.empty(self.max_num_requests, dtype=torch.int)
        self.host_request_types.fill_(1)  # garbage until prepare()

    def _check(self) -> None:
        if self.num_seqs > self.max_num_requests:
            raise RuntimeError(
                f"{self.num_seqs} sequences exceed max_num_requests={self.max_num_requests}"
            )
        self.host_request_types[: self.num_seqs].fill_(0)
        self._prepared = self.num_seqs

    def prepare(self) -> None:
        self._check()

    def prepare_encoder_only(self) -> None:
        self._check()

    def bind_encoder_cuda_graph_seq_lens(
        self, seq_lens_host: torch.Tensor, padded_batch_size: int
    ) -> None:
        self._seq_lens = seq_lens_host[:padded_batch_size]
        self._num_contexts = padded_batch_size
        self._num_generations = 0
        self.host_request_types[:padded_batch_size].fill_(0)
        self._prepared = padded_batch_size


class TrtllmAttention(AttentionBackend[TrtllmAttentionMetadata]):
    Metadata = TrtllmAttentionMetadata

    @classmethod
    def support_fused_qkv(cls) -> bool:
        return True

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        metadata: TrtllmAttentionMetadata,
        forward_args: AttentionForwardArgs | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        args = merge_attention_forward_args(forward_args, kwargs)
        if metadata.max_seq_len is None:
            raise RuntimeError("set metadata.max_seq_len before the forward")
        if metadata._prepared < metadata.num_seqs:
            raise RuntimeError("metadata was not prepared for this many sequences")
        # The workspace of a process grows and never shrinks.
        need = q.shape[0] * 16
        if _double.DEVICE.type == "cpu" and (
            _WORKSPACE.get("bytes") is None or _WORKSPACE["bytes"].numel() < need
        ):
            _WORKSPACE["bytes"] = torch.empty(need, dtype=torch.uint8)
            _double.record("workspace", backend="TRTLLM", bytes=need)
        cu = metadata.cu_q_seqlens
        if cu is None:
            lens = metadata.seq_lens_cuda
            cu = torch.nn.functional.pad(torch.cumsum(lens, 0, dtype=torch.int32), (1, 0))
        return self._packed(q, k, v, args, cu)


_WORKSPACE: dict[str, torch.Tensor] = {}
