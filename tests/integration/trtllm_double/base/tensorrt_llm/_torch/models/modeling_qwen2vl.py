# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of what other vision models import from ``models/modeling_qwen2vl.py``."""

from __future__ import annotations

import torch

from tensorrt_llm import _double

from ..attention.backends.interface import AttentionMetadata


def _prepare_qwen_vl_vision_attn_metadata(
    seq_lens: list[int], attn_metadata: AttentionMetadata, *, max_seq_len: int
) -> AttentionMetadata:
    if not seq_lens:
        raise ValueError("Qwen VL vision attention requires at least one segment")
    if max(seq_lens) > max_seq_len:
        raise ValueError(
            "Qwen VL vision attention segment length exceeds the configured maximum: "
            f"actual={max(seq_lens)}, maximum={max_seq_len}. Increase encoder_max_num_tokens or "
            "reduce the input max_pixels."
        )
    lengths = torch.tensor(seq_lens, dtype=torch.int)
    ends = torch.nn.functional.pad(torch.cumsum(lengths, 0, dtype=torch.int32), (1, 0))
    attn_metadata.num_contexts = len(seq_lens)
    attn_metadata.request_ids = list(range(1, len(seq_lens) + 1))
    attn_metadata.seq_lens = lengths
    attn_metadata.max_seq_len = max_seq_len
    if attn_metadata.is_cuda_graph and attn_metadata.cu_q_seqlens is not None:
        attn_metadata.cu_q_seqlens.copy_(ends)
    else:
        attn_metadata.cu_q_seqlens = ends.to(_double.DEVICE)
        attn_metadata.cu_kv_seqlens = attn_metadata.cu_q_seqlens
    attn_metadata.prepare_encoder_only()
    return attn_metadata
