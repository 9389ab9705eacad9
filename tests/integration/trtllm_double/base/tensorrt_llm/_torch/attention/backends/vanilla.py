# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of the VANILLA backend: a Python loop over sequences, never captured."""

from __future__ import annotations

from typing import Any

import torch

from .interface import (
    AttentionBackend,
    AttentionForwardArgs,
    AttentionMetadata,
    merge_attention_forward_args,
)


class VanillaAttentionMetadata(AttentionMetadata):
    pass


class VanillaAttention(AttentionBackend[VanillaAttentionMetadata]):
    Metadata = VanillaAttentionMetadata

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        metadata: VanillaAttentionMetadata,
        forward_args: AttentionForwardArgs | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        args = merge_attention_forward_args(forward_args, kwargs)
        if k is None or v is None:
            q, k, v = q.chunk(3, dim=-1)
        out, start = [], 0
        for length in metadata.seq_lens.tolist():
            rows = slice(start, start + length)
            cu = torch.tensor([0, length], dtype=torch.int32, device=q.device)
            out.append(self._packed(q[rows], k[rows], v[rows], args, cu))
            start += length
        return torch.cat(out)
