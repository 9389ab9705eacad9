# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""How the next token of a request is chosen, and when the request ends."""

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema, model_validator
from pydantic import Field as PydanticField
from typing_extensions import Self

from tensorrt_llm_ext.llmapi.base import (
    Bool,
    Field,
    NonNegativeInt,
    Number,
    PositiveInt,
    Seed,
    config_error,
)
from tensorrt_llm_ext.llmapi.upstream_fields import UpstreamKeysModel, upstream_fields

if TYPE_CHECKING:

    class _UpstreamSamplingKeys(UpstreamKeysModel):
        pass
else:
    _UpstreamSamplingKeys = upstream_fields("SamplingParams")


def _stop_list(value: Any) -> list[str] | None:
    if value is None:
        return None
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, (list, tuple)) or not all(isinstance(t, str) and t for t in texts):
        raise config_error("stop_type", "must be a non-empty string or a list of such strings")
    return list(texts)


StopStrings = Annotated[
    list[str] | None,
    BeforeValidator(_stop_list),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "array", "items": {"type": "string", "minLength": 1}},
                {"type": "null"},
            ]
        }
    ),
]


class SamplingParams(_UpstreamSamplingKeys):
    """How the next token is chosen. Greedy unless temperature, top_p or top_k is set."""

    max_tokens: PositiveInt = Field(32, description="Most tokens to generate.", status="stable")
    min_tokens: NonNegativeInt | None = Field(
        None,
        description="End-of-text tokens and stop strings do not end the request before this many "
        "tokens.",
        status="stable",
    )
    temperature: Annotated[Number, PydanticField(ge=0)] | None = Field(
        None, description="Divides the logits; 0 is greedy, unset is 1.", status="stable"
    )
    top_p: Annotated[Number, PydanticField(ge=0, le=1)] | None = Field(
        None,
        description="Sample from the most likely tokens that together have this probability; 0 is "
        "greedy, unset is 1.",
        status="stable",
    )
    top_k: NonNegativeInt | None = Field(
        None,
        description="Sample from this many most likely tokens; 1 is greedy, 0 or unset is all.",
        status="stable",
    )
    seed: Seed | None = Field(
        None,
        description="Seed of this request's random numbers; unset: 0, as upstream.",
        status="stable",
    )
    stop: StopStrings = Field(
        None,
        description="A string or list of strings that end the request; not part of the returned "
        "text. A list after validation.",
        status="stable",
    )
    ignore_eos: Bool = Field(
        False, description="Go on after an end-of-text token.", status="stable"
    )
    skip_special_tokens: Bool = Field(
        True, description="Leave special tokens out of the text.", status="stable"
    )

    @model_validator(mode="after")
    def _min_up_to_max(self) -> Self:
        if self.min_tokens is not None and self.min_tokens > self.max_tokens:
            raise config_error(
                "min_tokens_above_max_tokens",
                f"min_tokens ({self.min_tokens}) is above max_tokens ({self.max_tokens})",
            )
        return self

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        if self.temperature is None and self.top_p is None and self.top_k is None:
            return True
        return self.temperature == 0 or self.top_p == 0 or self.top_k == 1
