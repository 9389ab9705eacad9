# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""A table of values: what the models say of them, and that the schemas say the same."""

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ValidationError

from tensorrt_llm_ext.llmapi.llm_args import ServeConfig
from tensorrt_llm_ext.llmapi.mm_config import MultimodalConfig
from tensorrt_llm_ext.llmapi.schema import INEXPRESSIBLE_RULES, build_schema

SERVE_VALIDATOR = Draft202012Validator(build_schema("trtllm-ext-serve-config.schema.json"))
MULTIMODAL_VALIDATOR = Draft202012Validator(build_schema("multimodal-config.schema.json"))

IMAGE_8 = {"max_batch_size": 8}

# One entry of encoder_cuda_graph.
ENTRY_CASES: list[tuple[Any, bool]] = [
    ({"max_batch_size": 8}, True),
    ({"max_batch_size": 8.0}, True),
    ({"buckets": [[256, 1], [512, 2]]}, True),
    ({"buckets": [[4, 4]]}, True),
    ({"max_batch_size": 8, "max_num_tokens": 8}, True),
    ({"max_batch_size": 8, "max_num_tokens": None}, True),
    ({"buckets": [[256, 1]], "max_batch_size": None, "max_num_tokens": None}, True),
    ({"buckets": None, "max_batch_size": 8}, True),
    # exactly one of buckets and max_batch_size; max_num_tokens only with the latter
    ({}, False),
    (None, False),
    ([], False),
    ({"enable_padding": True}, False),
    ({"buckets": None}, False),
    ({"buckets": None, "max_batch_size": None}, False),
    ({"buckets": [[256, 1]], "max_batch_size": 8}, False),
    ({"buckets": [[256, 1]], "max_num_tokens": 256}, False),
    ({"max_num_tokens": 256}, False),
    # buckets
    ({"buckets": []}, False),
    ({"buckets": [[256]]}, False),
    ({"buckets": [[256, 1, 1]]}, False),
    ({"buckets": [256, 1]}, False),
    ({"buckets": {"256": 1}}, False),
    ({"buckets": "[[256, 1]]"}, False),
    ({"buckets": [[256, 0]]}, False),
    ({"buckets": [[0, 0]]}, False),
    ({"buckets": [[-4, 1]]}, False),
    ({"buckets": [[256, True]]}, False),
    ({"buckets": [["256", 1]]}, False),
    ({"buckets": [[256.5, 1]]}, False),
    ({"buckets": [[256, None]]}, False),
    ({"buckets": [[1e9, 1]]}, False),
    ({"buckets": [[256, 1]] * 513}, False),
    # whole numbers
    ({"max_batch_size": 0}, False),
    ({"max_batch_size": -1}, False),
    ({"max_batch_size": True}, False),
    ({"max_batch_size": "8"}, False),
    ({"max_batch_size": 8.5}, False),
    ({"max_batch_size": [8]}, False),
    ({"max_batch_size": 10**9}, False),
    ({"max_batch_size": 8, "max_num_tokens": 0}, False),
    ({"max_batch_size": 8, "max_num_tokens": "4096"}, False),
    ({"max_batch_size": 8, "warmup_steps": 1}, True),
    ({"max_batch_size": 8, "warmup_steps": 0}, False),
    ({"max_batch_size": 8, "warmup_steps": 10**9}, False),
    ({"max_batch_size": 8, "warmup_steps": None}, False),
    # bools and choices
    ({"max_batch_size": 8, "enable_padding": False, "enable_replay_stats": True}, True),
    ({"max_batch_size": 8, "enable_padding": 1}, False),
    ({"max_batch_size": 8, "enable_padding": "true"}, False),
    ({"max_batch_size": 8, "enable_padding": None}, False),
    ({"max_batch_size": 8, "prune_slower_than_eager": False}, True),
    ({"max_batch_size": 8, "prune_slower_than_eager": 0}, False),
    ({"max_batch_size": 8, "on_capture_failure": "raise"}, True),
    ({"max_batch_size": 8, "on_capture_failure": "Raise"}, False),
    ({"max_batch_size": 8, "on_capture_failure": None}, False),
    # memory
    ({"max_batch_size": 8, "max_graph_memory": None}, True),
    ({"max_batch_size": 8, "max_graph_memory": 2**20}, True),
    ({"max_batch_size": 8, "max_graph_memory": 2**20 - 1}, False),
    ({"max_batch_size": 8, "max_graph_memory": 0.25}, True),
    ({"max_batch_size": 8, "max_graph_memory": 0}, False),
    ({"max_batch_size": 8, "max_graph_memory": 0.0}, False),
    ({"max_batch_size": 8, "max_graph_memory": 1}, False),
    ({"max_batch_size": 8, "max_graph_memory": 1.0}, False),
    ({"max_batch_size": 8, "max_graph_memory": 1.5}, False),
    ({"max_batch_size": 8, "max_graph_memory": -0.5}, False),
    ({"max_batch_size": 8, "max_graph_memory": True}, False),
    ({"max_batch_size": 8, "max_graph_memory": "512MiB"}, True),
    ({"max_batch_size": 8, "max_graph_memory": " 1 gb "}, True),
    ({"max_batch_size": 8, "max_graph_memory": "1GB\n"}, True),
    ({"max_batch_size": 8, "max_graph_memory": "0MiB"}, False),
    ({"max_batch_size": 8, "max_graph_memory": "512KiB"}, False),
    ({"max_batch_size": 8, "max_graph_memory": "512"}, False),
    ({"max_batch_size": 8, "max_graph_memory": "50%"}, False),
    ({"max_batch_size": 8, "max_graph_memory": ""}, False),
    ({"max_batch_size": 8, "max_graph_memory": "123456GB"}, False),
    ({"max_batch_size": 8, "max_graph_memory": 10**19}, False),
    # a typo
    ({"max_batch_size": 8, "enable_paddng": True}, False),
]

