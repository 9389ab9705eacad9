# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""transformers' towers as a user would run them: as shipped, with packed attention, compiled."""

from __future__ import annotations

import copy
import functools
import time
from typing import Any

import torch
from published_towers import (
    Call,
    Items,
    audio_call,
    clips_of,
    grids_for,
    hf_audio_outputs,
    hf_vision_outputs,
    vision_call,
)
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface

from tensorrt_llm_ext.ops.attention import BlockMaskAttention
from tensorrt_llm_ext.ops.packed_metadata import PackedAttnMetadata

# "flash" in the name: transformers then calls attention once per layer for the whole batch. The
# package flash-attn would go by the same door; torch brings the same kernel.
_ON_CUDA, _ON_CPU = "benchmark_flash_varlen", "benchmark_flash_block_mask"
COMPILE_CALLS = 4  # compiles, warms up, records the graph, and replays it


def _varlen(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    *,
    cu_seq_lens_q: torch.Tensor,
    max_length_q: int,
    scaling: float,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """[1, H, T, D] -> [1, T, H, D], by torch's variable-length flash attention."""
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    cu = cu_seq_lens_q
    out: Any = varlen_attn(q, k, v, cu, cu, max_length_q, max_length_q, scale=scaling)
    return out[None], None


def _block_mask(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    *,
    cu_seq_lens_q: torch.Tensor,
    max_length_q: int,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """The same where there is no flash attention, to try the script."""
    attention = BlockMaskAttention()
    metadata = PackedAttnMetadata(cu_seq_lens_q, (), max_length_q, attention)
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    mask = attention.prepare(metadata, q.shape[0])
    return attention(q, k, v, metadata, mask)[None], None


def packed_copy(shipped: torch.nn.Module) -> torch.nn.Module:
    """A tower of transformers with one packed attention call per layer.

    Raises:
        ValueError: It has no packed attention to choose.
    """
    if type(shipped).__name__ == "RadioModel":
        raise ValueError("RADIO of transformers takes dense batches only")
    on_cuda = next(shipped.parameters()).is_cuda
    AttentionInterface.register(_ON_CUDA, _varlen)
    AttentionInterface.register(_ON_CPU, _block_mask)
    packed: Any = copy.deepcopy(shipped)
    packed.config._attn_implementation = _ON_CUDA if on_cuda else _ON_CPU  # not in the constructor
    return packed


def call_transformers(oracle: torch.nn.Module, items: Items, dtype: torch.dtype) -> Call:
    """The plain call, inputs joined before."""
    make = vision_call if "pixel_values" in items[0] else audio_call
    return make(oracle, items, dtype)


def static_call(oracle: Any, items: Items, dtype: torch.dtype) -> tuple[Call, Any]:
    """A call that reads nothing from the device: what the layout decides is computed before.

    Args:
        oracle: Of ``packed_copy``.
        items: The batch.
        dtype: Of the weights.

    Returns:
        The call, and its function with arguments bound but not the tower:
        (tower) -> what the tower returns.
    """
    if "pixel_values" not in items[0]:
        return _static_audio(oracle, items, dtype)
    from transformers import vision_utils as vision

    grid = grids_for(oracle, items)
    merge = oracle.config.spatial_merge_size
    cu = vision.get_vision_cu_seqlens(grid)
    indices, weights = vision.get_vision_interpolation_indices_and_weights(
        grid,
        num_grid_per_side=oracle.num_grid_per_side,
        mode=oracle.interpolation_mode,
        align_corners=oracle.interpolation_align_corners,
        spatial_merge_size=merge,
    )
    pixels = torch.cat([item["pixel_values"] for item in items]).to(dtype)
    kwargs = {
        "cu_seqlens": cu,
        "max_seqlen": int(cu.diff().max()),
        "position_ids": vision.get_vision_position_ids(grid, merge),
        "interp_indices": indices,
        "interp_weights": weights,
    }
    return _bound(oracle, hf_vision_outputs, pixels, grid_thw=None, **kwargs)


def _static_audio(oracle: Any, items: Items, dtype: torch.dtype) -> tuple[Call, Any]:
    from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as omni

    features, lengths = clips_of(items, dtype)
    padded, chunks = omni.chunk_and_pad_features(features, lengths, oracle.n_window)
    cu = omni.get_audio_cu_seqlens(chunks, lengths, oracle.n_window_infer, oracle.n_window)
    kwargs = {
        "padded_feature": padded,
        "chunk_lengths": chunks,
        "valid_indices": omni.get_valid_indices(chunks, oracle.n_window),
        "cu_seqlens": cu,
        "max_seqlen": int(cu.diff().max()),
    }
    return _bound(oracle, hf_audio_outputs, features, feature_lens=lengths, **kwargs)


def _bound(oracle: Any, outputs: Any, *args: Any, **kwargs: Any) -> tuple[Call, Any]:
    def call(tower: Any) -> Any:
        return tower(*args, **kwargs)

    return Call(functools.partial(call, oracle), outputs), call


def compiled_call(packed: Any, items: Items, dtype: torch.dtype) -> tuple[Call, dict[str, Any]]:
    """torch.compile of the whole tower for one layout.

    On CUDA with ``reduce-overhead``, which replays a CUDA graph; elsewhere traced and no more.

    Args:
        packed: Of ``packed_copy``.
        items: The batch.
        dtype: Of the weights.

    Returns:
        The call, past compilation, and what compiling took. Its outputs are overwritten by the
        next call.
    """
    import torch._dynamo

    torch._dynamo.reset()
    plain, call = static_call(packed, items, dtype)
    on_cuda = next(packed.parameters()).is_cuda
    how: dict[str, Any] = {"mode": "reduce-overhead"} if on_cuda else {"backend": "eager"}
    tower = torch.compile(packed, fullgraph=True, dynamic=False, **how)
    counters = torch._dynamo.utils.counters["inductor"]
    skips_before = counters["cudagraph_skips"]

    def run() -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return call(tower)

    start = time.perf_counter()
    run()
    first = time.perf_counter()
    for _ in range(COMPILE_CALLS - 1):
        run()
    if on_cuda:
        torch.cuda.synchronize()
    info = {
        **how,
        "compile_seconds": round(first - start, 1),
        "until_steady_seconds": round(time.perf_counter() - start, 1),
        "cudagraph_skips": counters["cudagraph_skips"] - skips_before,
    }
    return Call(run, plain.outputs), info
