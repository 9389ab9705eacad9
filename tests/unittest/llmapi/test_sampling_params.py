# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
import pytest
from pydantic import ValidationError

from tensorrt_llm_ext.llmapi.sampling_params import SamplingParams


def test_defaults_are_upstreams_and_greedy():
    params = SamplingParams()
    assert params.max_tokens == 32
    assert params.skip_special_tokens is True
    assert params.ignore_eos is False
    assert params.greedy


@pytest.mark.parametrize(
    ("values", "greedy"),
    [
        ({"temperature": 0}, True),
        ({"temperature": 0.7}, False),
        ({"temperature": 0.7, "top_k": 1}, True),
        ({"top_k": 50}, False),
        ({"top_k": 0}, False),
        ({"top_p": 0.9}, False),
        ({"top_p": 0.0, "temperature": 1.0}, True),
        ({"seed": 5}, True),
    ],
)
def test_greedy_unless_sampling_is_asked_for(values, greedy):
    assert SamplingParams(**values).greedy is greedy


@pytest.mark.parametrize(
    "values",
    [
        {"max_tokens": 0},
        {"max_tokens": True},
        {"max_tokens": "8"},
        {"max_tokens": None},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"temperature": True},
        {"temperature": "1"},
        {"top_p": 1.1},
        {"top_k": -1},
        {"top_k": 1.5},
        {"seed": -1},
        {"seed": 2**63},
        {"min_tokens": 9, "max_tokens": 8},
        {"stop": ""},
        {"stop": ["a", ""]},
        {"stop": 5},
        {"stop": [5]},
        {"ignore_eos": 1},
        {"maxtokens": 8},
        {"n": 2},
        {"use_beam_search": True},
    ],
    ids=str,
)
def test_bad_values_are_refused(values):
    with pytest.raises(ValidationError):
        SamplingParams(**values)


def test_stop_is_a_list_after_validation():
    assert SamplingParams(stop="x").stop == ["x"]
    assert SamplingParams(stop=["x", "y"]).stop == ["x", "y"]
    assert SamplingParams(stop=[]).stop == []
