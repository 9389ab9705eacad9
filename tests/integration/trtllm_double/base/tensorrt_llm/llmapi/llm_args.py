# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``tensorrt_llm/llmapi/llm_args.py`` (commit 000439672005): strict pydantic models.

Fields carry ``status`` and ``telemetry`` in their JSON schema; unknown keys are errors at every
level. Only fields that an encoder or its host reads are here.
"""

from __future__ import annotations

import re
from enum import Enum, IntEnum
from typing import Any, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    NonNegativeInt,
    PositiveInt,
    field_validator,
    model_validator,
)
from pydantic import Field as PydanticField

from tensorrt_llm.logger import logger


class TelemetryField:
    @staticmethod
    def categorical(*values: str) -> dict[str, Any]:
        return {"kind": "categorical", "values": list(values)}


def Field(
    default: Any = ...,
    *,
    status: Literal["prototype", "beta", "deprecated"] | None = None,
    telemetry: Any = None,
    exclude_json_schema: bool = False,
    **kwargs: Any,
) -> Any:
    extra = dict(kwargs.pop("json_schema_extra", {}) or {})
    if status is not None:
        extra["status"] = status
    if telemetry is not None:
        extra["telemetry"] = telemetry
    if "default_factory" in kwargs:
        return PydanticField(json_schema_extra=extra or None, **kwargs)
    return PydanticField(default, json_schema_extra=extra or None, **kwargs)


class StrictBaseModel(BaseModel):
    model_config = ConfigDict(extra="forbid")


class LoadFormat(IntEnum):
    AUTO = 0
    DUMMY = 1
    VISION_ONLY = 2


class CudaGraphConfig(StrictBaseModel):
    batch_sizes: list[int] | None = Field(default=None)
    enable_padding: bool = Field(default=False)


class MultimodalEncoderCudaGraphConfig(StrictBaseModel):
    buckets: list[tuple[PositiveInt, PositiveInt]] = Field(min_length=1, status="prototype")
    enable_padding: bool = Field(default=True, status="prototype")
    warmup_steps: PositiveInt = Field(default=2, status="prototype")
    enable_replay_stats: bool = Field(default=False, status="prototype")

    @model_validator(mode="after")
    def _normalize(self) -> MultimodalEncoderCudaGraphConfig:
        for total_tokens, num_contexts in self.buckets:
            if total_tokens < num_contexts:
                raise ValueError("`buckets` entries must have total_tokens >= num_contexts.")
        self.buckets = sorted(set(self.buckets))
        return self


class MultimodalEncoderSchedulingPolicy(str, Enum):
    DISABLED = "DISABLED"
    DEFAULT = "DEFAULT"
    EAGER = "EAGER"


def _parse_binary_byte_string(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    found = re.fullmatch(r"\s*(\d+)\s*(?:([KMG])i?)?B\s*", value, re.IGNORECASE)
    if found is None:
        raise ValueError(f"not a size: {value!r}")
    power = {None: 0, "K": 1, "M": 2, "G": 3}[found[2] and found[2].upper()]
    return int(found[1]) * 1024**power


class MultimodalConfig(StrictBaseModel):
    encoder_cuda_graph: dict[str, MultimodalEncoderCudaGraphConfig] | None = Field(
        default=None, status="prototype"
    )
    encoder_side_stream_max_ahead: NonNegativeInt = Field(default=0, status="prototype")
    encoder_cache_max_bytes: NonNegativeInt = Field(default=134_217_728, status="prototype")
    encoder_scheduling_policy: MultimodalEncoderSchedulingPolicy = Field(
        default=MultimodalEncoderSchedulingPolicy.DEFAULT, status="prototype"
    )
    video_pruning_rate: float | None = Field(default=None, ge=0.0, lt=1.0, status="prototype")

    @field_validator("encoder_cache_max_bytes", mode="before")
    @classmethod
    def parse_encoder_cache_max_bytes(cls, value: Any) -> Any:
        return _parse_binary_byte_string(value)

    @model_validator(mode="after")
    def validate_encoder_optimization_compatibility(self) -> MultimodalConfig:
        if self.encoder_cuda_graph is not None and self.encoder_side_stream_max_ahead > 0:
            raise ValueError(
                "multimodal_config.encoder_cuda_graph and "
                "multimodal_config.encoder_side_stream_max_ahead > 0 are mutually exclusive."
            )
        return self


class KvCacheConfig(StrictBaseModel):
    enable_block_reuse: bool = Field(default=True)
    max_tokens: int | None = Field(default=None)
    free_gpu_memory_fraction: float = Field(default=0.9, ge=0.0, le=1.0)
    tokens_per_block: int = Field(default=32)
    dtype: str = Field(default="auto")
    max_gpu_total_bytes: NonNegativeInt = Field(default=0, status="prototype")


class DraftTargetDecodingConfig(StrictBaseModel):
    decoding_type: Literal["Draft_Target"] = Field(default="Draft_Target")
    max_draft_len: int = Field(default=1)
    speculative_model: str = Field()


class BaseLlmArgs(StrictBaseModel):
    model: str = Field()
    tokenizer: Any | None = Field(default=None)
    trust_remote_code: bool = Field(default=False)
    dtype: str = Field(default="auto")
    tensor_parallel_size: int = Field(default=1)
    pipeline_parallel_size: int = Field(default=1)
    context_parallel_size: int = Field(default=1)
    gpus_per_node: int | None = Field(default=None, status="beta")
    enable_attention_dp: bool = Field(default=False, status="beta")
    kv_cache_config: KvCacheConfig = Field(default_factory=KvCacheConfig)
    enable_chunked_prefill: bool = Field(default=False)
    speculative_config: DraftTargetDecodingConfig | None = Field(default=None)
    max_batch_size: int | None = Field(default=2048)
    max_num_tokens: int | None = Field(default=8192)
    max_seq_len: int | None = Field(default=None)
    max_beam_width: int = Field(default=1)
    env_overrides: dict[str, str] | None = Field(default=None, status="prototype")
    cache_transceiver_config: Any | None = Field(default=None, status="prototype")
    post_processor_hook: str | None = Field(default=None, status="prototype")

    def get_runtime_sizes(self) -> tuple[int, int, int | None, int]:
        return self.max_beam_width, self.max_num_tokens, self.max_seq_len, self.max_batch_size


class TorchLlmArgs(BaseLlmArgs):
    cuda_graph_config: CudaGraphConfig | None = Field(
        default_factory=CudaGraphConfig, status="beta"
    )
    multimodal_config: MultimodalConfig = Field(
        default_factory=MultimodalConfig, status="prototype"
    )
    encoder_max_batch_size: int | None = Field(default=None, status="prototype")
    encoder_max_num_tokens: int | None = Field(default=None, status="prototype")
    attn_backend: str = Field(
        default="TRTLLM",
        status="beta",
        telemetry=TelemetryField.categorical("VANILLA", "TRTLLM", "FLASHINFER"),
    )
    disable_overlap_scheduler: bool = Field(default=False, status="beta")
    load_format: str | LoadFormat = Field(default=LoadFormat.AUTO)
    checkpoint_loader: object | None = Field(default=None, status="prototype")
    checkpoint_format: str | None = Field(default=None, status="prototype")
    mm_encoder_only: bool = Field(default=False, status="prototype")
    disable_mm_encoder: bool = Field(default=False, status="prototype")
    encode_only: bool = Field(default=False, status="prototype")
    backend: Literal["pytorch"] = Field(
        default="pytorch", exclude_json_schema=True, status="deprecated"
    )

    @field_validator("multimodal_config", mode="before")
    @classmethod
    def init_multimodal_config(cls, v: Any) -> Any:
        return MultimodalConfig() if v is None else v

    @field_validator("encoder_max_batch_size", "encoder_max_num_tokens")
    @classmethod
    def validate_encoder_runtime_sizes(cls, v: int | None) -> int | None:
        if v is not None and v <= 0:
            raise ValueError("must be a positive integer when set")
        return v

    @field_validator("load_format", mode="before")
    @classmethod
    def convert_load_format(cls, v: Any) -> LoadFormat:
        return LoadFormat[v.upper()] if isinstance(v, str) else LoadFormat(v)

    @model_validator(mode="after")
    def validate_encoder_modes(self) -> TorchLlmArgs:
        if self.encode_only and self.mm_encoder_only:
            raise ValueError("encode_only and mm_encoder_only are mutually exclusive.")
        if self.disable_mm_encoder and self.mm_encoder_only:
            raise ValueError("disable_mm_encoder and mm_encoder_only are mutually exclusive.")
        return self

    @model_validator(mode="after")
    def normalize_disabled_mm_encoder_cache(self) -> TorchLlmArgs:
        if self.disable_mm_encoder and self.multimodal_config.encoder_cache_max_bytes:
            self.multimodal_config = self.multimodal_config.model_copy(
                update={"encoder_cache_max_bytes": 0}
            )
        return self

    def warn_on_unstable_feature_usage(self) -> TorchLlmArgs:
        """Looks at top-level fields only."""
        for name in self.model_dump(exclude_unset=True):
            extra = type(self).model_fields[name].json_schema_extra or {}
            if extra.get("status") in ("beta", "prototype"):
                logger.warning(f"The '{name}' knob is a '{extra['status']}' feature.")
        return self


LlmArgs = TorchLlmArgs


def update_llm_args_with_extra_dict(
    llm_args: dict,
    llm_args_dict: dict,
    extra_llm_api_options: str | None = None,
    explicit_cli_keys: set[str] | None = None,
) -> dict:
    """YAML wins, but explicit flags win over it; ``multimodal_config`` merges one level deep."""
    given = dict(llm_args_dict)
    if "multimodal_config" in given:
        inner = given["multimodal_config"] or {}
        if isinstance(inner, MultimodalConfig):
            inner = inner.model_dump(exclude_unset=True)
        base = llm_args.get("multimodal_config", {})
        if isinstance(base, MultimodalConfig):
            base = base.model_dump(exclude_unset=True)
        given["multimodal_config"] = dict(base) | dict(inner)
    given = {k: v for k, v in given.items() if k not in (explicit_cli_keys or set())}
    for name, kind in (("kv_cache_config", KvCacheConfig), ("multimodal_config", MultimodalConfig)):
        if name in given:
            given[name] = kind(**given[name])
    return llm_args | given


def update_llm_args_with_extra_options(
    llm_args: dict, extra_llm_api_options: str, explicit_cli_keys: set[str] | None = None
) -> dict:
    if extra_llm_api_options is None:
        return llm_args
    with open(extra_llm_api_options, encoding="utf-8") as file:
        given = yaml.safe_load(file)
    if given is None:
        given = {}
    if not isinstance(given, dict):
        raise ValueError("Configuration file root must be a mapping.")
    return update_llm_args_with_extra_dict(
        llm_args, given, extra_llm_api_options, explicit_cli_keys
    )
