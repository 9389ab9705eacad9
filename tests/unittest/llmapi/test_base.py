# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from pydantic import Field as PydanticField
from pydantic import TypeAdapter, ValidationError

from tensorrt_llm_ext.llmapi.base import (
    Field,
    GraphMemoryLimit,
    MemorySize,
    PositiveInt,
    StrictBaseModel,
    json_equal,
)


def test_field_needs_description_and_known_status():
    with pytest.raises(TypeError, match="status"):
        Field(1, description="text")
    with pytest.raises(ValueError, match="allowed: prototype, beta, stable, deprecated"):
        Field(1, description="text", status="alpha")
    with pytest.raises(ValueError, match="needs a description"):
        Field(1, description=" ", status="beta")


def test_a_model_with_a_plain_pydantic_field_cannot_be_defined():
    with pytest.raises(TypeError, match=r"Model\.x has no description or status"):

        class Model(StrictBaseModel):
            x: int = PydanticField(1, description="text")


def test_unknown_keys_are_errors_and_status_lands_in_the_schema():
    class Model(StrictBaseModel):
        x: int = Field(1, description="text", status="beta", json_schema_extra={"unit": "rows"})

    with pytest.raises(ValidationError, match="extra_forbidden"):
        Model.model_validate({"y": 1})
    prop = Model.model_json_schema()["properties"]["x"]
    assert (prop["status"], prop["unit"]) == ("beta", "rows")


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (0, 0),
        (5.0, 5),
        ("7", 7),
        ("7b", 7),
        ("1kb", 1024),
        ("1KiB", 1024),
        ("512MiB", 512 * 2**20),
        ("512MB", 512 * 2**20),
        (" 1 GB ", 2**30),
        ("2TiB", 2 * 2**40),
    ],
)
def test_memory_sizes(value, size):
    assert TypeAdapter(MemorySize).validate_python(value) == size


@pytest.mark.parametrize(
    "value", ["", "MiB", "1.5GB", "-1", "1 PB", "1GiBs", "0x10", "\u0661MB", True, 1.5, -1]
)
def test_bad_memory_sizes(value):
    with pytest.raises(ValidationError):
        TypeAdapter(MemorySize).validate_python(value)


def test_graph_memory_is_bytes_or_a_fraction():
    adapter = TypeAdapter(GraphMemoryLimit)
    for value, expected in [("1GB", 2**30), (2**21, 2**21), (0.5, 0.5)]:
        result = adapter.validate_python(value)
        assert result == expected
        assert type(result) is type(expected)
    with pytest.raises(ValidationError, match="for a share of the device's free memory"):
        adapter.validate_python(1.0)


@pytest.mark.parametrize(
    ("value", "why"),
    [(True, "not the bool true"), ("8", "remove the quotes"), (1.5, "whole"), (None, "whole")],
)
def test_whole_numbers_say_what_is_wrong(value, why):
    with pytest.raises(ValidationError, match=why):
        TypeAdapter(PositiveInt).validate_python(value)


def test_numpy_integers_are_whole_numbers():
    result = TypeAdapter(PositiveInt).validate_python(np.int64(8))
    assert result == 8
    assert type(result) is int


def test_json_equal_tells_bools_from_numbers():
    assert json_equal(1, 1.0)
    assert json_equal({"a": [1, None]}, {"a": [1.0, None]})
    assert not json_equal(True, 1)
    assert not json_equal([False], [0])
    assert not json_equal({}, None)