MULTIMODAL_CASES: list[tuple[Any, bool]] = [
    ({}, True),
    ([], False),
    ("image", False),
    ({"encoder_cuda_graph": None}, True),
    ({"encoder_cuda_graph": {}}, True),
    ({"encoder_cuda_graph": []}, False),
    ({"encoder_cuda_graph": True}, False),
    ({"encoder_cuda_graph": {"image": IMAGE_8}}, True),
    ({"encoder_cuda_graph": {"vision": IMAGE_8}}, True),
    ({"encoder_cuda_graph": {"image": IMAGE_8, "audio": IMAGE_8}}, True),
    ({"encoder_cuda_graph": {"vision": IMAGE_8, "audio": IMAGE_8}}, True),
    ({"encoder_cuda_graph": {"image": IMAGE_8, "vision": IMAGE_8}}, False),
    ({"encoder_cuda_graph": {"video": IMAGE_8}}, False),
    ({"encoder_cuda_graph": {"Image": IMAGE_8}}, False),
    ({"encoder_cuda_graph": {"image": None}}, False),
    ({"encoder_cuda_graph": {"image": 8}}, False),
    ({"encoder_cuda_graf": None}, False),
    ({"encoder_side_stream_max_ahead": 4}, True),
    ({"encoder_side_stream_max_ahead": -1}, False),
    ({"encoder_side_stream_max_ahead": None}, False),
    ({"encoder_side_stream_max_ahead": "4"}, False),
    ({"encoder_side_stream_max_ahead": 0, "encoder_cuda_graph": {"image": IMAGE_8}}, True),
    ({"encoder_side_stream_max_ahead": 1, "encoder_cuda_graph": {"image": IMAGE_8}}, False),
    ({"encoder_side_stream_max_ahead": 1, "encoder_cuda_graph": {}}, True),
    ({"encoder_side_stream_max_ahead": 1, "encoder_cuda_graph": None}, True),
    ({"encoder_cache_max_bytes": 0}, True),
    ({"encoder_cache_max_bytes": "512MB"}, True),
    ({"encoder_cache_max_bytes": "1 GiB"}, True),
    ({"encoder_cache_max_bytes": "1.5GiB"}, False),
    ({"encoder_cache_max_bytes": -1}, False),
    ({"encoder_cache_max_bytes": True}, False),
    ({"encoder_scheduling_policy": "EAGER"}, True),
    ({"encoder_scheduling_policy": "eager"}, False),
    ({"video_pruning_rate": None}, True),
    ({"video_pruning_rate": 0.5}, False),
    ({"video_pruning_rate": 0}, False),
    *[({"encoder_cuda_graph": {"image": entry}}, ok) for entry, ok in ENTRY_CASES],
]

