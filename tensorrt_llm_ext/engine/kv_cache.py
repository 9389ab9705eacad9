# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""How many tokens the KV cache may hold: memory really left after encoder graphs were captured."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ..graphs.memory import free_memory
from ..graphs.report import KvCacheReport
from ..llmapi.llm_args import KvCacheConfig

__all__ = [
    "KvCacheTooSmallError",
    "estimate_peak",
    "free_memory",
    "kv_bytes_per_token",
    "layer_copies",
    "measure_peak",
    "size_kv_cache",
]


class KvCacheTooSmallError(ValueError):
    """Not one request of ``max_seq_len`` fits.

    Attributes:
        missing_bytes: What has to become free for it.
    """

    def __init__(self, message: str, missing_bytes: int) -> None:
        super().__init__(message)
        self.missing_bytes = missing_bytes


def kv_bytes_per_token(config: Any, dtype: torch.dtype) -> int:
    """Bytes of keys and values of all layers for one token, where every layer is of that kind.

    Args:
        config: Model configuration of transformers.
        dtype: Dtype of the cache.
    """
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return int(2 * text.num_hidden_layers * heads * head_dim * dtype.itemsize)


def layer_copies(config: Any, *, shared: bool) -> float:
    """What a step holds of the cache besides the cache itself, as a share of it.

    One layer exists twice while it grows. In a padded batch transformers then copies its keys and
    values to every query head, because grouped heads and a mask do not go together in SDPA.

    Args:
        config: Model configuration of transformers.
        shared: Whether requests share a padded cache.
    """
    text = config.get_text_config()
    heads = text.num_attention_heads
    groups = heads // (getattr(text, "num_key_value_heads", None) or heads)
    return float(max(groups, 1) if shared else 1) / int(text.num_hidden_layers)


def measure_peak(device: torch.device, work: Callable[[], object]) -> int:
    """Bytes that some work allocates at its peak, on top of what is allocated now. CUDA only."""
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    torch.cuda.synchronize(device)
    return int(torch.cuda.max_memory_allocated(device) - before)


def estimate_peak(rows: int, width: int, inner: int, itemsize: int) -> int:
    """Bytes of one transformer layer's activations, for hosts where a peak cannot be measured.

    Args:
        rows: Tokens of one forward.
        width: Hidden size.
        inner: Width of the MLP.
        itemsize: Bytes of one element.
    """
    # Residual, norm, q, k, v, attention output in fp32 or less; gate, up and their product.
    return rows * (8 * width * max(itemsize, 4) + 3 * inner * itemsize)


def size_kv_cache(
    config: KvCacheConfig,
    *,
    free_bytes: int,
    reserved_bytes: int,
    encoder_cache_bytes: int,
    graph_bytes: int,
    bytes_per_token: int,
    layer_copies: float,
    max_seq_len: int | None,
) -> KvCacheReport:
    """Work out the size of the KV cache.

    Args:
        config: The user's settings; an explicit ``max_tokens`` is taken as it is.
        free_bytes: Memory left after capture.
        reserved_bytes: Memory kept back for activations.
        encoder_cache_bytes: Memory that the encoder output cache is going to take.
        graph_bytes: Memory that the encoder graphs took.
        bytes_per_token: Of :func:`kv_bytes_per_token`.
        layer_copies: What a running step holds besides, as a share: see :func:`layer_copies`.
        max_seq_len: Longest request the user asked for, or None for "what fits".

    Returns:
        The report; ``tokens`` is the size.

    Raises:
        KvCacheTooSmallError: Not one request of ``max_seq_len`` fits.
    """
    cost, kept = bytes_per_token * (1 + layer_copies), reserved_bytes + encoder_cache_bytes

    def fits(free: int) -> int:
        return max(int((free * config.free_gpu_memory_fraction - kept) / cost), 0)

    explicit = config.max_tokens is not None
    tokens = config.max_tokens if config.max_tokens is not None else fits(free_bytes)
    without = tokens if explicit else fits(free_bytes + graph_bytes)
    report = KvCacheReport(
        tokens=tokens,
        tokens_without_graphs=without,
        bytes_per_token=bytes_per_token,
        free_bytes=free_bytes,
        reserved_bytes=reserved_bytes,
        explicit=explicit,
    )
    needed = 2 if max_seq_len is None else max_seq_len
    if explicit or tokens >= needed:
        return report
    numbers = (
        f"KV cache: {free_bytes:,} bytes free after capture x free_gpu_memory_fraction "
        f"{config.free_gpu_memory_fraction:g} - {reserved_bytes:,} reserved for activations - "
        f"{encoder_cache_bytes:,} for the encoder output cache hold {tokens:,} "
        f"tokens of {bytes_per_token:,} bytes; one request of max_seq_len {needed:,} does not fit"
    )
    wanted = math.ceil((needed * cost + kept) / config.free_gpu_memory_fraction) + 1
    advice = _advice(config, tokens, without, needed)
    raise KvCacheTooSmallError(f"{numbers}. {advice}", wanted - free_bytes)


def _advice(config: KvCacheConfig, tokens: int, without: int, needed: int) -> str:
    if without >= needed:
        return (
            f"Without encoder graphs {without:,} tokens fit: set a smaller max_graph_memory or "
            "fewer buckets, "
            f"or max_seq_len={tokens}"
        )
    if tokens >= 2:
        return f"Set max_seq_len={tokens} or less, or free memory"
    if config.free_gpu_memory_fraction < 0.9:
        return "Raise free_gpu_memory_fraction, or lower max_num_tokens and encoder_max_num_tokens"
    return "Lower max_num_tokens and encoder_max_num_tokens, use a smaller dtype, or free memory"
