# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``models/modeling_multimodal_encoder.py`` (the version with the item contract)."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tensorrt_llm.inputs.multimodal import MULTIMODAL_ENCODER_ITEM_METADATA_KEY, MultimodalParams
from tensorrt_llm.inputs.registry import (
    MultimodalEncoderItemMetadata,
    get_multimodal_encoder_item_metadata,
)

from ..attention.backends.interface import AttentionMetadata

_ENCODER_FALLBACK_MAX_NUM_REQUESTS = 8192
_MM_DATA_INPUT_MODALITY_KEYS = frozenset({"audio", "image", "video"})
_PIXELS = {"image": "pixel_values", "video": "pixel_values_videos"}


class MultimodalEncoderContractError(ValueError):
    pass


class MultimodalEncoderMixin:
    metadata_cls: type[AttentionMetadata]
    attn_metadata: AttentionMetadata | None = None

    def encode_multimodal_inputs(
        self, multimodal_params: Sequence[MultimodalParams]
    ) -> torch.Tensor:
        raise NotImplementedError

    def prepare_multimodal_encoder_inputs(
        self, selected_items: Sequence[tuple[MultimodalParams, int]]
    ) -> list[tuple[MultimodalParams, list[int], str]]:
        inputs = []
        for param, indices, modality, metadata in self._runs_by_request_modality(selected_items):
            try:
                residual = self.build_multimodal_encoder_input(
                    param, [metadata.item_refs[i][1] for i in indices], modality=modality
                )
                self._apply_metadata_slice(residual, param, indices)
            except MultimodalEncoderContractError:
                raise
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise MultimodalEncoderContractError(
                    f"Invalid multimodal encoder item input: {error}"
                ) from error
            rows = [int(metadata.output_embedding_lengths[i]) for i in indices]
            inputs.append((residual, rows, modality))
        return inputs

    @staticmethod
    def _runs_by_request_modality(
        selected_items: Sequence[tuple[MultimodalParams, int]],
    ) -> Iterator[tuple[MultimodalParams, list[int], str, MultimodalEncoderItemMetadata]]:
        run: tuple[MultimodalParams, list[int], str, Any] | None = None
        for param, index in selected_items:
            try:
                metadata = get_multimodal_encoder_item_metadata(param.multimodal_data or {})
            except (TypeError, ValueError) as error:
                raise MultimodalEncoderContractError(str(error)) from error
            if metadata is None:
                raise MultimodalEncoderContractError("item encoding needs MM item metadata")
            if not 0 <= index < len(metadata.item_refs):
                raise MultimodalEncoderContractError(
                    f"MM item index {index} is out of range for {len(metadata.item_refs)} item(s)"
                )
            modality = metadata.item_refs[index][0]
            if run is not None and run[0] is param and run[2] == modality:
                run[1].append(index)
                continue
            if run is not None:
                yield run
            run = (param, [index], modality, metadata)
        if run is not None:
            yield run

    def forward_multimodal_encoder_items(
        self, encoder_inputs: Sequence[tuple[MultimodalParams, list[int], str]]
    ) -> list[torch.Tensor]:
        outputs: list[torch.Tensor] = []
        group: list[tuple[MultimodalParams, list[int], str]] = []

        def flush() -> None:
            if not group:
                return
            lengths = [n for _, rows, _ in group for n in rows]
            embeddings = self._run_multimodal_encoder([param for param, _, _ in group])
            if embeddings.shape[0] != sum(lengths):
                raise MultimodalEncoderContractError(
                    f"MM encoder output length {embeddings.shape[0]} does not match the "
                    f"{sum(lengths)} rows declared by the selected items"
                )
            outputs.extend(torch.split(embeddings, lengths, dim=0))
            group.clear()

        for entry in encoder_inputs:
            if group and group[-1][2] != entry[2]:
                flush()
            group.append(entry)
        flush()
        return outputs

    def _run_multimodal_encoder(
        self, multimodal_params: Sequence[MultimodalParams], **encoder_kwargs: Any
    ) -> torch.Tensor:
        return self.encode_multimodal_inputs(multimodal_params, **encoder_kwargs)

    def build_multimodal_encoder_input(
        self, param: MultimodalParams, item_indices: Sequence[int], modality: str | None = None
    ) -> MultimodalParams:
        modality = modality or self._encoder_cache_modality(param)
        if modality is None:
            raise NotImplementedError("pass `modality` for a param of several modalities")
        data = param.multimodal_data[modality]
        if not isinstance(data, dict):
            raise TypeError(f"multimodal_data[{modality!r}] must be a dict")
        indices = list(item_indices)
        if not indices:
            raise ValueError("item_indices must not be empty")
        pixels, grid_key = _PIXELS.get(modality), f"{modality}_grid_thw"
        if pixels in data and grid_key in data:
            grids = data[grid_key]
            pieces = torch.split(data[pixels], torch.prod(grids, dim=1).tolist(), dim=0)
            count = grids.shape[0]
            sliced = {pixels: torch.cat([pieces[i] for i in indices]), grid_key: grids[indices]}
        elif modality == "audio" and ("input_features" in data or "audio_features" in data):
            key = "input_features" if "input_features" in data else "audio_features"
            count = data[key].shape[0]
            sliced = {key: data[key][indices]}
        elif modality in _PIXELS and isinstance(data.get("pixel_values"), torch.Tensor):
            count = data["pixel_values"].shape[0]
            sliced = {"pixel_values": data["pixel_values"][indices]}
        else:
            raise NotImplementedError(
                f"cannot slice {modality} layout with fields {sorted(data)}; override this method"
            )
        siblings = self._slice_per_item_sibling_fields(data, count, indices, sliced)
        residual = {
            key: value
            for key, value in param.multimodal_data.items()
            if key not in _MM_DATA_INPUT_MODALITY_KEYS or key == modality
        }
        residual[modality] = {**data, **sliced, **siblings}
        return MultimodalParams(
            multimodal_data=residual, multimodal_input=copy.copy(param.multimodal_input)
        )

    @staticmethod
    def _slice_per_item_sibling_fields(
        modality_data: dict[str, Any],
        n_items: int,
        item_indices: Sequence[int],
        already_sliced: Any,
    ) -> dict[str, Any]:
        sliced: dict[str, Any] = {}
        for key, value in modality_data.items():
            if key in already_sliced:
                continue
            if isinstance(value, torch.Tensor) and value.dim() and value.shape[0] == n_items:
                sliced[key] = value[item_indices]
            elif isinstance(value, list) and len(value) == n_items:
                sliced[key] = [value[i] for i in item_indices]
        return sliced

    @staticmethod
    def _encoder_cache_modality(param: MultimodalParams) -> str | None:
        present = [k for k in _MM_DATA_INPUT_MODALITY_KEYS if k in (param.multimodal_data or {})]
        return present[0] if len(present) == 1 else None

    @staticmethod
    def _apply_metadata_slice(
        residual: MultimodalParams, source: MultimodalParams, item_indices: Sequence[int]
    ) -> None:
        lengths = source.multimodal_data["multimodal_embedding_lengths"]
        residual.multimodal_data["multimodal_embedding_lengths"] = [
            lengths[i] for i in item_indices
        ]
        metadata = get_multimodal_encoder_item_metadata(source.multimodal_data)
        if metadata is not None:
            residual.multimodal_data[MULTIMODAL_ENCODER_ITEM_METADATA_KEY] = (
                MultimodalEncoderItemMetadata(
                    *(
                        [values[i] for i in item_indices]
                        for values in (
                            metadata.item_refs,
                            metadata.encoder_token_lengths,
                            metadata.output_embedding_lengths,
                        )
                    )
                )
            )

    def get_encoder_attention_metadata_capacity(self, max_num_tokens: int) -> dict[str, int]:
        return {"attention": max(max_num_tokens, _ENCODER_FALLBACK_MAX_NUM_REQUESTS)}

    def setup_attn_metadata(
        self, max_num_tokens: int, attention_metadata_capacity: dict[str, int] | None = None
    ) -> None:
        capacities = (
            attention_metadata_capacity
            if attention_metadata_capacity is not None
            else self.get_encoder_attention_metadata_capacity(max_num_tokens)
        )
        self.attn_metadata = self.metadata_cls(
            max_num_requests=capacities["attention"],
            max_num_tokens=max_num_tokens,
            kv_cache_manager=None,
        )

    def set_attn_max_seq_len(self, max_seq_len: int) -> None:
        pass
