# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""What a tower declares: shapes, the captured region, how an item is cut and presented."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, ClassVar, Protocol, cast

import torch
from torch import nn

from ..graphs.adapter import EncoderGraphIOAdapter, EncoderMetadataProvider, Tensors
from ..graphs.captured import Outputs
from ..graphs.layout import EncoderItem
from ..ops.attention import AttentionBackend, PackedAttention, attention_for
from ..ops.kernels import references_only
from .checkpoint import DiskTensors, disk_tensors_of
from .metadata import PackedMetadataProvider
from .output import ItemOutput
from .packed_blocks import PackedBlocks


class ForeignAttention(PackedAttention, Protocol):
    """A form of packed attention that brings metadata of its own."""

    def metadata(self, *, num_tokens: int, max_segments: int, max_segment_len: int) -> Any:
        """Metadata of eager runs with room for so much; has what ``PackedAttnMetadata`` has."""
        ...

    def provider(self) -> EncoderMetadataProvider[Any]:
        """Metadata of graphs."""
        ...


class EncoderContract(abc.ABC):
    """The part of ``MultimodalEncoderMixin`` that a tower fills in."""

    encoder_cuda_graph_modality: ClassVar[str]
    """Key of the tower's entry in ``encoder_cuda_graph``."""

    attention_backend: AttentionBackend = "auto"
    """Form of attention; set it before ``setup_attn_metadata`` and capture."""

    fused_layers: bool | None = None
    """Whether the region runs fused (``towers.packed_blocks``, ``ops``); None: where there are
    kernels for it. Off, it is plain torch but for attention."""

    _weight_slot: tuple[dict[str, nn.Parameter | None], str] | None = None

    foreign_attention: ForeignAttention | None = None
    """A host's attention in place of ours; set it before ``setup_attn_metadata`` and capture."""

    disk_ignored: Mapping[str, float | None] = {}
    """Checkpoint keys without use, see ``checkpoint.load_parameters``."""

    @abc.abstractmethod
    def make_io_adapter(self) -> EncoderGraphIOAdapter:
        """Shapes and buffers of the captured region."""

    @abc.abstractmethod
    def encoder_forward(self, inputs: Mapping[str, torch.Tensor], metadata: Any) -> Outputs:
        """The region that is captured: tensors in, tensors out, no host reads.

        Args:
            inputs: Tensors by the names of the adapter's input specs, [rows, *shape], dtype of
                the spec.
            metadata: What the metadata provider built.

        Returns:
            Tensors by the names of the adapter's output specs, [rows, *shape], dtype of the spec;
            or an iterator over names and tensors: what is ready before the end is copied away then
            and takes no memory any more.
        """

    def run_region(
        self, inputs: Mapping[str, torch.Tensor], metadata: Any
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """``encoder_forward``, fused or not as ``fused_layers`` says.

        Args:
            inputs: As of ``encoder_forward``: [rows, *shape], dtype of the spec.
            metadata: Likewise.

        Yields:
            Names and tensors [rows, *shape], dtype of the spec.
        """
        plain = references_only() if self.fused_layers is False else contextlib.nullcontext()
        with plain:
            outputs = self.encoder_forward(inputs, metadata)
            yield from outputs.items() if isinstance(outputs, Mapping) else outputs

    @abc.abstractmethod
    def pack_item(self, item: Mapping[str, Any]) -> EncoderItem:
        """Checks an item and cuts it into segments; raises ValueError naming what is wrong."""

    @abc.abstractmethod
    def make_output(self, item: EncoderItem, tensors: Tensors) -> ItemOutput:
        """Presents an item's outputs.

        Args:
            item: The item.
            tensors: By the names of the adapter's output specs, [item rows, *shape], dtype of the
                spec.

        Returns:
            The same under the names that callers know.
        """

    def disk_tensors(self) -> DiskTensors:
        """Checkpoint keys (without prefix) and shapes on disk of every parameter."""
        return disk_tensors_of(self._module)

    def initial_value(self, name: str) -> torch.Tensor | None:
        """What a tower with random weights has instead of a draw.

        Args:
            name: Of a parameter.

        Returns:
            Its value where it is a constant rather than a weight: same shape, any dtype.
        """
        return None

    @property
    def few_tokens(self) -> int:
        """Tokens up to which the region takes another form, which may take more memory; 0: none."""
        return 0

    def lay_out_weights(self, device: torch.device | None = None) -> None:
        """Puts weights where kernels like them, before a capture; values and shapes stay.

        Args:
            device: Where weights on device meta are going to be; by default the tower's.
        """
        for part in self._module.modules():
            if isinstance(part, PackedBlocks) and self.fused_layers is not False:
                part.lay_out_weights(device or self.device)

    def attention(self, *, captured: bool) -> PackedAttention:
        """Form of attention inside a graph, or outside."""
        if self.foreign_attention is not None:
            return self.foreign_attention
        return attention_for(
            self.device,
            self.dtype,
            captured=captured,
            backend=self.attention_backend,
            head_size=self._head_size,
        )

    @cached_property
    def _head_size(self) -> int | None:
        """D of the shared blocks, None without. Kept: eager runs ask, and modules are many."""
        blocks = (part for part in self._module.modules() if isinstance(part, PackedBlocks))
        return next((part.config.head_dim for part in blocks), None)

    def make_metadata_provider(self) -> EncoderMetadataProvider[Any]:
        """Metadata of graphs; by default packed attention."""
        if self.foreign_attention is not None:
            return self.foreign_attention.provider()
        return PackedMetadataProvider(self.attention(captured=True), self.device)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._a_weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Element type of the weights."""
        return self._a_weight.dtype

    @property
    def _a_weight(self) -> torch.Tensor:
        """The first parameter, looked up where it stands: the walk there is slow."""
        slot = self._weight_slot
        weight = slot[0][slot[1]] if slot else None
        if weight is None:
            self._weight_slot = module, name = next(
                (module._parameters, name)
                for module in self._module.modules()
                for name, parameter in module._parameters.items()
                if parameter is not None
            )
            weight = cast(nn.Parameter, module[name])
        return weight

    @property
    def _module(self) -> nn.Module:
        if not isinstance(self, nn.Module):
            raise TypeError(f"{type(self).__name__} has to be an nn.Module")
        return self
