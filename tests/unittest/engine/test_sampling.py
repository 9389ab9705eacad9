# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Greedy and sampled tokens of one request."""

from __future__ import annotations

import pytest
import torch

from tensorrt_llm_ext import SamplingParams
from tensorrt_llm_ext.engine.sampling import NO_TOKEN, Sampler

LOGITS = torch.tensor([0.1, 3.0, 2.0, -1.0, 2.5])
CPU = torch.device("cpu")


def draw(params: SamplingParams, count: int = 200) -> set[int]:
    sampler = Sampler(params, [1], CPU)
    return {int(sampler.next_token(LOGITS, [])) for _ in range(count)}


@pytest.mark.parametrize(
    "options",
    [
        *({}, {"temperature": 0.0}, {"top_k": 1, "temperature": 2.0}, {"top_p": 0.0}),
        *({"temperature": 1e-300}, {"temperature": 1e-40}, {"temperature": 1e-7}),
    ],
)
def test_greedy(options: dict[str, float]) -> None:
    assert draw(SamplingParams(**options)) == {1}


def test_temperature_top_k_and_top_p() -> None:
    assert draw(SamplingParams(temperature=3.0), 500) == {0, 1, 2, 3, 4}
    assert draw(SamplingParams(temperature=3.0, top_k=2)) == {1, 4}
    # Probabilities of 1, 4, 2: 0.49, 0.30, 0.18.
    assert draw(SamplingParams(top_p=0.7)) == {1, 4}


def test_extreme_temperatures() -> None:
    coldest = Sampler(SamplingParams(temperature=1e-5), [], CPU)
    assert int(coldest.next_token(LOGITS * 1e4, [])) == 1
    for temperature in (1e30, 1e308):
        params = SamplingParams(temperature=temperature, min_tokens=2)
        assert draw(params, 500) == {0, 2, 3, 4}  # 1 is held back: minus infinity


def test_min_tokens_hold_back_the_end() -> None:
    sampler = Sampler(SamplingParams(min_tokens=2), [1, 4], CPU)
    assert [int(sampler.next_token(LOGITS, [0] * n)) for n in range(4)] == [2, 2, 1, 1]


def test_seed_and_global_state() -> None:
    params = SamplingParams(temperature=2.0, seed=7)
    first, second = (Sampler(params, [], CPU) for _ in range(2))
    a = [int(first.next_token(LOGITS, [])) for _ in range(50)]
    torch.manual_seed(123)  # neither global state nor another request moves a request's draws
    other = Sampler(SamplingParams(temperature=2.0, seed=8), [], CPU)
    b = []
    for _ in range(50):
        other.next_token(LOGITS, [])
        b.append(int(second.next_token(LOGITS, [])))
    assert a == b
    unseeded = Sampler(SamplingParams(temperature=2.0), [], CPU)
    zero = Sampler(SamplingParams(temperature=2.0, seed=0), [], CPU)
    assert [int(unseeded.next_token(LOGITS, [])) for _ in range(50)] == [
        int(zero.next_token(LOGITS, [])) for _ in range(50)
    ]


@pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "top_k": 3, "top_p": 0.9}])
@pytest.mark.parametrize("broken", [float("nan"), float("inf"), None])
def test_scores_that_are_no_numbers_give_no_token(
    options: dict[str, float], broken: float | None
) -> None:
    """An error of this request, instead of one in multinomial that ends the batch, or the GPU."""
    logits = LOGITS.clone()
    if broken is None:
        logits[:] = float("-inf")
    else:
        logits[3] = broken
    sampler = Sampler(SamplingParams(**options), [1], CPU)
    assert int(sampler.next_token(logits, [])) == NO_TOKEN
    assert int(sampler.next_token(LOGITS, [])) in {1, 2, 4}
