# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
import pytest
from pydantic import ValidationError

from tensorrt_llm_ext.llmapi.llm_args import KvCacheConfig, ServeConfig
from tensorrt_llm_ext.llmapi.mm_config import MultimodalConfig
from tensorrt_llm_ext.llmapi.sampling_params import SamplingParams
from tensorrt_llm_ext.llmapi.upstream_fields import own_keys, render_upstream_page
from tensorrt_llm_ext.llmapi.upstream_keys import REQUIRED, UPSTREAM_KEYS

MODELS = {
    "LlmArgs": ServeConfig,
    "KvCacheConfig": KvCacheConfig,
    "MultimodalConfig": MultimodalConfig,
    "SamplingParams": SamplingParams,
}
ROWS = [(table, row) for table, rows in UPSTREAM_KEYS.items() for row in rows]
IDS = [f"{table}.{row.key}" for table, row in ROWS]
# Keys where ours differs on purpose: (table, key) -> our default.
OTHER_DEFAULTS = {
    ("LlmArgs", "model"): None,
    ("LlmArgs", "backend"): "auto",
    ("LlmArgs", "kv_cache_config"): KvCacheConfig(),
    ("LlmArgs", "multimodal_config"): MultimodalConfig(),
}


def test_tables_and_keys_are_those_of_the_models():
    assert UPSTREAM_KEYS.keys() == MODELS.keys()
    for table, rows in UPSTREAM_KEYS.items():
        keys = [row.key for row in rows]
        assert len(keys) == len(set(keys)), table
        fields = {f.alias or n for n, f in MODELS[table].model_fields.items()}
        assert set(keys) <= fields
    # Keys of ours that upstream has not.
    assert set(own_keys(ServeConfig)) - {r.key for r in UPSTREAM_KEYS["LlmArgs"]} == {
        "device",
        "media_limits",
    }
    assert set(own_keys(KvCacheConfig)) == {"free_gpu_memory_fraction", "max_tokens"}
    assert own_keys(MultimodalConfig) == ["encoder_cache_max_bytes", "encoder_cuda_graph"]


@pytest.mark.parametrize(("table", "row"), ROWS, ids=IDS)
def test_default_is_upstreams(table, row):
    model = MODELS[table]()
    expected = OTHER_DEFAULTS.get((table, row.key), row.default)
    assert expected is not REQUIRED
    assert getattr(model, row.field_name) == expected


@pytest.mark.parametrize(("table", "row"), ROWS, ids=IDS)
def test_default_given_explicitly_is_fine_and_notices_say_so(table, row):
    if (table, row.key) in OTHER_DEFAULTS:
        return
    model = MODELS[table].model_validate({row.key: row.default})
    expected = [row.key] if row.treatment == "accepted" else []
    assert model.keys_without_effect() == expected


@pytest.mark.parametrize(("table", "row"), ROWS, ids=IDS)
def test_refused_keys_refuse_and_accepted_keys_check(table, row):
    model = MODELS[table]
    if row.treatment == "honoured":
        return
    with pytest.raises(ValidationError) as caught:
        model.model_validate({row.key: [{"no": "such"}]})
    if row.treatment == "refused":
        (error,) = caught.value.errors()
        assert row.key in error["msg"]
        assert row.note in error["msg"]
        for value in row.allowed:
            model.model_validate({row.key: value})


def test_default_blocks_are_not_shared():
    first, second = ServeConfig(), ServeConfig()
    first.cuda_graph_config["max_batch_size"] = 1
    assert second.cuda_graph_config == {}


def test_unknown_upstream_keys_are_errors():
    with pytest.raises(ValidationError, match="extra_forbidden"):
        ServeConfig.model_validate({"some_future_key": None})


def test_page_has_one_line_for_every_key():
    page = render_upstream_page().splitlines()
    for _, row in ROWS:
        assert any(line.startswith(f"| `{row.key}` |") for line in page), row.key
    assert sum(line.startswith("| `") for line in page) == len(ROWS)
