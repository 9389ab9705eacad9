# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Vision towers of transformers as they are, under the lifecycle of all towers.

For models without a tower of their own here. A transformers tower (5.17 on) takes all that depends
on the grid from its caller, and calls attention once per layer where the name of the implementation
has "flash" in it: with both, its forward is static. It runs at transformers' speed, unfused.
The one file here that needs transformers, and it imports it with the first tower, not before.
Shape letters: T tokens, P patch values, H heads, D head size, O output width, U merge unit.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from importlib import import_module
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from ..graphs.adapter import EncoderGraphTensorSpec
from ..graphs.layout import AttentionLayout
from ..ops.packed_metadata import PackedAttnMetadata
from .checkpoint import DiskTensors, disk_tensors_of, parse_section
from .packed_vit import Fp32Constant
from .registry import register_tower
from .vision import GridTower, PatchConfig
from .windows import (
    WindowedIOAdapter,
    WindowedMetadata,
    WindowedMetadataProvider,
    window_layout,
)

ATTENTION = "tensorrt_llm_ext_flash_packed"  # "flash": transformers then calls it once per layer


class HFVisionTower(GridTower):
    """A transformers tower that takes patch rows, positions and offsets; one merged row per U."""

    def __init__(self, config: Any, module_class: Callable[[Any], nn.Module], width: int) -> None:
        """Makes the modules on the default device; weights come from ``load_tower``.

        Args:
            config: Vision config of transformers.
            module_class: Its tower: (patch rows, grid_thw=None, position_ids=, cu_seqlens=,
                max_seqlen=, ...) -> an output with ``pooler_output``.
            width: O.
        """
        from transformers import AttentionInterface
        from transformers.initialization import no_init_weights

        super().__init__()
        self.config = parse_section(PatchConfig, config.to_dict())
        self.out_hidden_size = width
        device = torch.get_default_device()
        with torch.device("cpu"), no_init_weights():  # computed buffers need their values
            self.hf = module_class(config)
        self._computed = [
            (module, name, Fp32Constant(value))
            for module in self.hf.modules()
            for name, value in module.named_buffers(recurse=False)
        ]
        self._tables = nn.ModuleList(table for *_, table in self._computed)
        if device.type != "cpu":
            self.hf.to(device)
        AttentionInterface.register(ATTENTION, _packed_attention)
        cast(Any, self.hf).config._attn_implementation = ATTENTION  # not before: it looks for FA2

    def _apply(self, fn: Any, recurse: bool = True) -> HFVisionTower:
        """Follows ``.to()``; computed buffers keep values and precision (rope needs fp32)."""
        super()._apply(fn, recurse)
        for module, name, table in self._computed:
            module._buffers[name] = table.on(self.device)
        return self

    def disk_tensors(self) -> DiskTensors:
        """See the mixin."""
        return disk_tensors_of(self, {r"^hf\.": ""})

    def precomputed(
        self, inputs: Mapping[str, torch.Tensor], metadata: Any
    ) -> tuple[list[PackedAttnMetadata], dict[str, Any]]:
        """Layouts that attention reads, and keyword arguments of transformers' forward.

        Args:
            inputs: As of ``encoder_forward``: ``positions`` int32 [T, 2] and more.
            metadata: Of the tower.

        Returns:
            The layouts, and tensors and ints by the names transformers has for them.
        """
        offsets, longest = metadata.cu_seqlens, metadata.max_segment_len
        return [metadata], {"cu_seqlens": offsets, "max_seqlen": longest}

    def encoder_forward(
        self, inputs: Mapping[str, torch.Tensor], metadata: Any
    ) -> dict[str, torch.Tensor]:
        """Patch rows to features.

        Args:
            inputs: ``pixel_values`` [T, P] dtype of the weights, ``positions`` int32 [T, 2] and
                what else ``layout_specs`` has.
            metadata: Layout of the segments.

        Returns:
            ``features`` [T / U, O], dtype of the weights.
        """
        layouts, kwargs = self.precomputed(inputs, metadata)
        rows = inputs["pixel_values"].shape[0]
        prepared = [(m, m.attention.prepare(m, rows)) for m in layouts]
        out = self.hf(
            inputs["pixel_values"],
            grid_thw=None,
            position_ids=inputs["positions"],
            packed_layouts=prepared,
            **kwargs,
        )
        return {"features": out.pooler_output}


