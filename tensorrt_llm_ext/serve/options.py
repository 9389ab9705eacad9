# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""What the HTTP server itself can be told; everything about the model is in `LlmArgs`."""

from typing import Annotated, Literal

from pydantic import Field as PydanticField
from pydantic import SecretStr, model_validator
from typing_extensions import Self

from ..llmapi.base import (
    Bool,
    Field,
    Number,
    Positive,
    PositiveInt,
    Str,
    StrictBaseModel,
    config_error,
)

AnyPort = Annotated[int, PydanticField(ge=0, le=65535, strict=True)]
Grace = Annotated[Number, PydanticField(ge=0, le=86400)]


class HttpOptions(StrictBaseModel):
    """Address, limits and logs of one server."""

    host: Str = Field("localhost", description="Address or name to listen on.", status="beta")
    port: AnyPort = Field(
        8000, description="Port to listen on; 0: any that is free.", status="beta"
    )
    served_model_name: Str | None = Field(
        None,
        description="Name that clients call the model by; unset: the name of its folder.",
        status="beta",
    )
    api_key: SecretStr | None = Field(
        None,
        description="Clients must send it as `Authorization: Bearer KEY`, for every route but "
        "/health; unset: no key is asked for.",
        status="beta",
    )
    max_queue_size: PositiveInt = Field(
        1024,
        description="Requests that may wait, sent but not yet running; one more is answered 429.",
        status="beta",
    )
    request_timeout: Positive = Field(
        600,
        description="Seconds after which a request is ended with 504. A client may ask for less "
        "with the header X-Request-Timeout, and is then answered 408.",
        status="beta",
    )
    shutdown_grace_period: Grace = Field(
        30,
        description="Seconds that running requests have after SIGTERM or SIGINT; those left are "
        "ended with an error.",
        status="beta",
    )
    engine_stall_timeout: Positive = Field(
        60,
        description="Seconds that one engine step may take before /health answers 503.",
        status="beta",
    )
    max_body_bytes: PositiveInt = Field(
        64 * 2**20, description="Largest request body; a larger one is answered 413.", status="beta"
    )
    max_total_body_bytes: PositiveInt = Field(
        2**30,
        description="Bodies of all requests held at a time, until their media are decoded and "
        "their prompts made; what would exceed it is answered 429. They take up to twice as much "
        "memory.",
        status="beta",
    )
    max_header_bytes: PositiveInt = Field(
        64 * 2**10,
        description="Largest request head; a larger one is answered 431, or 400.",
        status="beta",
    )
    upload_timeout: Positive = Field(
        30,
        description="Seconds that a client has to send the head, and again the body, of a request; "
        "then it is answered 408.",
        status="beta",
    )
    max_prompt_chars: PositiveInt = Field(
        2_000_000,
        description="Characters of text in one request; more are answered 400 before they are "
        "tokenized.",
        status="beta",
    )
    media_workers: Annotated[PositiveInt, PydanticField(le=1024)] = Field(
        8, description="Threads that fetch and decode media and render prompts.", status="beta"
    )
    max_decoded_bytes: PositiveInt = Field(
        2**30,
        description="Decoded media held for requests that the encoder has not read yet; above "
        "it, further requests wait before theirs are decoded.",
        status="beta",
    )
    max_feature_rows: PositiveInt = Field(
        32_768,
        description="Features of one request to /v1/embeddings, in rows; more are answered 400 "
        "before anything is encoded.",
        status="beta",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Lowest level that is logged.", status="beta"
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="Log lines as text, or as one JSON object each.", status="beta"
    )
    metrics_require_key: Bool = Field(
        True,
        description="Whether /metrics asks for the API key too, where there is one.",
        status="beta",
    )

    @model_validator(mode="after")
    def _one_body_fits(self) -> Self:
        if self.max_total_body_bytes < self.max_body_bytes:
            raise config_error(
                "body_limits",
                f"max_total_body_bytes is {self.max_total_body_bytes}, less than max_body_bytes "
                f"{self.max_body_bytes}: the largest body would never be taken; raise the one or "
                "lower the other",
            )
        return self
