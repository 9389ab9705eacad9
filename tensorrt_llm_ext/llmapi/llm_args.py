# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Arguments of `LLM`, which are also the keys of a serve YAML file."""

import logging
import re
from os import PathLike, fspath
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, PrivateAttr, WithJsonSchema, model_validator
from pydantic import Field as PydanticField
from typing_extensions import Self

from tensorrt_llm_ext.llmapi.base import (
    Bool,
    Field,
    Number,
    PositiveInt,
    RowCount,
    Str,
    config_error,
)
from tensorrt_llm_ext.llmapi.media_limits import MediaLimits
from tensorrt_llm_ext.llmapi.mm_config import MODALITY_ALIASES, MultimodalConfig
from tensorrt_llm_ext.llmapi.upstream_fields import UpstreamKeysModel, upstream_fields

logger = logging.getLogger(__name__)


def _path_to_str(value: Any) -> Any:
    return fspath(value) if isinstance(value, PathLike) else value


_DEVICE_PATTERN = r"^(auto|cpu|cuda(:(0|[1-9][0-9]?))?)(?![\s\S])"


def _known_device(value: str) -> str:
    if not re.search(_DEVICE_PATTERN, value):
        raise config_error(
            "unknown_device",
            f"unknown device {value!r}; allowed: auto, cpu, cuda, cuda:0 to cuda:99",
        )
    return value


LocalPath = Annotated[Str, BeforeValidator(_path_to_str)]
Device = Annotated[
    Str,
    AfterValidator(_known_device),
    WithJsonSchema({"type": "string", "pattern": _DEVICE_PATTERN}),
]
Fraction = Annotated[Number, PydanticField(gt=0, le=1)]

if TYPE_CHECKING:

    class _UpstreamKvCacheKeys(UpstreamKeysModel):
        pass

    class _UpstreamLlmKeys(UpstreamKeysModel):
        pass
else:
    _UpstreamKvCacheKeys = upstream_fields("KvCacheConfig")
    _UpstreamLlmKeys = upstream_fields("LlmArgs")


class KvCacheConfig(_UpstreamKvCacheKeys):
    """How much memory the KV cache takes. It is sized after the encoder graphs are captured."""

    max_tokens: PositiveInt | None = Field(
        None,
        description="Most tokens that the KV cache holds, all requests together. Taken as it is, "
        "whatever memory is free; free_gpu_memory_fraction then has no effect.",
        status="stable",
    )
    free_gpu_memory_fraction: Fraction = Field(
        0.9,
        description="Share, above 0 and up to 1, of the device memory still free after weights and "
        "encoder graphs (on CPU: of the free host memory) that the KV cache may take. Without "
        "effect where max_tokens is set.",
        status="stable",
    )


