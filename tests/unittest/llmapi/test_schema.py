# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The generated schemas: fresh, well-formed, and of one mind with the models."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis_jsonschema import from_schema
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ValidationError

from tensorrt_llm_ext import __version__
from tensorrt_llm_ext.llmapi.llm_args import ServeConfig
from tensorrt_llm_ext.llmapi.mm_config import MultimodalConfig
from tensorrt_llm_ext.llmapi.schema import (
    SCHEMA_FILES,
    build_schema,
    generated_files,
    render_schema,
    stale_files,
)

ROOT = Path(__file__).parents[3]
SERVE = build_schema("trtllm-ext-serve-config.schema.json")
MULTIMODAL = build_schema("multimodal-config.schema.json")
SERVE_VALIDATOR = Draft202012Validator(SERVE)
MULTIMODAL_VALIDATOR = Draft202012Validator(MULTIMODAL)
# Errors of the rules that JSON Schema cannot say (schema.INEXPRESSIBLE_RULES, in that order).
INEXPRESSIBLE_TYPES = {"bucket_too_small", "max_num_tokens_too_small", "ladder_above_budget"}


def errors_of(model: type[BaseModel], value: Any) -> list[str]:
    """Types of the errors that the model finds."""
    try:
        model.model_validate(value)
    except ValidationError as error:
        return [item["type"] for item in error.errors()]
    return []


@pytest.mark.parametrize("name", SCHEMA_FILES)
def test_committed_schema_is_well_formed(name):
    text = (ROOT / "schemas" / name).read_text()
    schema = json.loads(text)
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"].endswith(name)
    assert f":{__version__}:" in schema["$id"]
    assert schema["title"]
    assert "static checks only; runtime validation is authoritative" in schema["description"]
    assert text == json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    assert text == render_schema(name)


def test_every_property_has_description_and_status():
    for schema in (SERVE, *SERVE["$defs"].values()):
        for name, prop in schema["properties"].items():
            assert prop.get("description"), name
            assert prop.get("status") in {"prototype", "beta", "stable", "deprecated"}, name


def test_generated_files_are_fresh_in_the_repository():
    assert stale_files(ROOT / "schemas", ROOT / "docs") == {}


def test_stale_missing_and_surplus_files_are_found(tmp_path):
    for path, text in generated_files(tmp_path, tmp_path).items():
        path.write_bytes(text.encode())
    assert stale_files(tmp_path, tmp_path) == {}
    (tmp_path / "multimodal-config.schema.json").unlink()
    page = tmp_path / "upstream-keys.md"
    page.write_text(page.read_text() + "\n")
    (tmp_path / "old.schema.json").write_text("{}")
    assert {path.name: why for path, why in stale_files(tmp_path, tmp_path).items()} == {
        "multimodal-config.schema.json": "missing",
        "upstream-keys.md": "differs",
        "old.schema.json": "not generated any more",
    }


# Values of any JSON type, biased to what is nearly right.
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-2, 10)
    | st.sampled_from([0.5, 1.0, 8.0, 1.5, 2**24, 2**24 + 1, 2**31, 10**18, 10**19, 1e300])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "auto", "8", "true", "1GB", "512MiB", "cuda:1", "AUTO", "image"])
    | st.text(max_size=4)
)
JUNK = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["image", "buckets", "max_batch_size", "x"]), inner)
    ),
    max_leaves=5,
)


def values_for(schema: dict[str, Any], root: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that are right or nearly right for a schema of ours."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rsplit("/", 1)[1]]
    if "propertyNames" in schema:  # encoder_cuda_graph: a mapping or null
        names = st.sampled_from([*schema["propertyNames"]["enum"], "video"])
        entry = values_for(schema["anyOf"][0]["additionalProperties"], root)
        return st.dictionaries(names, entry, max_size=2) | st.none()
    if "anyOf" in schema:
        return st.one_of([values_for(part, root) for part in schema["anyOf"]])
    if "properties" in schema:
        return objects_for(schema, root)
    if "prefixItems" in schema:
        return st.tuples(*(values_for(i, root) for i in schema["prefixItems"])).map(list)
    if schema.get("type") == "array":
        return st.lists(values_for(schema["items"], root), min_size=0, max_size=3)
    if schema.get("type") == "integer":
        return st.integers(1, 6) | st.integers(1, 6).map(float) | from_schema(schema)
    return from_schema(schema)


@st.composite
def objects_for(draw, schema, root):
    """A few of the properties, most of them right."""
    names = draw(st.lists(st.sampled_from(sorted(schema["properties"])), max_size=4, unique=True))
    value = {}
    for name in names:
        right = draw(st.integers(0, 9)) > 0
        value[name] = draw(values_for(schema["properties"][name], root) if right else JUNK)
    if draw(st.integers(0, 19)) == 0:
        value[draw(st.sampled_from(["typo", "max_batchsize", ""]))] = 1
    return value


def agree(model: type[BaseModel], validator: Draft202012Validator, value: Any) -> None:
    """Schema and model have one opinion, but for the inexpressible rules."""
    errors = errors_of(model, value)
    if validator.is_valid(value):
        assert set(errors) <= INEXPRESSIBLE_TYPES, errors
    else:
        assert errors, [e.message for e in validator.iter_errors(value)]


FUZZ = settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
ENTRY = MULTIMODAL["$defs"]["MultimodalEncoderCudaGraphConfig"]


SMALL = st.integers(1, 6)
SHAPES = st.one_of(
    st.fixed_dictionaries({"buckets": st.lists(st.lists(SMALL, min_size=2, max_size=2))}),
    st.fixed_dictionaries({"max_batch_size": SMALL}, optional={"max_num_tokens": SMALL}),
)


@FUZZ
@given(entry=objects_for(ENTRY, MULTIMODAL), shapes=SHAPES)
def test_entries_agree(entry, shapes):
    for value in (entry, entry | shapes, shapes):
        agree(MultimodalConfig, MULTIMODAL_VALIDATOR, {"encoder_cuda_graph": {"image": value}})


@FUZZ
@given(value=values_for(MULTIMODAL, MULTIMODAL) | JUNK)
def test_multimodal_configs_agree(value):
    agree(MultimodalConfig, MULTIMODAL_VALIDATOR, value)


@FUZZ
@given(value=values_for(SERVE, SERVE))
def test_serve_configs_agree(value):
    agree(ServeConfig, SERVE_VALIDATOR, value)


@pytest.mark.parametrize("name", sorted(SERVE["properties"]))
@settings(FUZZ, max_examples=10)
@given(data=st.data())
def test_each_key_agrees(name, data):
    value = {name: data.draw(values_for(SERVE["properties"][name], SERVE) | JUNK)}
    agree(ServeConfig, SERVE_VALIDATOR, value)


KV_KEYS = SERVE["$defs"]["KvCacheConfig"]["properties"]


@pytest.mark.parametrize("name", sorted(KV_KEYS))
@settings(FUZZ, max_examples=10)
@given(data=st.data())
def test_each_kv_cache_key_agrees(name, data):
    value = {"kv_cache_config": {name: data.draw(values_for(KV_KEYS[name], SERVE) | JUNK)}}
    agree(ServeConfig, SERVE_VALIDATOR, value)
