# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``models/multimodal_encoder_graph.py`` (commits 2341856e12b8, a1510015fcd7).

The runner keeps upstream's names, errors and bookkeeping; a "graph" is the function itself, called
on the static buffers, so that it runs without a GPU. Events tell captures and replays apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from tensorrt_llm import _double

from ..utils import torch_compiling

_PADDING_TOKEN_RESERVE: int = 1


class EncoderGraphKey(NamedTuple):
    total_tokens: int
    num_contexts: int


class EncoderGraphTensorSpec(NamedTuple):
    shape: tuple[int, ...]
    dtype: torch.dtype
    token_dim: int = 0

    def materialize(self, total_tokens: int, device: torch.device) -> torch.Tensor:
        shape = list(self.shape)
        shape.insert(self.token_dim, total_tokens)
        return torch.zeros(tuple(shape), dtype=self.dtype, device=device)


class _CapturedGraph(NamedTuple):
    graph: Any
    inputs: dict[str, torch.Tensor]
    metadata: Any
    outputs: dict[str, torch.Tensor]
    metadata_tensor_ptrs: Mapping[str, int]


class EncoderMetadataProvider(Protocol):
    graph_critical_attrs: Sequence[str]

    def build(self, key: EncoderGraphKey) -> Any: ...

    def refresh_in_place(self, metadata: Any, padded_seq_lengths: Sequence[int]) -> None: ...


class MultimodalEncoderGraphRunner:
    def __init__(
        self,
        *,
        encoder_fn: Callable[[Mapping[str, torch.Tensor], Any], Mapping[str, torch.Tensor]],
        metadata_provider: EncoderMetadataProvider,
        input_specs: Mapping[str, EncoderGraphTensorSpec],
        output_specs: Mapping[str, int],
        config: Any,
    ) -> None:
        if not config.buckets:
            raise ValueError("MultimodalEncoderCudaGraphConfig.buckets is empty")
        self._encoder_fn, self._metadata_provider = encoder_fn, metadata_provider
        self._input_specs, self._output_specs = dict(input_specs), dict(output_specs)
        self._config = config
        self._buckets = sorted(EncoderGraphKey(*bucket) for bucket in config.buckets)
        self._captured: dict[EncoderGraphKey, _CapturedGraph] = {}

    def capture_all(self, device: torch.device) -> None:
        for bucket in self._buckets:
            key = self._padded_key_for_bucket(bucket)
            if key not in self._captured:
                self._capture_key(key, self._dummy_padded_seq_lengths(bucket, key), device)

    def _padded_key_for_bucket(self, bucket: EncoderGraphKey) -> EncoderGraphKey:
        extra = _PADDING_TOKEN_RESERVE if self._config.enable_padding else 0
        return EncoderGraphKey(bucket.total_tokens + extra, bucket.num_contexts + extra)

    def _dummy_padded_seq_lengths(self, bucket: EncoderGraphKey, key: EncoderGraphKey) -> list[int]:
        if key == bucket:
            rest = bucket.num_contexts - 1
            return [bucket.total_tokens - rest] + [1] * rest
        return [1] * bucket.num_contexts + [key.total_tokens - bucket.num_contexts]

    def _capture_key(
        self, key: EncoderGraphKey, padded_seq_lengths: Sequence[int], device: torch.device
    ) -> None:
        inputs = {
            name: spec.materialize(key.total_tokens, device)
            for name, spec in self._input_specs.items()
        }
        metadata = self._metadata_provider.build(key)
        self._metadata_provider.refresh_in_place(metadata, padded_seq_lengths)
        with torch.inference_mode(), torch_compiling(False):
            outputs = dict(self._encoder_fn(inputs, metadata))
        pointers = {}
        for name in self._metadata_provider.graph_critical_attrs:
            value = getattr(metadata, name)
            if not isinstance(value, torch.Tensor):
                raise TypeError(f"Encoder graph metadata attribute `{name}` is not a tensor.")
            pointers[name] = value.data_ptr()
        self._captured[key] = _CapturedGraph(object(), inputs, metadata, outputs, pointers)
        _double.record("upstream_capture", key=list(key))

    def maybe_run(
        self, *, seq_lengths: Sequence[int], inputs: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor] | None:
        tokens = int(sum(seq_lengths))
        bucket = self._select_bucket(len(seq_lengths), tokens)
        if bucket is None:
            return None
        lengths = list(seq_lengths)
        if self._config.enable_padding:
            lengths.append(bucket.total_tokens - tokens + _PADDING_TOKEN_RESERVE)
        captured = self._captured.get(self._padded_key_for_bucket(bucket))
        if captured is None:
            return None
        for name, spec in self._input_specs.items():
            if name not in inputs:
                raise KeyError(f"Missing graph input '{name}' for multimodal encoder runner.")
            narrow = captured.inputs[name].narrow(spec.token_dim, 0, tokens)
            narrow.copy_(inputs[name].narrow(spec.token_dim, 0, tokens))
        self._metadata_provider.refresh_in_place(captured.metadata, lengths)
        for name, pointer in captured.metadata_tensor_ptrs.items():
            if getattr(captured.metadata, name).data_ptr() != pointer:
                raise RuntimeError(f"Encoder graph metadata tensor `{name}` was reallocated")
        with torch.inference_mode(), torch_compiling(False):
            outputs = dict(self._encoder_fn(captured.inputs, captured.metadata))
        _double.record("upstream_replay", bucket=list(bucket))
        return {
            name: value.narrow(self._output_specs[name], 0, tokens)
            for name, value in outputs.items()
        }

    def _select_bucket(self, real_contexts: int, real_tokens: int) -> EncoderGraphKey | None:
        for bucket in self._buckets:
            fits = real_tokens <= bucket.total_tokens
            if not self._config.enable_padding:
                fits = real_tokens == bucket.total_tokens
            if bucket.num_contexts == real_contexts and fits:
                return bucket
        return None