SERVE_CASES: list[tuple[Any, bool]] = [
    ({}, True),
    (None, False),
    ([], False),
    ({"model": "dir"}, True),
    ({"model": None}, True),
    ({"model": ""}, False),
    ({"model": 5}, False),
    ({"max_batch_size": 8, "max_num_tokens": 4096, "max_seq_len": 4096}, True),
    ({"max_batch_size": None, "max_num_tokens": None, "max_seq_len": None}, True),
    ({"max_batch_size": "8"}, False),
    ({"max_batch_size": False}, False),
    ({"max_num_tokens": 0}, False),
    ({"max_seq_len": -5}, False),
    ({"encoder_max_num_tokens": 4096, "encoder_max_batch_size": 8}, True),
    ({"encoder_max_num_tokens": None, "encoder_max_batch_size": None}, True),
    ({"encoder_max_num_tokens": 0}, False),
    ({"encoder_max_batch_size": 0}, False),
    ({"encoder_max_num_tokens": True}, False),
    ({"backend": "torch"}, True),
    ({"backend": "pytorch"}, False),
    ({"device": "cuda:7"}, True),
    ({"device": "cuda:07"}, False),
    ({"device": "cpu\n"}, False),
    ({"device": "gpu"}, False),
    ({"dtype": "bfloat16"}, True),
    ({"dtype": "bf16"}, False),
    ({"trust_remote_code": True}, True),
    ({"trust_remote_code": "yes"}, False),
    ({"tokenizer": None}, True),
    ({"kv_cache_config": {}}, True),
    ({"kv_cache_config": None}, False),
    ({"kv_cache_config": {"free_gpu_memory_fraction": 0.5, "max_tokens": 1024}}, True),
    ({"kv_cache_config": {"free_gpu_memory_fraction": 1}}, True),
    ({"kv_cache_config": {"free_gpu_memory_fraction": 0}}, False),
    ({"kv_cache_config": {"free_gpu_memory_fraction": 1.01}}, False),
    ({"kv_cache_config": {"free_gpu_memory_fraction": True}}, False),
    ({"kv_cache_config": {"free_gpu_memory_fraction": None}}, False),
    ({"kv_cache_config": {"free_gpu_memory_fraction": "0.9"}}, False),
    ({"kv_cache_config": {"max_tokens": 0}}, False),
    ({"kv_cache_config": {"max_token": 5}}, False),
    ({"multimodal_config": None}, True),
    ({"multimodal_config": []}, False),
    ({"max_batchsize": 8}, False),
    ({"media_limits": {}}, True),
    ({"media_limits": None}, False),
    ({"media_limits": {"allowed_domains": []}}, False),
    ({"media_limits": {"allowed_media_domains": []}}, True),
    ({"media_limits": {"allowed_media_domains": ["media.example.com", "a-b.c_d.org"]}}, True),
    *[
        ({"media_limits": {"allowed_media_domains": [host]}}, False)
        for host in (
            *("", "*", "*.example.com", "Example.com", "a.example.com.", "a..b", "-a.com", "a b"),
            *("https://a.com", "a.com:443", "a.com/x", "127.0.0.1", "127.1", "0x7f000001", "1"),
            *(
                "2130706433",
                "a.0x1",
                "::1",
                "[::1]",
                "a.com\n",
                "é.com",
                "a" * 64,
                "a." * 127 + "a",
            ),
        )
    ],
    ({"media_limits": {"allowed_media_domains": "a.com"}}, False),
    ({"media_limits": {"allowed_media_ports": [443, 8443]}}, True),
    ({"media_limits": {"allowed_media_ports": [0]}}, False),
    ({"media_limits": {"allowed_media_ports": [65536]}}, False),
    ({"media_limits": {"allowed_local_media_path": None}}, True),
    ({"media_limits": {"allowed_local_media_path": ""}}, False),
    ({"media_limits": {"max_images": 0}}, True),
    ({"media_limits": {"max_images": -1}}, False),
    ({"media_limits": {"max_part_bytes": "8MiB", "max_request_bytes": 1024}}, True),
    ({"media_limits": {"max_part_bytes": "8 pictures"}}, False),
    ({"media_limits": {"max_image_pixels": 80_000_000}}, True),
    ({"media_limits": {"max_image_pixels": 80_000_001}}, False),
    ({"media_limits": {"max_image_pixels": 0}}, False),
    ({"media_limits": {"max_video_pixels": 80_000_001}}, False),
    ({"media_limits": {"fetch_timeout": 0.5, "decode_timeout": 5}}, True),
    ({"media_limits": {"fetch_timeout": 0}}, False),
    ({"media_limits": {"fetch_timeout": None}}, False),
    ({"media_limits": {"fetch_timeout": "10"}}, False),
    ({"media_limits": {"fetch_timeout": 1e9}}, False),
    ({"media_limits": {"max_redirects": 0}}, True),
    ({"media_limits": {"max_redirects": 21}}, False),
    ({"media_limits": {"video_fps": 0}}, False),
    # upstream's keys: accepted
    ({"enable_chunked_prefill": True, "stream_interval": 4}, True),
    ({"enable_chunked_prefill": "true"}, False),
    ({"cuda_graph_config": {"max_batch_size": 64, "enable_padding": True}}, True),
    ({"cuda_graph_config": None}, True),
    ({"cuda_graph_config": {"max_batchsize": 64}}, False),
    ({"cuda_graph_config": 5}, False),
    ({"kv_cache_config": {"use_kv_cache_manager_v2": True}}, True),
    ({"kv_cache_config": {"use_kv_cache_manager_v2": 1}}, False),
    ({"kv_cache_config": {"host_cache_size": "1GiB"}}, True),
    ({"max_stats_len": -1}, True),
    ({"max_stats_len": -2}, False),
    # upstream's keys: refused unless default
    ({"tensor_parallel_size": 1}, True),
    ({"tensor_parallel_size": 1.0}, True),
    ({"tensor_parallel_size": 2}, False),
    ({"tensor_parallel_size": True}, False),
    ({"moe_config": {}, "scheduler_config": None, "load_format": "AUTO"}, True),
    ({"moe_config": {"backend": "CUTLASS"}}, False),
    ({"load_format": False}, False),
    ({"speculative_config": {"decoding_type": "MTP"}}, False),
    ({"_mpi_session": None}, True),
    ({"mpi_session": None}, False),
    ({"max_beam_width": None, "max_input_len": None}, True),
    ({"max_beam_width": 4}, False),
    *[({"multimodal_config": mm}, ok) for mm, ok in MULTIMODAL_CASES],
]

