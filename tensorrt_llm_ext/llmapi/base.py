# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""What every configuration model is made of: the strict base class, `Field`, and value types.

The value types accept exactly what the generated JSON schemas accept: an integer is an integer
(also when written `8.0`, as in JSON Schema), never a bool and never a numeric string.
"""

import numbers
import re
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Strict,
    StrictStr,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)
from pydantic import Field as PydanticField
from pydantic_core import PydanticCustomError

Status = Literal["prototype", "beta", "stable", "deprecated"]

MAX_ROWS = 2**24
"""Largest token (row) or context count that a configuration may ask an encoder for.

A guard against typing errors such as 1e9: 2**24 rows are about 4000 images of 1024x1024 pixels.
"""
MAX_INT = 2**31 - 1
"""Largest count elsewhere: what an int32 index can address."""
MAX_PIXELS = 80_000_000
"""Largest cap on the pixels of a picture; Pillow warns from about 89 million."""
MAX_BYTES = 10**18
"""Largest memory size."""


def Field(  # noqa: N802 (named after pydantic's function, which it wraps, as upstream does)
    default: Any = ...,
    *,
    description: str,
    status: Status,
    json_schema_extra: dict[str, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """A pydantic field with a mandatory description and stability status.

    Args:
        default: The default value; left out, the field is required.
        description: What the field means, with units. Ends up in the schema and the docs.
        status: How stable the field is. Ends up in the schema.
        json_schema_extra: Further schema keywords of this field.
        **kwargs: Passed on to `pydantic.Field`.

    Returns:
        What `pydantic.Field` returns.

    Raises:
        ValueError: The status is unknown or the description is empty.
    """
    if status not in get_args(Status):
        raise ValueError(f"status {status!r} is unknown; allowed: {', '.join(get_args(Status))}")
    if not description.strip():
        raise ValueError("a field needs a description")
    extra = {**(json_schema_extra or {}), "status": status}
    return PydanticField(default, description=description, json_schema_extra=extra, **kwargs)


class StrictBaseModel(BaseModel):
    """Base of all configuration models: unknown keys are errors, every field is described.

    A subclass may name fields in `null_means_default`: an explicit null there is the same as
    leaving the key out, as upstream has it for these fields.
    """

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    null_means_default: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        for name, field in cls.model_fields.items():
            extra = field.json_schema_extra
            if not field.description or not isinstance(extra, dict) or "status" not in extra:
                raise TypeError(
                    f"{cls.__name__}.{name} has no description or status; declare it with "
                    "tensorrt_llm_ext.llmapi.base.Field"
                )

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls_that_mean_default(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {k: v for k, v in data.items() if not (v is None and k in cls.null_means_default)}


def config_error(kind: str, message: str) -> PydanticCustomError:
    """A validation error. Without a context pydantic takes the message literally, braces too."""
    return PydanticCustomError(kind, message)


def json_equal(a: Any, b: Any) -> bool:
    """Equality as JSON Schema has it: 1 equals 1.0, but neither equals true."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(json_equal(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(json_equal(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def _whole_number(value: Any) -> int:
    if isinstance(value, bool):
        raise config_error("int_type", f"must be a whole number, not the bool {str(value).lower()}")
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, float):
        if value.is_integer():
            return int(value)
        raise config_error("int_type", "must be a whole number")
    if isinstance(value, str):
        raise config_error("int_type", "must be a whole number, not a string: remove the quotes")
    raise config_error("int_type", "must be a whole number")


