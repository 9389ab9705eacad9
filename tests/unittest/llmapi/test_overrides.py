# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from tensorrt_llm_ext.llmapi.llm_args import KvCacheConfig
from tensorrt_llm_ext.llmapi.overrides import (
    Layer,
    OverrideError,
    merge,
    parse_override,
    parse_overrides,
    source_of,
)

GRAPHS = "multimodal_config.encoder_cuda_graph"


def graphs(**entries):
    return {"multimodal_config": {"encoder_cuda_graph": entries}}


def test_values_are_yaml():
    assert parse_override("a.b=[[256, 1]]") == (("a", "b"), [[256, 1]])
    assert parse_override("a=x=y") == (("a",), "x=y")
    assert parse_override("a=null") == (("a",), None)
    assert parse_override("a='8'") == (("a",), "8")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("max_batch_size", "no '='"),
        ("=8", "'' is not a key"),
        ("a..b=8", "'' is not a key"),
        ("a.0=8", "set the whole list"),
        ("a b=8", "'a b' is not a key"),
        ("a=", "write null to unset"),
        ("a=[1", "--set a: "),
        ("a=.inf", "not a finite number"),
        ("a={b: 1, b: 2}", "duplicate key"),
        ("a=!!python/name:os.system x", "is not allowed"),
        (".".join("a" * 65) + "=1", "more than 64 levels"),
    ],
)
def test_bad_overrides(text, reason):
    with pytest.raises(OverrideError) as caught:
        parse_override(text)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_parent_and_child_in_one_call_are_refused_in_either_order():
    for texts in (["a.b=1", "a={}"], ["a={}", "a.b=1"]):
        with pytest.raises(OverrideError, match=r"--set a and --set a\.b overlap"):
            parse_overrides(texts)
    with pytest.raises(OverrideError, match="given twice"):
        parse_overrides(["a=1", "a=2"])
    assert parse_overrides(["a.b=1", "a.bc=2", "c=3"]) == {"a": {"b": 1, "bc": 2}, "c": 3}


def test_layers_merge_deeply_and_later_ones_win():
    merged = merge(
        Layer("defaults", {"a": 1, "k": {"x": 1, "y": [1, 2]}}),
        Layer("f.yaml", {"a": 2, "k": {"y": [3]}}),
        Layer("flags", {"b": 5, "k": {"x": 9}}),
        Layer("--set", {"k": {"z": {"w": 1}}}),
    )
    assert merged.values == {"a": 2, "b": 5, "k": {"x": 9, "y": [3], "z": {"w": 1}}}
    assert [(r.path, r.old, r.new, r.old_source, r.new_source) for r in merged.replaced] == [
        ("a", 1, 2, "defaults", "f.yaml"),
        ("k.y", [1, 2], [3], "defaults", "f.yaml"),
        ("k.x", 1, 9, "defaults", "flags"),
    ]
    assert str(merged.replaced[0]) == "a: 1 (defaults) replaced by 2 (f.yaml)"
    assert source_of(merged, ("k", "y")) == "f.yaml"
    assert source_of(merged, ("k", "y", 0)) == "f.yaml"
    assert source_of(merged, ("k", "z", "w")) == "--set"
    assert source_of(merged, ("nowhere",)) == "defaults"


def test_a_mapping_that_is_replaced_or_replaces_is_reported():
    merged = merge(Layer("f", {"a": {"b": 1}}), Layer("--set", {"a": None}))
    assert [(r.path, r.old, r.new) for r in merged.replaced] == [("a", {"b": 1}, None)]
    assert source_of(merged, ("a", "b")) == "--set"
    merged = merge(Layer("f", {"a": 5}), Layer("--set", {"a": {"b": 1}}))
    assert [(r.path, r.old, r.new) for r in merged.replaced] == [("a", 5, {"b": 1})]
    assert merged.values == {"a": {"b": 1}}


def test_the_same_value_is_no_replacement_but_true_is_not_one():
    assert merge(Layer("f", {"a": 1}), Layer("--set", {"a": 1})).replaced == []
    assert len(merge(Layer("f", {"a": 1}), Layer("--set", {"a": True})).replaced) == 1


def test_inputs_are_left_alone():
    low, high = {"a": {"b": 1}}, {"a": {"c": 2}}
    merge(Layer("f", low), Layer("--set", high)).values["a"]["b"] = 5
    assert (low, high) == ({"a": {"b": 1}}, {"a": {"c": 2}})


def test_models_count_as_the_fields_that_were_set():
    file = Layer("f", {"kv_cache_config": {"free_gpu_memory_fraction": 0.5, "max_tokens": 7}})
    merged = merge(file, Layer("arguments", {"kv_cache_config": KvCacheConfig(max_tokens=8)}))
    assert merged.values["kv_cache_config"] == {"free_gpu_memory_fraction": 0.5, "max_tokens": 8}


def test_shapes_from_two_sources_are_an_error_that_names_both():
    file = Layer("f.yaml", graphs(image={"max_batch_size": 8, "warmup_steps": 1}))
    buckets = Layer("--set", parse_overrides([f"{GRAPHS}.image.buckets=[[256, 1]]"]))
    with pytest.raises(OverrideError) as caught:
        merge(file, buckets)
    message = str(caught.value)
    assert f"{GRAPHS}.image has both buckets (--set) and max_batch_size (f.yaml)" in message
    texts = [f"{GRAPHS}.image.buckets=[[256, 1]]", f"{GRAPHS}.image.max_batch_size=null"]
    entry = merge(file, Layer("--set", parse_overrides(texts))).values["multimodal_config"]
    assert entry["encoder_cuda_graph"]["image"] == {
        "buckets": [[256, 1]],
        "max_batch_size": None,
        "warmup_steps": 1,
    }


def test_image_and_vision_from_two_sources_are_an_error_that_names_both():
    file = Layer("f.yaml", graphs(vision={"max_batch_size": 8}))
    with pytest.raises(OverrideError, match=r"both image \(--set\) and vision \(f\.yaml\)"):
        merge(file, Layer("--set", graphs(image={"warmup_steps": 1})))


def test_contradictions_within_one_layer_are_left_to_validation():
    both = graphs(image={"buckets": [[4, 1]], "max_batch_size": 8})
    assert merge(Layer("f.yaml", both)).values == both
