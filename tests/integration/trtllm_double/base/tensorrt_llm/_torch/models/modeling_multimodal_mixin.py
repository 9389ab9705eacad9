# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``models/modeling_multimodal_mixin.py``: the model side of a multimodal model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from tensorrt_llm.inputs.multimodal import MultimodalParams

from ..tensor_lru_cache import TensorLRUCache
from .modeling_multimodal_encoder import MultimodalEncoderContractError, MultimodalEncoderMixin

__all__ = [
    "EncoderGroup",
    "MultimodalEncoderContractError",
    "MultimodalModelMixin",
    "encode_multimodal_by_groups",
]


@dataclass(frozen=True)
class EncoderGroup:
    modalities: tuple[str, ...]
    encoder_fn: Callable[..., torch.Tensor]
    build_batched_input: Callable[[list[MultimodalParams]], dict[str, Any]]


def encode_multimodal_by_groups(
    groups: Sequence[EncoderGroup], multimodal_params: Sequence[MultimodalParams]
) -> torch.Tensor:
    """One call per group; rows come back in request order."""
    by_param: dict[int, list[torch.Tensor]] = {}
    for group in groups:
        for modality in group.modalities:
            mine = [
                (i, MultimodalParams(multimodal_data={modality: p.multimodal_data[modality]}))
                for i, p in enumerate(multimodal_params)
                if p.multimodal_data.get(modality) is not None
            ]
            if not mine:
                continue
            rows = group.encoder_fn(**group.build_batched_input([p for _, p in mine]))
            counts = [
                sum(multimodal_params[i].multimodal_data["multimodal_embedding_lengths"])
                for i, _ in mine
            ]
            for (i, _), piece in zip(mine, torch.split(rows, counts), strict=True):
                by_param.setdefault(i, []).append(piece)
    return torch.cat([piece for i in sorted(by_param) for piece in by_param[i]])


class MultimodalModelMixin:
    supports_encoder_cache: ClassVar[bool] = False
    supports_mm_encoder_item_scheduling: ClassVar[bool] = False
    model_config: Any
    mm_encoder_groups: Sequence[EncoderGroup] = ()
    _multimodal_encoder_cache: TensorLRUCache | None = None

    @classmethod
    def _cast_multimodal_encoder_dtype(
        cls, module: torch.nn.Module, dtype: torch.dtype
    ) -> torch.nn.Module:
        def convert(tensor: torch.Tensor) -> torch.Tensor:
            if not (tensor.is_floating_point() or tensor.is_complex()):
                return tensor
            if tensor.device == torch.device("meta"):
                return torch.empty_like(tensor, dtype=dtype)
            return tensor.to(dtype=dtype)

        return module._apply(convert)

    @property
    def encoder_cache_active(self) -> bool:
        return (
            self.supports_encoder_cache
            and self.model_config.multimodal_config.encoder_cache_max_bytes > 0
        )

    def _initialize_multimodal_encoder_cache(self, max_bytes: int) -> None:
        self._multimodal_encoder_cache = TensorLRUCache(max_bytes) if max_bytes else None

    def encode_multimodal_inputs(
        self, multimodal_params: Sequence[MultimodalParams]
    ) -> torch.Tensor:
        raise NotImplementedError

    # The item path has the same form on both mixins, in the versions that have both.
    prepare_multimodal_encoder_inputs = MultimodalEncoderMixin.prepare_multimodal_encoder_inputs
    _runs_by_request_modality = staticmethod(MultimodalEncoderMixin._runs_by_request_modality)
    forward_multimodal_encoder_items = MultimodalEncoderMixin.forward_multimodal_encoder_items
    _run_multimodal_encoder = MultimodalEncoderMixin._run_multimodal_encoder
    build_multimodal_encoder_input = MultimodalEncoderMixin.build_multimodal_encoder_input
    _slice_per_item_sibling_fields = staticmethod(
        MultimodalEncoderMixin._slice_per_item_sibling_fields
    )
    _encoder_cache_modality = staticmethod(MultimodalEncoderMixin._encoder_cache_modality)
    _apply_metadata_slice = staticmethod(MultimodalEncoderMixin._apply_metadata_slice)

    @property
    def multimodal_token_ids(self) -> Any:
        return None

    @property
    def text_embedding_layer(self) -> Any:
        raise NotImplementedError

    @property
    def embedding_dim(self) -> int:
        raise NotImplementedError

    @property
    def embedding_dtype(self) -> torch.dtype:
        raise NotImplementedError
