# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
import logging
import pickle
from pathlib import Path

import pytest
from pydantic import ValidationError

from tensorrt_llm_ext.llmapi.llm_args import KvCacheConfig, LlmArgs, ServeConfig
from tensorrt_llm_ext.llmapi.mm_config import MultimodalConfig


def graphs(**entry):
    return {"encoder_cuda_graph": {"image": {"max_batch_size": 8, **entry}}}


def test_defaults():
    args = LlmArgs(model="dir")
    assert (args.backend, args.device, args.dtype) == ("auto", "auto", "auto")
    assert (args.max_batch_size, args.max_num_tokens, args.max_seq_len) == (2048, 8192, None)
    assert (args.encoder_max_batch_size, args.encoder_max_num_tokens) == (None, None)
    assert args.kv_cache_config == KvCacheConfig(free_gpu_memory_fraction=0.9, max_tokens=None)
    assert args.multimodal_config == MultimodalConfig()
    assert (args.tokenizer, args.trust_remote_code, args.notices) == (None, False, [])


def test_model_is_required_for_the_llm_but_not_in_a_file():
    assert ServeConfig().model is None
    with pytest.raises(ValidationError, match="missing"):
        LlmArgs()
    with pytest.raises(ValidationError, match="string"):
        LlmArgs(model=None)
    assert LlmArgs(model=Path("a") / "b").model == str(Path("a") / "b")


def test_null_is_the_default_where_upstream_has_it_so():
    args = LlmArgs(model="dir", max_batch_size=None, max_num_tokens=None, multimodal_config=None)
    assert args == LlmArgs(model="dir")


@pytest.mark.parametrize(
    ("values", "budget"),
    [
        ({"multimodal_config": graphs()}, 8192),
        ({"multimodal_config": graphs(), "max_num_tokens": 1024}, 1024),
        ({"multimodal_config": graphs(), "encoder_max_num_tokens": 4096}, 4096),
        (
            {"multimodal_config": graphs(max_num_tokens=512), "encoder_max_num_tokens": 4096},
            512,
        ),
        ({"encoder_max_num_tokens": 4096}, 4096),
    ],
)
def test_max_num_tokens_of_an_entry_is_resolved(values, budget):
    args = LlmArgs(model="dir", **values)
    assert args.encoder_graph_max_num_tokens("image") == budget
    assert args.encoder_graph_max_num_tokens("vision") == budget


def test_budgets_fall_back_to_the_llms():
    args = LlmArgs(model="dir", max_batch_size=4, max_num_tokens=100)
    assert (args.encoder_batch_budget, args.encoder_token_budget) == (4, 100)
    args = LlmArgs(model="dir", encoder_max_batch_size=2, encoder_max_num_tokens=50)
    assert (args.encoder_batch_budget, args.encoder_token_budget) == (2, 50)


@pytest.mark.parametrize("key", ["encoder_max_num_tokens", "max_num_tokens"])
def test_a_ladder_above_the_budget_is_refused_and_the_source_named(key):
    with pytest.raises(ValidationError, match=rf"budget \(7, from {key}\)"):
        LlmArgs(model="dir", multimodal_config=graphs(), **{key: 7})


def test_one_notice_lists_all_keys_without_effect_and_is_logged_once(caplog):
    with caplog.at_level(logging.WARNING):
        args = LlmArgs(
            model="dir",
            attn_backend="FLASHINFER",
            kv_cache_config={"enable_block_reuse": True},
            multimodal_config={"encoder_side_stream_max_ahead": 2},
        )
    (notice,) = args.notices
    for key in (
        "attn_backend",
        "kv_cache_config.enable_block_reuse",
        "multimodal_config.encoder_side_stream_max_ahead",
    ):
        assert key in notice
    assert [record.getMessage() for record in caplog.records] == [notice]


def test_a_file_is_not_logged(caplog):
    assert ServeConfig(attn_backend="X").notices
    assert caplog.records == []


def test_refusals_say_why_and_what_to_do():
    with pytest.raises(ValidationError, match=r"tensor_parallel_size.*use backend tensorrt_llm"):
        LlmArgs(model="dir", tensor_parallel_size=2)
    with pytest.raises(ValidationError, match=r"multimodal_config\.encoder_cuda_graph"):
        LlmArgs(model="dir", encoder_cuda_graph_config={"max_batch_size": 8})
    assert LlmArgs(model="dir", tensor_parallel_size=1).notices == []


def test_unknown_devices_are_refused():
    with pytest.raises(ValidationError, match="allowed: auto, cpu, cuda, cuda:0"):
        LlmArgs(model="dir", device="cuda:")


def test_models_can_be_pickled():
    args = LlmArgs(model="dir", attn_backend="X", multimodal_config=graphs())
    again = pickle.loads(pickle.dumps(args))
    assert again == args
    assert again.notices == args.notices
