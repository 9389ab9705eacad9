# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``tensorrt_llm.inputs.registry``: input processors and per-item metadata."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from .multimodal import MULTIMODAL_ENCODER_ITEM_METADATA_KEY


class ContentFormat(enum.Enum):
    STRING = "string"
    OPENAI = "openai"


@dataclass
class MultimodalPlaceholderMetadata:
    placeholder_map: dict[str, str] = field(default_factory=dict)
    placeholders_separator: str = "\n"
    content_format: ContentFormat | None = None
    interleave_placeholders: bool = False


@dataclass
class MultimodalEncoderItemMetadata:
    item_refs: list[tuple[str, int]]
    encoder_token_lengths: list[int]
    output_embedding_lengths: list[int]


def get_multimodal_encoder_item_metadata(
    multimodal_data: Mapping[str, Any],
) -> MultimodalEncoderItemMetadata | None:
    metadata = multimodal_data.get(MULTIMODAL_ENCODER_ITEM_METADATA_KEY)
    if metadata is None:
        return None
    if not isinstance(metadata, MultimodalEncoderItemMetadata):
        raise TypeError(f"MM item metadata must not be {type(metadata).__name__}")
    lengths = {
        len(metadata.item_refs),
        len(metadata.encoder_token_lengths),
        len(metadata.output_embedding_lengths),
    }
    if len(lengths) != 1:
        raise ValueError("MM item metadata must have one entry per item")
    return metadata


class InputProcessor(Protocol):
    def __call__(self, inputs: Any, sampling_params: Any) -> Any: ...


class BaseMultimodalInputProcessor:
    def __init__(
        self,
        model_path: str,
        config: Any,
        tokenizer: Any = None,
        trust_remote_code: bool = True,
        **kwargs: Any,
    ) -> None:
        self._model_path, self._config, self._tokenizer = model_path, config, tokenizer
        self._kwargs = kwargs

    @property
    def config(self) -> Any:
        return self._config

    def get_mm_encoder_item_metadata(
        self, multimodal_data: dict[str, Any]
    ) -> MultimodalEncoderItemMetadata | None:
        return None


class BaseMultimodalDummyInputsBuilder:
    def get_mm_max_tokens_per_item(
        self, max_num_encoder_tokens: int | None = None
    ) -> dict[str, int]:
        return {}

    def get_dummy_mm_data(
        self,
        *,
        max_num_encoder_tokens: int,
        mm_counts: Mapping[str, int],
        dtype: torch.dtype | None = None,
    ) -> dict[str, Any]:
        raise NotImplementedError

    def get_mm_encoder_attention_metadata_capacity(
        self, max_num_tokens: int
    ) -> dict[str, int] | None:
        return None

    def get_max_mm_encoder_output_embeddings(self, encoder_max_num_tokens: int) -> int | None:
        return None


class DefaultInputProcessor:
    """Text only."""

    def __init__(self, model_path: str, config: Any, **kwargs: Any) -> None:
        self._model_path, self._config = model_path, config


class InputProcessorRegistry:
    """Keyed by model class, whatever the attribute is called."""

    def __init__(self) -> None:
        self._input_processors_cls_by_model_type: dict[type, type] = {}


INPUT_PROCESSOR_REGISTRY = InputProcessorRegistry()


def register_input_processor(
    processor_cls: type,
    model_type: str,
    placeholder_metadata: MultimodalPlaceholderMetadata | None = None,
) -> Callable[[type], type]:
    def wrapper(model_cls: type) -> type:
        INPUT_PROCESSOR_REGISTRY._input_processors_cls_by_model_type[model_cls] = processor_cls
        if placeholder_metadata is None:
            raise ValueError(
                f"A valid placeholder_metadata must be provided but got {placeholder_metadata}"
            )
        processor_cls._registered_model_type = model_type
        return model_cls

    return wrapper


def create_input_processor(
    model_path_or_dir: str,
    tokenizer: Any,
    checkpoint_format: str | None = "HF",
    trust_remote_code: bool = True,
    **kwargs: Any,
) -> Any:
    """The processor registered for exactly the class that the architecture resolves to."""
    from .._torch.models.checkpoints.hf.config_loader import load_pretrained_config
    from .._torch.models.modeling_utils import get_registered_model_class

    config = load_pretrained_config(model_path_or_dir)
    model_cls = get_registered_model_class(config.architectures[0])
    processor_cls = INPUT_PROCESSOR_REGISTRY._input_processors_cls_by_model_type.get(model_cls)
    if processor_cls is None:
        return DefaultInputProcessor(model_path_or_dir, config)
    return processor_cls(model_path_or_dir, config, tokenizer, trust_remote_code, **kwargs)