def _packed_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    *,
    cu_seq_lens_q: torch.Tensor,
    packed_layouts: Sequence[tuple[PackedAttnMetadata, torch.Tensor | None]],
    scaling: float,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """What transformers calls: q, k, v [1, H, T, D] -> [1, T, H, D], no attention weights."""
    if abs(scaling * query.shape[-1] ** 0.5 - 1) > 1e-6:
        raise ValueError(f"attention scale {scaling} is not that of head size {query.shape[-1]}")
    metadata, mask = next(pair for pair in packed_layouts if pair[0].cu_seqlens is cu_seq_lens_q)
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))  # [T, H, D]
    return metadata.attention(q, k, v, metadata, mask)[None], None


class HFWindowedVisionTower(HFVisionTower):
    """Qwen2.5-VL: most layers attend in square windows; transformers reorders tokens for that."""

    @property
    def _side(self) -> int:
        """Side of a window, in merged rows."""
        pixels = cast(int, cast(Any, self.hf).window_size)
        return pixels // self.config.patch_size // self.spatial_merge_size

    def layout_specs(self) -> dict[str, EncoderGraphTensorSpec]:
        """See the base class."""
        return {**super().layout_specs(), "distance": EncoderGraphTensorSpec((1,), torch.int32)}

    def frame_layout(self, height: int, width: int) -> dict[str, np.ndarray]:
        """See the base class; a merged token's distance stands at each of its U rows."""
        distance = self._windows((height, width))[0].repeat(self.config.merge_unit)[:, None]
        return {**super().frame_layout(height, width), "distance": distance}

    def _windows(self, layout: Hashable) -> tuple[np.ndarray, tuple[int, ...]]:
        height, width = (n // self.spatial_merge_size for n in cast(tuple[int, int], layout))
        return window_layout(height, width, self._side)

    def make_io_adapter(self) -> WindowedIOAdapter:
        """See the mixin."""
        unit = self.config.merge_unit
        return WindowedIOAdapter(
            window_tokens=unit * self._side**2,
            windows_of=lambda layout: tuple(unit * n for n in self._windows(layout)[1]),
            **self.io_specs(),
        )

    def make_metadata_provider(self) -> WindowedMetadataProvider:
        """See the mixin."""
        attention = self.attention(captured=True)
        side, unit = self._side, self.config.merge_unit
        return WindowedMetadataProvider(attention, self.device, side=side, unit=unit)

    def make_eager_metadata(self, segment_lengths: AttentionLayout) -> WindowedMetadata:
        """See the mixin."""
        attention = self.attention(captured=False)
        return WindowedMetadata.of(segment_lengths, attention, self.device)

    def precomputed(
        self, inputs: Mapping[str, torch.Tensor], metadata: Any
    ) -> tuple[list[PackedAttnMetadata], dict[str, Any]]:
        """See the base class.

        Args:
            inputs: ``distance`` int32 [T, 1] too.
            metadata: Of both layouts.
        """
        _, kwargs = super().precomputed(inputs, metadata.segments)
        distance = inputs["distance"][:: self.config.merge_unit, 0]  # [T / U]
        places = torch.arange(distance.shape[0], device=distance.device)
        windows = metadata.windows
        return [metadata.segments, windows], {
            **kwargs,
            "window_index": places + distance,
            "cu_window_seqlens": windows.cu_seqlens,
            "max_window_seqlen": windows.max_segment_len,
        }


def register_hf_vision_tower(
    model_type: str,
    class_name: str,
    *,
    prefixes: tuple[str, ...],
    width_key: str,
    tower: type[HFVisionTower] = HFVisionTower,
) -> None:
    """Registers a tower of transformers for a model type.

    Args:
        model_type: Of config.json.
        class_name: The tower's class in transformers' modelling file of that model type.
        prefixes: Of its keys in a checkpoint, the usual one first.
        width_key: Key of the vision config that holds the output width.
        tower: How it is called.
    """

    @register_tower(model_type, prefixes=prefixes)
    def make(config: Mapping[str, Any]) -> HFVisionTower:
        from transformers import AutoConfig

        module = import_module(f"transformers.models.{model_type}.modeling_{model_type}")
        known = {key: value for key, value in config.items() if key != "model_type"}
        vision = AutoConfig.for_model(model_type, **known).vision_config
        return tower(vision, getattr(module, class_name), getattr(vision, width_key))


register_hf_vision_tower(
    "qwen2_vl",
    "Qwen2VisionTransformerPretrainedModel",
    prefixes=("visual.", "model.visual."),
    width_key="hidden_size",
)
register_hf_vision_tower(
    "qwen2_5_vl",
    "Qwen2_5_VisionTransformerPretrainedModel",
    prefixes=("visual.", "model.visual."),
    width_key="out_hidden_size",
    tower=HFWindowedVisionTower,
)
