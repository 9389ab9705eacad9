# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Who can share a cache, what separate ones cost, and how requests come and go."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, DynamicCache

from tensorrt_llm_ext import LLM, SamplingParams
from tensorrt_llm_ext.engine.caches import SeparateCaches, can_share
from tensorrt_llm_ext.engine.errors import RequestError
from tensorrt_llm_ext.engine.scheduler import Limits, Request

LIMITS = Limits(
    max_batch_size=4,
    max_num_tokens=100,
    max_seq_len=80,
    kv_tokens=200,
    encoder_items=3,
    encoder_rows=64,
)


@pytest.mark.parametrize(
    ("family", "shared"),
    [("qwen3_vl", True), ("glm4v_moe", True), ("qwen3_5", False), ("glm5_next", False)],
)
def test_who_shares(family: str, shared: bool, family_checkpoint: Callable[[str], Path]) -> None:
    config = AutoConfig.from_pretrained(family_checkpoint(family)).get_text_config()
    assert can_share(config) is shared


def test_a_sliding_window_is_not_shared(family_checkpoint: Callable[[str], Path]) -> None:
    config = AutoConfig.from_pretrained(family_checkpoint("qwen3_vl")).get_text_config()
    config.layer_types = ["full_attention"] * 3 + ["sliding_attention"]
    config.sliding_window = 8
    assert not can_share(config)


def filled(length: int) -> DynamicCache:
    cache = DynamicCache()
    cache.update(torch.full((1, 2, length, 4), float(length)), torch.zeros(1, 2, length, 4), 0)
    return cache


def test_rows_join_and_leave() -> None:
    caches = SeparateCaches()
    assert list(caches.groups(torch.device("cpu"))) == []
    three, five, seven = map(filled, (3, 5, 7))
    caches.join([three, five])
    caches.join([seven])
    assert caches.lengths == [3, 5, 7]
    caches.keep([0, 2])
    assert caches.lengths == [3, 7]
    groups = list(caches.groups(torch.device("cpu")))
    assert [(rows, mask) for rows, _, mask in groups] == [
        (slice(0, 1), None),
        (slice(1, 2), None),
    ]
    assert [cache for _, cache, _ in groups] == [three, seven]
    caches.keep([])
    assert caches.caches == caches.lengths == []


def request_of(prompt: int, new: int) -> Request:
    unused: Any = None
    media: Any = SimpleNamespace(token_ids=[0] * prompt, items={})
    return Request(0, media, unused, new, unused, unused, unused)


def test_cost_of_separate_caches_and_states() -> None:
    batch = [request_of(10, 5), request_of(30, 2)]
    assert LIMITS.cost(batch) == 2 * 32
    assert dataclasses.replace(LIMITS, state_tokens=7).cost(batch) == 2 * 39
    apart = dataclasses.replace(LIMITS, shared_cache=False)
    assert apart.cost(batch) == 15 + 32
    assert dataclasses.replace(apart, state_tokens=7).cost(batch) == 15 + 32 + 2 * 7
    with pytest.raises(RequestError, match="holds 43; ask for max_tokens <= 3"):
        dataclasses.replace(LIMITS, kv_tokens=50, state_tokens=7).new_tokens(40, 10)


def test_states_are_measured(family_checkpoint: Callable[[str], Path]) -> None:
    """Qwen3.5: one layer of keys and values, three of recurrent states."""
    options = {"device": "cpu", "max_seq_len": 100, "kv_cache_config": {"max_tokens": 300}}
    with LLM(model=family_checkpoint("qwen3_5"), **options) as llm:
        kv = llm.startup_report.kv_cache
        assert kv is not None
        assert kv.bytes_per_token == 2 * 2 * 16 * 4
        # Per layer: 4 heads of 16 x 16, and 4 columns of 2 * 2 * 16 + 4 * 16 channels.
        states = 3 * 4 * (4 * 16 * 16 + 4 * (2 * 2 * 16 + 4 * 16))
        limits = llm._engine.loop.limits
        assert limits.state_tokens == -(-states // kv.bytes_per_token)
        assert not limits.shared_cache
        # Requests of unlike lengths, decoded together and alone.
        prompts = ["a", "The sky over the temple was", "Hello there"]
        params = [SamplingParams(max_tokens=n, ignore_eos=True) for n in (6, 3, 5)]
        outs = llm.generate(prompts, params)
        for prompt, its, out in zip(prompts, params, outs, strict=True):
            assert llm.generate(prompt, its).outputs[0].token_ids == out.outputs[0].token_ids
