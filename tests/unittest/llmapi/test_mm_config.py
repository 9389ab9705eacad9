# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
import pytest
from pydantic import ValidationError

from tensorrt_llm_ext.llmapi.mm_config import MultimodalConfig, MultimodalEncoderCudaGraphConfig


def test_defaults_are_upstreams():
    config = MultimodalEncoderCudaGraphConfig(max_batch_size=8)
    assert (config.enable_padding, config.warmup_steps, config.enable_replay_stats) == (
        True,
        2,
        False,
    )
    assert (config.buckets, config.max_num_tokens, config.max_graph_memory) == (None, None, None)
    assert (config.prune_slower_than_eager, config.on_capture_failure) == (True, "eager")
    mm = MultimodalConfig()
    assert mm.encoder_cuda_graph is None
    assert mm.encoder_side_stream_max_ahead == 0
    assert mm.encoder_cache_max_bytes == 128 * 2**20
    assert mm.encoder_scheduling_policy == "DEFAULT"
    assert mm.video_pruning_rate is None


def test_buckets_are_sorted_without_duplicates():
    config = MultimodalEncoderCudaGraphConfig(buckets=[(512, 2), (256, 1), [512, 2], (256, 4)])
    assert config.buckets == [(256, 1), (256, 4), (512, 2)]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({}, "one of buckets and max_batch_size is required"),
        ({"buckets": [[4, 1]], "max_batch_size": 8}, "exclude each other"),
        ({"buckets": [[1, 4]]}, r"Did you mean \[4, 1\]"),
        ({"buckets": [[4, 1]], "max_num_tokens": 4}, "with explicit buckets remove it"),
        ({"max_batch_size": 8, "max_num_tokens": 7}, r"max_num_tokens \(7\) is below"),
        (
            {"max_batch_size": 8, "max_graph_memory": "50%"},
            "a fraction of the device's free memory",
        ),
    ],
)
def test_errors_say_what_to_do(entry, message):
    with pytest.raises(ValidationError, match=message):
        MultimodalEncoderCudaGraphConfig.model_validate(entry)


def test_vision_is_an_alias_of_image():
    config = MultimodalConfig(encoder_cuda_graph={"vision": {"max_batch_size": 8}})
    assert list(config.encoder_cuda_graph) == ["image"]
    both = {"vision": {"max_batch_size": 8}, "image": {"max_batch_size": 8}}
    with pytest.raises(ValidationError, match="they are the same encoder: keep one"):
        MultimodalConfig(encoder_cuda_graph=both)


def test_unknown_modality_lists_the_allowed():
    with pytest.raises(ValidationError, match=r"unknown modality 'video'; allowed: audio, image"):
        MultimodalConfig(encoder_cuda_graph={"video": {"max_batch_size": 8}})


def test_side_stream_and_graphs_exclude_each_other():
    graphs = {"image": {"max_batch_size": 8}}
    with pytest.raises(ValidationError, match="Set encoder_side_stream_max_ahead to 0"):
        MultimodalConfig(encoder_cuda_graph=graphs, encoder_side_stream_max_ahead=1)


def test_descriptions_say_that_tokens_are_rows_before_the_merger():
    fields = MultimodalEncoderCudaGraphConfig.model_fields
    for name in ("buckets", "max_num_tokens"):
        assert "BEFORE the merger" in fields[name].description
    assert "before the merger" in MultimodalEncoderCudaGraphConfig.__doc__


def test_models_survive_a_round_trip():
    config = MultimodalConfig(
        encoder_cuda_graph={"vision": {"buckets": [[256, 1]], "max_graph_memory": "1GB"}}
    )
    assert MultimodalConfig.model_validate(config.model_dump()) == config
    assert MultimodalConfig.model_validate_json(config.model_dump_json()) == config
