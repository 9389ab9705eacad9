# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Prefill and decode through the transformers model's own forward and cache classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from transformers import DynamicCache

from .caches import BatchCache, RunningCaches, SeparateCaches, can_share
from .loading import EncodedClips, EncodedFeatures, LoadedModel
from .media_inputs import MediaItem
from .prompts import PreparedPrompt
from .scheduler import Request


class Generator:
    """Runs the language model for the engine.

    Args:
        loaded: The language model, its towers replaced by modules that hand features on.
        device: Device of the model.
    """

    def __init__(self, loaded: LoadedModel, device: torch.device) -> None:
        self._loaded = loaded
        self._model: Any = loaded.model
        self._family = loaded.family
        self._text_config = loaded.config.get_text_config()
        self.device = device
        self.shares_cache = can_share(self._text_config)
        self.batch: RunningCaches = BatchCache() if self.shares_cache else SeparateCaches()

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
        prompt = request.prompt
        ids = torch.tensor([prompt.token_ids], device=self.device)
        positions, request.rope_delta = self._prompt_positions(prompt)
        arguments = self._media_arguments(prompt, encoded)
        cache = self._new_cache()
        logits = self._forward(ids, positions, cache, **arguments)
        return logits[0, -1], cache

    @torch.inference_mode()
    def decode(self, requests: Sequence[Request]) -> torch.Tensor:
        """Feed each running request its newest token.

        Args:
            requests: The running requests, in the order of the cache's rows.

        Returns:
            Logits [rows, vocab] of the next token, in the model's dtype.
        """
        lengths = self.batch.lengths
        if len(requests) != len(lengths) or not lengths:
            raise RuntimeError(f"{len(requests)} requests for {len(lengths)} cache rows")
        ids = torch.tensor([[request.token_ids[-1]] for request in requests], device=self.device)
        text = torch.tensor(lengths, device=self.device)
        if self._family.positions is None:
            positions = text[:, None]  # [rows, 1]
        else:
            delta = torch.tensor([request.rope_delta for request in requests], device=self.device)
            positions = _stack_positions(text[:, None], (text + delta)[None, :, None])
        logits = [
            self._forward(ids[rows], positions[..., rows, :], cache, attention_mask=mask)[:, -1]
            for rows, cache, mask in self.batch.groups(self.device)
        ]
        self.batch.lengths = [length + 1 for length in lengths]
        return logits[0] if len(logits) == 1 else torch.cat(logits)

    @torch.inference_mode()
    def probe(self, length: int) -> DynamicCache:
        """Read a prompt of one repeated token, to see what a prefill of this length takes.

        Returns:
            Its cache.
        """
        ids = torch.zeros(1, length, dtype=torch.long, device=self.device)
        positions = torch.arange(length, device=self.device)[None]
        if self._family.positions is not None:
            positions = positions.expand(4, 1, -1)
        cache = self._new_cache()
        self._forward(ids, positions, cache)
        return cache

    def cache_bytes(self) -> tuple[int, int]:
        """Bytes that a request's cache takes a token, and besides: measured with two prompts."""
        short, long = 64, 128
        few, many = (_tensor_bytes(self.probe(length)) for length in (short, long))
        per_token = (many - few) // (long - short)
        return max(per_token, 1), max(few - per_token * short, 0)

    def _new_cache(self) -> DynamicCache:
        return DynamicCache(config=self._text_config)

    def _prompt_positions(self, prompt: PreparedPrompt) -> tuple[torch.Tensor, float]:
        """Positions of a prompt, and what comes on top of the text position afterwards.

        They are [1, length] for a model without rotary positions, else [4, 1, length]: text, then
        time, height and width. Found on the host: the formulas read single numbers.
        """
        text = torch.arange(len(prompt.token_ids))[None]
        if self._family.positions is None:
            return text.to(self.device), 0
        if not any(prompt.items.get(m) for m in ("image", "video")):  # sound counts like text
            return text.expand(4, 1, -1).to(self.device), 0
        spatial, delta = self._family.positions(self._loaded.owner, prompt, _grids(prompt))
        return _stack_positions(text, spatial).to(self.device), delta.item()

    def _media_arguments(
        self, prompt: PreparedPrompt, encoded: Mapping[str, Sequence[Any]]
    ) -> dict[str, Any]:
        """Arguments of the model's forward that carry features to where its towers were."""
        grids = _grids(prompt)
        if self._family.videos_as_pictures and grids:
            outputs = {m: iter(items) for m, items in encoded.items()}
            rows = {m: iter(grid) for m, grid in grids.items()}
            encoded = {"image": [next(outputs[m]) for m in prompt.order]}
            grids = {"image": torch.stack([next(rows[m]) for m in prompt.order])}
        arguments: dict[str, Any] = {}
        names = {
            "image": ("pixel_values", "image_grid_thw"),
            "video": ("pixel_values_videos", "video_grid_thw"),
        }
        for modality, (pixels, grid) in names.items():
            if encoded.get(modality):
                arguments[pixels] = EncodedFeatures.pack(encoded[modality])
                arguments[grid] = grids[modality].to(self.device)
        if encoded.get("audio"):
            arguments |= EncodedClips.arguments(encoded["audio"])
        return arguments

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


def _grids(prompt: PreparedPrompt) -> dict[str, torch.Tensor]:
    """Int64 grids [items, 3] of pictures and videos."""
    found = {
        modality: [item.grid_thw for item in items if isinstance(item, MediaItem)]
        for modality, items in prompt.items.items()
    }
    return {modality: torch.tensor(grids) for modality, grids in found.items() if grids}


def _stack_positions(text: torch.Tensor, spatial: torch.Tensor) -> torch.Tensor:
    """[rows, length] and [1 or 3, rows, length] to [4, rows, length].

    A video's time can be a fraction of a position; then all positions are floats.
    """
    if spatial.is_floating_point():
        text = text.to(spatial.dtype)
    return torch.cat([text[None], spatial.to(text.dtype).expand(3, -1, -1)])


def _tensor_bytes(cache: DynamicCache) -> int:
    return sum(t.numel() * t.element_size() for layer in cache.layers for t in _tensors(layer))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Tensors in the attributes of a cache layer, and in lists and mappings there."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif hasattr(value, "__dict__"):
        yield from _tensors(list(vars(value).values()))
