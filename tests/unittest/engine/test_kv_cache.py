# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Sizing of the KV cache, and rows that join and leave it."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import torch
from transformers import AutoConfig, DynamicCache

from tensorrt_llm_ext import KvCacheConfig
from tensorrt_llm_ext.engine import kv_cache
from tensorrt_llm_ext.engine.generation import BatchCache
from tensorrt_llm_ext.graphs import memory
from tensorrt_llm_ext.graphs.capture import memory_cap
from tensorrt_llm_ext.graphs.report import KvCacheReport


def size(
    config: KvCacheConfig,
    max_seq_len: int | None,
    *,
    free: int = 10_000,
    graphs: int = 0,
    cache: int = 0,
) -> KvCacheReport:
    return kv_cache.size_kv_cache(
        config,
        free_bytes=free,
        reserved_bytes=1_000,
        encoder_cache_bytes=cache,
        graph_bytes=graphs,
        bytes_per_token=8,
        layer_copies=1 / 4,  # one layer of four twice: 10 bytes a token
        max_seq_len=max_seq_len,
    )


def test_size_from_memory() -> None:
    half = KvCacheConfig(free_gpu_memory_fraction=0.5)
    report = size(half, 400, graphs=2_000)
    assert (report.tokens, report.tokens_without_graphs) == (400, 500)
    assert (report.free_bytes, report.reserved_bytes, report.explicit) == (10_000, 1_000, False)


def test_the_encoder_output_cache_is_left_free() -> None:
    half = KvCacheConfig(free_gpu_memory_fraction=0.5)
    report = size(half, 300, graphs=2_000, cache=1_000)
    assert (report.tokens, report.tokens_without_graphs) == (300, 400)
    assert report.reserved_bytes == 1_000
    message = r"- 1,000 reserved for activations - 1,010 for the encoder output cache hold 299"
    with pytest.raises(kv_cache.KvCacheTooSmallError, match=message) as caught:
        size(half, 300, cache=1_010)
    assert size(half, 300, cache=1_010, free=10_000 + caught.value.missing_bytes).tokens == 300


def test_explicit_size_is_left_alone() -> None:
    report = size(KvCacheConfig(max_tokens=7), 5_000, graphs=2_000, free=0)
    assert (report.tokens, report.tokens_without_graphs, report.explicit) == (7, 7, True)


@pytest.mark.parametrize(
    ("fraction", "max_seq_len", "free", "graphs", "message"),
    [
        (0.5, 401, 10_000, 0, r"hold 400 tokens .* max_seq_len 401 .* Set max_seq_len=400 or less"),
        (0.5, 401, 10_000, 2_000, "Without encoder graphs 500 tokens fit: .* or max_seq_len=400"),
        (0.5, 2, 2_000, 0, "Raise free_gpu_memory_fraction"),
        (0.9, None, 1_000, 0, "Lower max_num_tokens and encoder_max_num_tokens"),
    ],
)
def test_too_little_names_a_setting_that_fits(
    fraction: float, max_seq_len: int | None, free: int, graphs: int, message: str
) -> None:
    config = KvCacheConfig(free_gpu_memory_fraction=fraction)
    with pytest.raises(kv_cache.KvCacheTooSmallError, match=message) as caught:
        size(config, max_seq_len, free=free, graphs=graphs)
    # As much as it says, and hardly less, makes one request fit.
    missing = caught.value.missing_bytes
    assert size(config, max_seq_len, free=free + missing).tokens == (max_seq_len or 2)
    with pytest.raises(kv_cache.KvCacheTooSmallError):
        size(config, max_seq_len, free=free + missing - 3)


def test_bytes_per_token(tiny_checkpoint: Path) -> None:
    config = AutoConfig.from_pretrained(tiny_checkpoint)
    assert kv_cache.kv_bytes_per_token(config, torch.float32) == 4 * 2 * 2 * 16 * 4
    assert kv_cache.kv_bytes_per_token(config, torch.bfloat16) == 4 * 2 * 2 * 16 * 2


@pytest.mark.parametrize(("heads", "shared", "copies"), [(2, True, 2), (2, False, 1), (4, True, 1)])
def test_layer_copies(tiny_checkpoint: Path, heads: int, shared: bool, copies: int) -> None:
    """4 layers, 4 heads: a padded batch of grouped heads is copied to all of them."""
    config = AutoConfig.from_pretrained(tiny_checkpoint)
    config.text_config.num_key_value_heads = heads
    assert kv_cache.layer_copies(config, shared=shared) == copies / 4


def test_free_host_memory_and_container_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = torch.device("cpu")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    available = psutil.virtual_memory().available
    assert kv_cache.free_memory(cpu) == pytest.approx(available, rel=0.2)
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("3000\n")
    assert kv_cache.free_memory(cpu) == 2000
    assert memory_cap(0.25, cpu) == 500  # encoder graphs go by the same limit
    (tmp_path / "memory.max").write_text("max\n")
    assert kv_cache.free_memory(cpu) > 5000


def one(length: int, value: float) -> DynamicCache:
    cache = DynamicCache()
    for layer in range(2):
        kv = torch.full((1, 1, length, 2), value + layer)
        cache.update(kv, -kv, layer)
    return cache


def column_values(batch: BatchCache) -> list[list[float]]:
    assert batch.cache is not None
    keys, values = batch.cache.layers[1].keys, batch.cache.layers[1].values
    assert torch.equal(keys, -values)
    return keys[:, 0, :, 0].tolist()


def test_rows_join_and_leave() -> None:
    batch, cpu = BatchCache(), torch.device("cpu")
    batch.join([one(3, 1.0)])
    assert batch.mask(cpu) is None
    batch.join([one(5, 2.0), one(1, 3.0)])
    assert column_values(batch) == [[0, 0, 2, 2, 2], [3] * 5, [0, 0, 0, 0, 4]]
    mask = batch.mask(cpu)
    assert mask is not None
    assert mask.tolist() == [[0, 0, 1, 1, 1, 1], [1] * 6, [0, 0, 0, 0, 1, 1]]
    batch.keep([0, 2])  # the longest leaves: two columns of padding go with it
    assert column_values(batch) == [[2, 2, 2], [0, 0, 4]]
    assert batch.lengths == [3, 1]
    batch.keep([1])
    assert column_values(batch) == [[4]]
    assert batch.mask(cpu) is None
    batch.keep([])
    assert batch.cache is None
    assert batch.width == 0
    batch.join([])
    batch.join([one(2, 5.0)])
    assert column_values(batch) == [[6, 6]]
