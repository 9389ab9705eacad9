# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""A tower of ours where upstream's model expects one of its own.

``HostTower`` holds the tower and answers upstream's calls. At registration it gets upstream's
``MultimodalEncoderMixin`` as a base, by which upstream's engine finds encoders; the tower inside
stays what it is everywhere else. Weights come whole to every rank: the towers are not sharded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ..towers.checkpoint import MappedWeights, copy_parameters
from ..towers.output import ItemOutput
from .attention import OURS, chosen_backend, upstream_attention
from .items import ItemData, items_in_order, sliced_items
from .probe import contract_error

_OLDER_NAMES = ("max_num_items", "max_num_requests")


class HostTower(nn.Module):
    """Upstream's calls to an encoder, answered by one of our towers.

    Attributes:
        tower: Ours.
        attn_metadata: What upstream's code may look at; the tower keeps its own.
        multimodal_config: Upstream's model configuration of it, if any.
        mapping: Upstream's parallel mapping, if any.
        at_last_call: Called at the engine's last call before sizing, where that is the hook.
        max_seq_len: Longest segment that upstream expects; our attention bakes none.
    """

    encoder_cuda_graph_modality = "image"
    attn_metadata: Any

    def __init__(self, tower: Any, prefixes: tuple[str, ...]) -> None:
        """Takes a tower.

        Args:
            tower: An ``nn.Module`` with our ``MultimodalEncoderMixin``.
            prefixes: Prefixes of its keys in what ``load_weights`` is given.
        """
        super().__init__()
        self.tower = tower
        self._prefixes = prefixes
        self.multimodal_config: Any = None
        self.mapping: Any = None
        self.at_last_call: Callable[[], None] | None = None
        self.attn_metadata = None
        self.max_seq_len: int | None = None

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = self.tower.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """Element type of the weights."""
        dtype: torch.dtype = self.tower.dtype
        return dtype

    @property
    def config(self) -> Any:
        """Sizes of the tower."""
        return self.tower.config

    @property
    def has_graphs(self) -> bool:
        """Whether the tower replays graphs."""
        return bool(self.tower.has_encoder_cuda_graphs)

    # ---- weights -----------------------------------------------------------------------------

    def load_weights(self, weights: Mapping[str, Any], allow_partial_loading: bool = False) -> None:
        """Copies the tower's weights out of a checkpoint's.

        Args:
            weights: Tensors, or slices of files, by checkpoint key; others are left alone.
            allow_partial_loading: Not supported: a tower is loaded whole.

        Raises:
            ValueError: Keys are missing, unexpected or of another shape, or part of a checkpoint is
                to be loaded.
        """
        if allow_partial_loading:
            raise ValueError(
                f"{type(self.tower).__name__} cannot be loaded in parts; pass all of its weights, "
                "or set TRTLLM_EXT_DISABLE=1 to have upstream's encoder"
            )
        disk, ignored = self.tower.disk_tensors(), self.tower.disk_ignored
        source = MappedWeights(weights, "the checkpoint")
        copy_parameters(self.tower, disk, source, self._prefixes, ignored)

    # ---- metadata ----------------------------------------------------------------------------

    def get_encoder_attention_metadata_capacity(self, *limits: int, **named: int) -> dict[str, int]:
        """Most segments that a number of tokens can hold.

        Args:
            limits: (tokens), or (items, tokens) as older versions have it.
            named: The same by name.
        """
        tokens = named.get("max_num_tokens", limits[-1] if limits else 0)
        return {"attention": max(1, tokens // self.tokens_per_segment)}

    @property
    def tokens_per_segment(self) -> int:
        """Fewest tokens of a segment."""
        return 1

    def setup_attn_metadata(self, *limits: int, **named: Any) -> None:
        """Sizes the metadata of eager runs; every variant of upstream's signature is understood.

        Args:
            limits: (tokens), or (items, tokens) as older versions have it.
            named: ``max_num_tokens``, ``attention_metadata_capacity`` (segments per metadata
                object, or None), and of older versions ``max_num_items``, ``max_num_requests``.

        Raises:
            TypeError: There is no number of tokens, or an argument is not known.
        """
        known = {"max_num_tokens", "attention_metadata_capacity", *_OLDER_NAMES}
        unknown = sorted(named.keys() - known)
        tokens = named.get("max_num_tokens", limits[-1] if limits else None)
        if unknown or tokens is None or len(limits) > 2:
            raise TypeError(
                f"setup_attn_metadata was called with {list(limits)} and {named}; known: "
                f"{sorted(known)}. This version of TensorRT-LLM is newer than tensorrt_llm_ext: "
                "see trtllm-ext doctor"
            )
        capacity = named.get("attention_metadata_capacity")
        if not capacity or "attention" not in capacity:
            capacity = self.get_encoder_attention_metadata_capacity(tokens)
        self.tower.to(self.device)  # what is no parameter may have stayed behind
        backend = chosen_backend()
        if backend != OURS and self.tower.foreign_attention is None:
            vit = self.tower.blocks.config
            foreign = upstream_attention(backend, vit.num_heads, vit.head_dim, self.device)
            self.tower.foreign_attention = foreign
        self.tower.setup_attn_metadata(
            max_num_tokens=tokens,
            attention_metadata_capacity={"attention": min(capacity["attention"], tokens)},
        )
        self.attn_metadata = self.tower.attn_metadata

    def set_attn_max_seq_len(self, max_seq_len: int) -> None:
        """The engine's last call before it sizes anything.

        Args:
            max_seq_len: Longest segment to expect.
        """
        self.max_seq_len = max_seq_len
        if self.at_last_call is not None:
            self.at_last_call()

    # ---- graphs ------------------------------------------------------------------------------

    def enable_blocks_cuda_graph(self, *args: Any, **kwargs: Any) -> None:
        """Upstream's own graphs of a tower, which it captures after loading weights: not here."""

    def release_encoder_cuda_graphs(self) -> None:
        """Gives the graphs back; encoding goes on eagerly."""
        self.tower.release_encoder_cuda_graphs()

    # ---- items -------------------------------------------------------------------------------

    def encode_multimodal_inputs(self, multimodal_params: Iterable[Any], **_: Any) -> torch.Tensor:
        """Encodes the items of requests.

        Args:
            multimodal_params: Upstream's ``MultimodalParams``, one a request.

        Returns:
            [rows, O * (1 + deepstack)], dtype of the tower: rows of all items, requests in order
            and within each in order of the prompt, as far as upstream says it.

        Raises:
            ValueError: Upstream's ``MultimodalEncoderContractError``: an item is malformed, or has
                other rows than were declared.
        """
        error = contract_error()
        items: list[ItemData] = []
        for param in multimodal_params:
            items += items_in_order(param, error)
        try:
            outputs = self.tower.encode([item.tower_item() for item in items])
        except ValueError as problem:
            raise error(str(problem)) from problem
        rows = [as_rows(output) for output in outputs]
        for number, (item, made) in enumerate(zip(items, rows, strict=True)):
            if item.declared_rows is not None and len(made) != item.declared_rows:
                raise error(
                    f"item {number} ({item.modality}) has {len(made)} rows, but "
                    f"{item.declared_rows} were declared for it"
                )
        return torch.cat(rows)

    def _encode_rows(
        self, rows: torch.Tensor, grids: Sequence[tuple[int, ...]]
    ) -> list[ItemOutput]:
        """Items whose patch rows [patches, P] are end to end, by their grids (t, h, w)."""
        parts = zip(rows.split([math.prod(grid) for grid in grids]), grids, strict=True)
        outputs: list[ItemOutput] = self.tower.encode(
            [{"pixel_values": part, "grid_thw": grid} for part, grid in parts]
        )
        return outputs

    def build_multimodal_encoder_input(
        self, param: Any, item_indices: Sequence[int], modality: str | None = None
    ) -> Any:
        """The part of a request with some of its items.

        Args:
            param: Upstream's ``MultimodalParams``.
            item_indices: Items of the modality, from 0.
            modality: image or video; may be left out where there is one of them.

        Returns:
            Another ``MultimodalParams``.

        Raises:
            ValueError: Upstream's ``MultimodalEncoderContractError``: no such items.
        """
        return sliced_items(param, item_indices, modality, contract_error())


class GridHost(HostTower):
    """For towers over patch grids: Qwen3-VL, GLM.

    Attributes:
        with_deepstack: Whether upstream's wrapper expects deepstack features beside the others.
    """

    with_deepstack = False

    @property
    def spatial_merge_size(self) -> int:
        """Side of the square of patches that becomes a row."""
        return int(self.tower.spatial_merge_size)

    @property
    def tokens_per_segment(self) -> int:
        """See the base class."""
        return self.spatial_merge_size**2

    def forward(self, pixel_values: torch.Tensor, grid_thw: torch.Tensor, **_: Any) -> Any:
        """What upstream's wrapper calls.

        Args:
            pixel_values: Patch rows of all items [patches, P], any float dtype.
            grid_thw: int [items, 3].

        Returns:
            Features [patches / U, O], dtype of the tower; with deepstack features a pair of them
            and a list of tensors of the same shape.
        """
        grids = [tuple(int(n) for n in row) for row in grid_thw.tolist()]
        outputs = self._encode_rows(pixel_values, grids)
        features = torch.cat([output.features for output in outputs])
        if not self.with_deepstack:
            return features
        levels = zip(*(output.deepstack for output in outputs), strict=True)
        return features, [torch.cat(level) for level in levels]


class DeepstackGridHost(GridHost):
    """For Qwen3-VL."""

    with_deepstack = True


class RadioHost(HostTower):
    """For RADIO in Nemotron models: patch features; pixel shuffle and projector stay upstream's."""

    def forward(
        self,
        x: torch.Tensor,
        image_sizes: Sequence[tuple[int, int]] | None = None,
        num_frames: int | None = None,
    ) -> torch.Tensor:
        """What upstream's wrapper calls.

        Args:
            x: Pictures of one size [N, 3, height, width], or patch rows of pictures of any size
                [1, patches, P] with ``image_sizes``; any float dtype.
            image_sizes: Height and width of each picture in pixels.
            num_frames: Of a video whose frames are encoded one by one.

        Returns:
            [N, patches, D] or [1, patches, D], dtype of the tower, without learned tokens.
        """
        side = self.config.patch_size
        if image_sizes is not None:
            grids = [(1, int(h) // side, int(w) // side) for h, w in image_sizes]
            outputs = self._encode_rows(x[0], grids)
            return torch.cat([output.features for output in outputs])[None]
        pictures, channels, height, width = x.shape
        grid = (pictures, height // side, width // side)
        blocks = x.reshape(pictures, channels, grid[1], side, grid[2], side).permute(
            0, 2, 4, 1, 3, 5
        )
        rows = blocks.reshape(math.prod(grid), -1)
        features: torch.Tensor = self._encode_rows(rows, [grid])[0].features
        return features.view(pictures, grid[1] * grid[2], -1)


def as_rows(output: ItemOutput) -> torch.Tensor:
    """An item's output as upstream lays it out.

    Args:
        output: ``features`` [rows, O] and perhaps ``deepstack``, tensors of the same shape.

    Returns:
        [rows, O * (1 + deepstack)], dtype of the features.
    """
    return torch.cat([output.features, *output.get("deepstack", [])], dim=-1)
