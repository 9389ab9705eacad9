# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Prefill and decode through the transformers model's own forward and cache classes.

Running requests share one ``DynamicCache``, padded on the left to its longest row:

    row 0   . . . a b c d        columns: cache positions, newest last
    row 1   e f g h i j k        "."    : padding, masked

A request joins by being written into a wider cache, and leaves by selecting the other rows and
cutting the columns that are now padding everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

from .loading import EncodedFeatures, LoadedModel
from .scheduler import Request


class BatchCache:
    """The KV cache of the running requests, one row each.

    Attributes:
        cache: The transformers cache, or None when nobody runs.
        lengths: Cached tokens of each row, without padding.
    """

    def __init__(self) -> None:
        self.cache: DynamicCache | None = None
        self.lengths: list[int] = []

    @property
    def width(self) -> int:
        """Columns, padding included."""
        return max(self.lengths, default=0)

    def join(self, newcomers: Sequence[DynamicCache]) -> None:
        """Append rows.

        Args:
            newcomers: Caches of one request each, keys and values [1, heads, length, head_dim].
        """
        if not newcomers:
            return
        old = [] if self.cache is None else [self.cache]
        lengths = self.lengths + [cache.get_seq_length() for cache in newcomers]
        width = max(lengths)
        parts = [*old, *newcomers]
        if len(parts) == 1:
            self.cache, self.lengths = parts[0], lengths
            return
        target = parts[0]
        for index, layer in enumerate(_layers(target)):
            layers = [_layers(part)[index] for part in parts]
            # Layer by layer, so that only one layer exists twice at a time.
            layer.keys = _stack_left_padded([other.keys for other in layers], width)
            layer.values = _stack_left_padded([other.values for other in layers], width)
            for other in layers[1:]:
                other.keys = other.values = None
        self.cache, self.lengths = target, lengths

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order, and cut columns that only the others used."""
        if list(rows) == list(range(len(self.lengths))):
            return
        self.lengths = [self.lengths[row] for row in rows]
        if not rows or self.cache is None:
            self.cache = None
            return
        width = self.width
        index: torch.Tensor | None = None
        for layer in _layers(self.cache):
            if index is None:
                index = torch.tensor(list(rows), device=layer.keys.device)
            layer.keys = layer.keys[index, :, -width:].contiguous()
            layer.values = layer.values[index, :, -width:].contiguous()

    def mask(self, device: torch.device) -> torch.Tensor | None:
        """Attention mask of the next decode step.

        Returns:
            Int64 tensor [rows, width + 1], 1 where there is a token (the new one included), or
            None when no row is padded.
        """
        width = self.width
        if all(length == width for length in self.lengths):
            return None
        columns = torch.arange(width + 1, device=device)
        first = torch.tensor([width - length for length in self.lengths], device=device)
        return (columns[None, :] >= first[:, None]).long()


class Generator:
    """Runs the language model for the engine.

    Args:
        loaded: The language model, its visual tower replaced by :class:`EncodedFeatures`.
        device: Device of the model.
    """

    def __init__(self, loaded: LoadedModel, device: torch.device) -> None:
        self._loaded = loaded
        self._model: Any = loaded.model
        self.device = device
        self.batch = BatchCache()

    @torch.inference_mode()
    def prefill(
        self, request: Request, encoded: dict[str, list[Any]]
    ) -> tuple[torch.Tensor, DynamicCache]:
        """Read a request's prompt.

        Args:
            request: The request; its ``rope_delta`` is set.
            encoded: Tower outputs of its items, of each modality.

        Returns:
            Logits [vocab] of the last prompt token in the model's dtype, and the cache of the
            prompt. The request is not in the batch yet.
        """
        media = {m: outputs for m, outputs in encoded.items() if outputs}
        grids = {
            m: torch.tensor([item.grid_thw for item in request.prompt.items[m]], device=self.device)
            for m in media
        }
        ids = torch.tensor([request.prompt.token_ids], device=self.device)
        positions = self._prompt_positions(request, ids, grids)
        arguments: dict[str, Any] = {}
        if "image" in media:
            arguments["pixel_values"] = EncodedFeatures.pack(media["image"])
            arguments["image_grid_thw"] = grids["image"]
        if "video" in media:
            arguments["pixel_values_videos"] = EncodedFeatures.pack(media["video"])
            arguments["video_grid_thw"] = grids["video"]
        cache = DynamicCache(config=self._loaded.config.get_text_config())
        logits = self._forward(ids, positions, cache, logits_to_keep=1, **arguments)
        return logits[0, -1], cache

    @torch.inference_mode()
    def decode(self, requests: Sequence[Request]) -> torch.Tensor:
        """Feed each running request its newest token.

        Args:
            requests: The running requests, in the order of the cache's rows.

        Returns:
            Logits [rows, vocab] of the next token, in the model's dtype.
        """
        if len(requests) != len(self.batch.lengths) or self.batch.cache is None:
            raise RuntimeError(f"{len(requests)} requests for {len(self.batch.lengths)} cache rows")
        ids = torch.tensor([[request.token_ids[-1]] for request in requests], device=self.device)
        text = torch.tensor(self.batch.lengths, device=self.device)
        delta = torch.tensor([request.rope_delta for request in requests], device=self.device)
        positions = torch.stack([text, *[text + delta] * 3])[:, :, None]  # [4, rows, 1]
        mask = self.batch.mask(self.device)
        logits = self._forward(ids, positions, self.batch.cache, attention_mask=mask)
        self.batch.lengths = [length + 1 for length in self.batch.lengths]
        return logits[:, -1]

    @torch.inference_mode()
    def probe(self, length: int) -> None:
        """Read a prompt of one repeated token, to see what a prefill of this length takes."""
        ids = torch.zeros(1, length, dtype=torch.long, device=self.device)
        positions = torch.arange(length, device=self.device).view(1, 1, -1).expand(4, 1, -1)
        cache = DynamicCache(config=self._loaded.config.get_text_config())
        self._forward(ids, positions, cache, logits_to_keep=1)

    def _prompt_positions(
        self, request: Request, ids: torch.Tensor, grids: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """Positions [4, 1, length] of a prompt: text, then time, height and width."""
        text = torch.arange(ids.shape[1], device=self.device).view(1, 1, -1)
        if not grids:
            request.rope_delta = 0
            return text.expand(4, 1, -1)
        types = torch.tensor([request.prompt.token_types], dtype=torch.int32, device=self.device)
        spatial, delta = self._model.model.get_rope_index(
            ids,
            mm_token_type_ids=types,
            image_grid_thw=grids.get("image"),
            video_grid_thw=grids.get("video"),
        )
        request.rope_delta = int(delta)
        return torch.cat([text, spatial.to(text.dtype)])

    def _forward(
        self, ids: torch.Tensor, positions: torch.Tensor, cache: DynamicCache, **arguments: Any
    ) -> torch.Tensor:
        output = self._model(
            input_ids=ids,
            position_ids=positions,
            use_cache=True,
            **{self._loaded.cache_argument: cache},
            **arguments,
        )
        logits: torch.Tensor = output.logits
        return logits


def _layers(cache: DynamicCache) -> list[Any]:
    """Layers of a cache; the loader accepts only models whose layers hold keys and values."""
    return list(cache.layers)


def _stack_left_padded(parts: Sequence[torch.Tensor], width: int) -> torch.Tensor:
    """Concatenate [rows, heads, length, dim] tensors of different lengths along the rows."""
    rows = sum(part.shape[0] for part in parts)
    out = parts[0].new_zeros(rows, parts[0].shape[1], width, parts[0].shape[3])
    start = 0
    for part in parts:
        out[start : start + part.shape[0], :, width - part.shape[2] :] = part
        start += part.shape[0]
    return out
