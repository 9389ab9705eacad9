# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of the attention interface: metadata of a batch, and the base of the backends.

Names and in-place rules as read in ``_torch/attention_backend/interface.py`` (the module moved to
``_torch/attention/backends`` before commit 06048c6cee66). Only what an encoder uses.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, Literal, TypeVar

import torch

from tensorrt_llm import _double
from tensorrt_llm._utils import maybe_pin_memory


@dataclass
class AttentionRuntimeFeatures:
    chunked_prefill: bool = False
    cache_reuse: bool = False


@dataclass(kw_only=True)
class AttentionMetadata:
    max_num_requests: int
    max_num_tokens: int
    max_num_sequences: int | None = None
    kv_cache_manager: Any = None
    mapping: Any = None
    kv_layout: Literal["NHD", "HND"] = "HND"
    is_cuda_graph: bool = field(default=False, repr=False)
    request_ids: list[int] | None = None
    prompt_lens: list[int] | None = None
    cu_q_seqlens: torch.Tensor | None = None
    cu_kv_seqlens: torch.Tensor | None = None
    max_seq_len: int | None = None
    runtime_features: AttentionRuntimeFeatures = field(default_factory=AttentionRuntimeFeatures)
    _num_contexts: int = field(init=False, default=0, repr=False)
    _num_generations: int = field(init=False, default=0, repr=False)
    _num_ctx_tokens: int = field(init=False, default=0, repr=False)
    _num_tokens: int = field(init=False, default=0, repr=False)
    _seq_lens: torch.Tensor | None = field(init=False, default=None, repr=False)
    _seq_lens_cuda: torch.Tensor | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        _double.record(
            "metadata",
            cls=type(self).__name__,
            max_num_requests=self.max_num_requests,
            max_num_tokens=self.max_num_tokens,
        )

    def on_update(self) -> None:
        if self._seq_lens is not None:
            self._num_ctx_tokens = int(self._seq_lens[: self._num_contexts].sum())
            self._num_generations = self._seq_lens.shape[0] - self._num_contexts
            self._num_tokens = int(self._seq_lens.sum())

    @property
    def seq_lens(self) -> torch.Tensor | None:
        return self._seq_lens

    @seq_lens.setter
    def seq_lens(self, value: torch.Tensor | None) -> None:
        self._seq_lens = value
        self.on_update()
        if value is None:
            return
        self._seq_lens = maybe_pin_memory(value)
        if self.is_cuda_graph and self._seq_lens_cuda is not None:
            # A graph holds the address.
            self._seq_lens_cuda.copy_(self._seq_lens, non_blocking=True)
        else:
            self._seq_lens_cuda = self._seq_lens.to(_double.DEVICE, copy=True)

    @property
    def num_contexts(self) -> int:
        return self._num_contexts

    @num_contexts.setter
    def num_contexts(self, value: int) -> None:
        self._num_contexts = value
        self.on_update()

    @property
    def num_generations(self) -> int:
        return self._num_generations

    @property
    def seq_lens_cuda(self) -> torch.Tensor | None:
        return self._seq_lens_cuda

    @property
    def context_lens(self) -> torch.Tensor:
        return self.seq_lens[: self.num_contexts]

    @property
    def num_seqs(self) -> int:
        return self.seq_lens.shape[0]

    @property
    def num_ctx_tokens(self) -> int:
        return self._num_ctx_tokens

    @property
    def num_tokens(self) -> int:
        return self._num_tokens

    def prepare(self) -> None:
        """Before a forward."""

    def prepare_encoder_only(self) -> None:
        self.prepare()

    def create_cuda_graph_metadata(
        self,
        max_batch_size: int,
        sub_cross_metadata: bool = False,
        max_draft_tokens: int = 0,
        buffers: Any = None,
        encode_only: bool = False,
    ) -> AttentionMetadata:
        if self.is_cuda_graph:
            return self
        metadata = copy.copy(self)
        metadata.is_cuda_graph = True
        metadata._seq_lens_cuda = None
        metadata.seq_lens = torch.ones((max_batch_size,), dtype=torch.int) * (
            1 if encode_only else 1 + max_draft_tokens
        )
        if not encode_only:
            metadata.num_contexts = 0
        return metadata


class PredefinedAttentionMask(str, Enum):
    CAUSAL = "causal"
    FULL = "full"


@dataclass(kw_only=True, slots=True)
class AttentionForwardArgs:
    output: torch.Tensor | None = None
    attention_mask: PredefinedAttentionMask = PredefinedAttentionMask.CAUSAL
    attention_window_size: int | None = None
    attention_mask_data: torch.Tensor | None = None
    attention_sinks: torch.Tensor | None = None
    is_fused_qkv: bool = False
    update_kv_cache: bool = True


_FORWARD_ARGS = frozenset(AttentionForwardArgs.__dataclass_fields__)


def merge_attention_forward_args(
    forward_args: AttentionForwardArgs | None, kwargs: dict[str, Any]
) -> AttentionForwardArgs:
    unknown = sorted(set(kwargs) - _FORWARD_ARGS)
    if unknown:
        raise ValueError(f"Unknown attention forward arguments: {unknown}")
    if forward_args is not None and kwargs:
        raise ValueError("Pass attention options through forward_args or as kwargs, not both")
    return forward_args if forward_args is not None else AttentionForwardArgs(**kwargs)


TMetadata = TypeVar("TMetadata", bound=AttentionMetadata)


class AttentionBackend(Generic[TMetadata]):
    Metadata: type[TMetadata] = AttentionMetadata

    def __init__(
        self,
        layer_idx: int,
        num_heads: int,
        head_dim: int,
        num_kv_heads: int | None = None,
        quant_config: Any = None,
        **kwargs: Any,
    ) -> None:
        self.layer_idx, self.num_heads, self.head_dim = layer_idx, num_heads, head_dim
        self.num_kv_heads = num_kv_heads or num_heads
        self.quant_config = quant_config

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        metadata: TMetadata,
        forward_args: AttentionForwardArgs | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        raise NotImplementedError

    @classmethod
    def support_fused_rope(cls) -> bool:
        return False

    @classmethod
    def support_fused_qkv(cls) -> bool:
        return False

    # -- what the doubles share ---------------------------------------------------------------

    def _packed(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        args: AttentionForwardArgs,
        cu_seqlens: torch.Tensor,
    ) -> torch.Tensor:
        """Attention inside runs that ``cu_seqlens`` (device tensor, read here) delimits.

        Rows of no run come out as zeros. One masked product, so that a captured graph keeps its
        shape while the runs change.
        """
        if k is None or v is None:
            q, k, v = q.chunk(3, dim=-1)
        tokens = q.shape[0]
        shape = (tokens, -1, self.head_dim)
        rows = torch.arange(tokens, device=q.device)
        run = torch.searchsorted(cu_seqlens.to(rows.dtype)[1:].contiguous(), rows, right=True)
        mask = run[:, None] == run[None, :]
        if args.attention_mask == PredefinedAttentionMask.CAUSAL:
            mask = mask & (rows[None, :] <= rows[:, None])
        out = torch.nn.functional.scaled_dot_product_attention(
            *(x.reshape(shape).transpose(0, 1)[None] for x in (q, k, v)), attn_mask=mask
        )
        return out[0].transpose(0, 1).reshape(tokens, -1)