class ServeConfig(_UpstreamLlmKeys):
    """What a serve YAML file may hold: the arguments of `LLM`, where `model` may come later.

    `media_limits` is the server's own; `LLM` takes media that are decoded already.

    Wherever a field counts encoder tokens, these are rows of the encoder's input sequence
    (patches) before the merger reduces them.
    """

    model: LocalPath | None = Field(
        None,
        description="Local checkpoint folder (Hugging Face layout, safetensors).",
        status="stable",
    )
    tokenizer: LocalPath | None = Field(
        None, description="Folder of the tokenizer; unset: the model's.", status="stable"
    )
    trust_remote_code: Bool = Field(
        False,
        description="Run Python code that comes with the checkpoint. Off: such code is never run.",
        status="stable",
    )
    backend: Literal["auto", "torch", "tensorrt_llm"] = Field(
        "auto",
        description="What hosts the model: the embedded engine (torch), TensorRT-LLM "
        "(tensorrt_llm), or TensorRT-LLM where it is installed and else the embedded one (auto).",
        status="beta",
    )
    device: Device = Field(
        "auto",
        description="Where the embedded engine runs: cpu, cuda, cuda:N, or auto (cuda if there is "
        "one).",
        status="beta",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="Type of weights and activations; auto: what config.json says, else bfloat16.",
        status="stable",
    )
    max_batch_size: PositiveInt = Field(
        2048, description="Most requests decoded together in one step.", status="stable"
    )
    max_num_tokens: PositiveInt = Field(
        8192,
        description="Most tokens of one step of the language model. Also the encoder's budget "
        "where encoder_max_num_tokens is unset; there, tokens are rows (patches) BEFORE the "
        "merger.",
        status="stable",
    )
    max_seq_len: PositiveInt | None = Field(
        None,
        description="Most tokens of one request, prompt (with media) and output together; unset: "
        "what the model was made for.",
        status="stable",
    )
    encoder_max_batch_size: PositiveInt | None = Field(
        None,
        description="Most items (pictures, videos, audio clips) in one encoder call; unset: "
        "max_batch_size.",
        status="prototype",
    )
    encoder_max_num_tokens: RowCount | None = Field(
        None,
        description="Most tokens in one encoder call, all items together; unset: max_num_tokens. "
        "Tokens are rows (patches) of the encoder's input BEFORE the merger reduces them: a "
        "256x256 picture with patch size 16 has 256. A single item that is larger is still "
        "encoded, alone.",
        status="prototype",
    )
    mm_encoder_only: Bool = Field(
        False,
        description="Load the encoders alone: no language model, no KV cache; only "
        "encode_multimodal works.",
        status="prototype",
    )
    kv_cache_config: KvCacheConfig = Field(
        default_factory=KvCacheConfig, description="Size of the KV cache.", status="stable"
    )
    multimodal_config: MultimodalConfig = Field(
        default_factory=MultimodalConfig,
        description="How the encoders run; null is the same as leaving it out.",
        status="prototype",
    )
    media_limits: MediaLimits = Field(
        default_factory=MediaLimits,
        description="What the server takes of media, and from where. Remote and local media are "
        "off by default.",
        status="prototype",
    )

    _notices: list[str] = PrivateAttr(default_factory=list)

    @model_validator(mode="after")
    def _ladders_fit_the_budget(self) -> Self:
        for modality, graphs in (self.multimodal_config.encoder_cuda_graph or {}).items():
            contexts, budget = graphs.max_batch_size, self.encoder_graph_max_num_tokens(modality)
            if contexts is not None and contexts > budget:
                raise config_error(
                    "ladder_above_budget",
                    f"multimodal_config.encoder_cuda_graph.{modality}.max_batch_size ({contexts}) "
                    f"is above the encoder's token budget ({budget}, from "
                    f"{self._budget_source(modality)}), but every context has at least one token",
                )
        return self

    @model_validator(mode="after")
    def _collect_notices(self) -> Self:
        keys = [
            *self.keys_without_effect(),
            *(f"kv_cache_config.{k}" for k in self.kv_cache_config.keys_without_effect()),
            *(f"multimodal_config.{k}" for k in self.multimodal_config.keys_without_effect()),
        ]
        if keys:
            self._notices = [
                f"accepted without effect by the embedded engine: {', '.join(keys)} "
                "(why: docs/upstream-keys.md)"
            ]
        return self

    @property
    def notices(self) -> list[str]:
        """What the user should know about this configuration, one text each."""
        return list(self._notices)

    @property
    def encoder_token_budget(self) -> int:
        """Rows before the merger in one encoder call, before any single larger item raises it."""
        return self.encoder_max_num_tokens or self.max_num_tokens

    @property
    def encoder_batch_budget(self) -> int:
        """Items in one encoder call."""
        return self.encoder_max_batch_size or self.max_batch_size

    def encoder_graph_max_num_tokens(self, modality: str) -> int:
        """Largest token count of the automatic ladder of one encoder.

        The entry's own `max_num_tokens`, else `encoder_max_num_tokens`, else `max_num_tokens`.
        Tokens are rows before the merger.

        Args:
            modality: "image" (or "vision") or "audio".

        Returns:
            The number of rows. Also for a modality without an entry.
        """
        graphs = self.multimodal_config.encoder_cuda_graph or {}
        entry = graphs.get(MODALITY_ALIASES.get(modality, modality))
        return (entry.max_num_tokens if entry else None) or self.encoder_token_budget

    def _budget_source(self, modality: str) -> str:
        graphs = self.multimodal_config.encoder_cuda_graph or {}
        if modality in graphs and graphs[modality].max_num_tokens:
            return f"multimodal_config.encoder_cuda_graph.{modality}.max_num_tokens"
        return "encoder_max_num_tokens" if self.encoder_max_num_tokens else "max_num_tokens"

    def llm_args(self) -> "LlmArgs":
        """The same, where a model is named.

        Raises:
            ValueError: None is.
        """
        if self.model is None:
            raise ValueError("no model is named: set model to a checkpoint folder")
        return LlmArgs.model_validate(self.model_dump(exclude_unset=True, by_alias=True))


class LlmArgs(ServeConfig):
    """Arguments of `LLM`. Names, meanings and defaults are upstream's; see `ServeConfig`."""

    model: LocalPath = Field(
        description="Local checkpoint folder (Hugging Face layout, safetensors).", status="stable"
    )

    @model_validator(mode="after")
    def _log_notices(self) -> Self:
        for notice in self._notices:
            logger.warning(notice)
        return self