# Rules that JSON Schema cannot say: (value, error type). The schema accepts these.
INEXPRESSIBLE: list[tuple[Any, str]] = [
    (
        {"multimodal_config": {"encoder_cuda_graph": {"image": {"buckets": [[1, 256]]}}}},
        "bucket_too_small",
    ),
    (
        {
            "multimodal_config": {
                "encoder_cuda_graph": {"image": {"max_batch_size": 8, "max_num_tokens": 7}}
            }
        },
        "max_num_tokens_too_small",
    ),
    (
        {
            "encoder_max_num_tokens": 7,
            "multimodal_config": {"encoder_cuda_graph": {"image": {"max_batch_size": 8}}},
        },
        "ladder_above_budget",
    ),
]


def errors_of(model: type[BaseModel], value: Any) -> list[str]:
    """Types of the errors that the model finds."""
    try:
        model.model_validate(value)
    except ValidationError as error:
        return [item["type"] for item in error.errors()]
    return []


@pytest.mark.parametrize(("value", "valid"), SERVE_CASES, ids=lambda v: json.dumps(v)[:70])
def test_serve_schema_and_model_agree_on_the_table(value, valid):
    assert SERVE_VALIDATOR.is_valid(value) is valid
    assert (errors_of(ServeConfig, value) == []) is valid


@pytest.mark.parametrize(("value", "valid"), MULTIMODAL_CASES, ids=lambda v: json.dumps(v)[:70])
def test_multimodal_schema_and_model_agree_on_the_table(value, valid):
    assert MULTIMODAL_VALIDATOR.is_valid(value) is valid
    assert (errors_of(MultimodalConfig, value) == []) is valid


@pytest.mark.parametrize(("value", "kind"), INEXPRESSIBLE, ids=[k for _, k in INEXPRESSIBLE])
def test_only_the_listed_rules_are_beyond_the_schema(value, kind):
    assert SERVE_VALIDATOR.is_valid(value)
    assert errors_of(ServeConfig, value) == [kind]


def test_descriptions_list_the_inexpressible_rules():
    for rule in INEXPRESSIBLE_RULES:
        assert rule in SERVE_VALIDATOR.schema["description"]
    assert len(INEXPRESSIBLE_RULES) == len({kind for _, kind in INEXPRESSIBLE})