def _true_or_false(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    raise config_error("bool_type", "must be true or false, without quotes")


Bool = Annotated[bool, BeforeValidator(_true_or_false)]
Str = Annotated[StrictStr, StringConstraints(min_length=1)]
# The bounds stand before the validator: pydantic then applies them to the int, and names them in
# the schema.
_WHOLE = BeforeValidator(_whole_number)
Int = Annotated[int, PydanticField(ge=-MAX_INT, le=MAX_INT), _WHOLE]
CountOrAll = Annotated[int, PydanticField(ge=-1, le=MAX_INT), _WHOLE]
PositiveInt = Annotated[int, PydanticField(ge=1, le=MAX_INT), _WHOLE]
NonNegativeInt = Annotated[int, PydanticField(ge=0, le=MAX_INT), _WHOLE]
RowCount = Annotated[int, PydanticField(ge=1, le=MAX_ROWS), _WHOLE]
WarmupSteps = Annotated[int, PydanticField(ge=1, le=1000), _WHOLE]
Port = Annotated[int, PydanticField(ge=1, le=65535), _WHOLE]
RedirectCount = Annotated[int, PydanticField(ge=0, le=20), _WHOLE]
PixelCount = Annotated[int, PydanticField(ge=1, le=MAX_PIXELS), _WHOLE]
Seed = Annotated[int, PydanticField(ge=0, lt=2**63), _WHOLE]
Number = Annotated[float, Strict(), PydanticField(allow_inf_nan=False)]
Positive = Annotated[float, Strict(), PydanticField(gt=0, le=86400, allow_inf_nan=False)]
SearchSeconds = Annotated[float, Strict(), PydanticField(ge=0, le=3600, allow_inf_nan=False)]

_BYTE_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
# The digit limits keep every accepted string at or below MAX_BYTES.
_SIZE_PATTERN = r"^\s*([0-9]{1,18}(\s*[Bb])?|[0-9]{1,5}\s*[KkMmGgTt][Ii]?[Bb])\s*$"
# Only units that make the size at least 1 MiB: the schema can then say the lower bound.
_LIMIT_PATTERN = r"^\s*[1-9][0-9]{0,4}\s*[MmGgTt][Ii]?[Bb]\s*$"
MIN_GRAPH_MEMORY = 2**20


def parse_memory_size(value: Any) -> int:
    """Bytes from a whole number or a string such as "512MiB", "1 GB" or "1048576".

    As upstream has it, KB, MB, GB and TB are the binary units: "1GB" equals "1GiB", 2**30 bytes.

    Args:
        value: The number of bytes, or the string.

    Returns:
        The number of bytes.

    Raises:
        PydanticCustomError: The value is neither (a `ValueError`).
    """
    if not isinstance(value, str):
        return _whole_number(value)
    if not re.search(_SIZE_PATTERN, value):
        raise config_error(
            "memory_size",
            "must be a number of bytes or a string such as '512MiB' or '1GB' "
            "(units B, KB, MB, GB, TB, KiB, MiB, GiB, TiB; all binary)",
        )
    digits, unit = re.findall(r"[0-9]+", value)[0], re.sub(r"[\s0-9]", "", value).lower()
    return int(digits) * _BYTE_UNITS[unit[:1]]


def _parse_graph_memory(value: Any) -> int | float:
    if isinstance(value, float) and 0 < value < 1:
        return value
    if isinstance(value, str) and not re.search(_LIMIT_PATTERN, value):
        raise config_error(
            "graph_memory",
            "must be a size such as '512MiB' or '2GB', a whole number of bytes, or a fraction of "
            "the device's free memory between 0 and 1 (both excluded)",
        )
    if isinstance(value, float) and not value.is_integer():
        raise config_error(
            "graph_memory", "must be a fraction between 0 and 1 (both excluded) or a size"
        )
    size = parse_memory_size(value)
    if not MIN_GRAPH_MEMORY <= size <= MAX_BYTES:
        raise config_error(
            "graph_memory",
            f"must be from {MIN_GRAPH_MEMORY} bytes (1MiB) to {MAX_BYTES} bytes; for a share of "
            "the device's free memory write a fraction between 0 and 1 (both excluded); for no "
            "graphs remove the encoder_cuda_graph entry",
        )
    return size


MemorySize = Annotated[
    int,
    BeforeValidator(parse_memory_size),
    PydanticField(ge=0, le=MAX_BYTES),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 0, "maximum": MAX_BYTES},
                {"type": "string", "pattern": _SIZE_PATTERN},
            ]
        }
    ),
]
"""A number of bytes; "512MiB" and "1GB" are read as such."""

GraphMemoryLimit = Annotated[
    int | float,
    BeforeValidator(_parse_graph_memory),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": MIN_GRAPH_MEMORY, "maximum": MAX_BYTES},
                {"type": "string", "pattern": _LIMIT_PATTERN},
                {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
            ]
        }
    ),
]
"""Bytes (int) or a fraction of the device's free memory (float in (0, 1))."""
