# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The vision towers of GLM-4.1V, 4.5V, 4.6V, GLM-OCR and GLM-5.3.

RMS norms and gated MLPs; a strided convolution joins the patches before the merger. GLM-4.xV reads
a position table (bicubic), the later ones normalise queries and keys instead. transformers' towers
are the oracle of the tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from pydantic import PositiveInt
from torch import nn

from ..ops.activation import activate_
from ..ops.norm import apply_norm
from .checkpoint import DiskTensor, DiskTensors, parse_section
from .packed_vit import PackedMLP, PackedViTConfig
from .registry import register_tower
from .vision import PatchGridConfig, PatchGridTower


class GlmVisionConfig(PatchGridConfig):
    """``vision_config`` of a checkpoint's config.json; keys without use here are ignored."""

    patch_size: PositiveInt = 14
    image_size: PositiveInt = 336
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False
    projection_intermediate_size: PositiveInt = 10240
    swiglu_limit: float | None = None

    def packed_vit(self, *, mlp_width: int, qk_norm: bool) -> PackedViTConfig:
        """Knobs of the shared transformer; the MLP has biases where the attention has."""
        return PackedViTConfig(
            depth=self.depth,
            width=self.hidden_size,
            num_heads=self.num_heads,
            mlp_width=mlp_width,
            activation=self.hidden_act,
            norm="rms",
            norm_eps=self.rms_norm_eps,
            attention_bias=self.attention_bias,
            qk_norm=qk_norm,
            gated_mlp=True,
            mlp_bias=self.attention_bias,
            gate_limit=self.swiglu_limit,
            rope_theta=self.rope_base,
        )


class GlmMerger(nn.Module):
    """Projection, norm, GELU and a gated MLP, all of width O."""

    def __init__(self, width: int, mlp_width: int, config: GlmVisionConfig) -> None:
        """Makes the layers."""
        super().__init__()
        self.proj = nn.Linear(width, width, bias=False)
        self.post_projection_norm = nn.LayerNorm(width)
        self.mlp = PackedMLP(
            width,
            mlp_width,
            activation=config.hidden_act,
            gated=True,
            bias=False,
            gate_limit=config.swiglu_limit,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transforms joined rows.

        Args:
            x: [T / U, O], dtype of the weights.

        Returns:
            [T / U, O], dtype of the weights.
        """
        x = apply_norm(self.post_projection_norm, self.proj(x))
        return self.mlp(activate_(x, "gelu"))


class GlmVisionTower(PatchGridTower):
    """GLM-OCR and GLM-5.3: no position table, normalised queries and keys."""

    disk_renames = {  # noqa: RUF012
        r"^merger\.mlp\.": "merger.",
        r"\.linear_fc1\.": (".gate_proj.", ".up_proj."),
        r"\.linear_fc2\.": ".down_proj.",
    }
    config: GlmVisionConfig

    def __init__(self, config: GlmVisionConfig, vit: PackedViTConfig, *, merger_width: int) -> None:
        """Makes the modules; weights come from ``load_tower``."""
        super().__init__(config, vit)
        joined, out = config.hidden_size * config.merge_unit, config.out_hidden_size
        self.post_layernorm = vit.make_norm()
        self.downsample = nn.Linear(joined, out)
        self.merger = GlmMerger(out, merger_width, config)

    def disk_tensors(self) -> DiskTensors:
        """See the base class; the downsampling is a convolution on disk, channels second."""
        name, c = "downsample.weight", self.config
        shape = (c.out_hidden_size, c.hidden_size, c.spatial_merge_size, c.spatial_merge_size)
        return {**super().disk_tensors(), name: (DiskTensor(name, shape, axes=(0, 2, 3, 1)),)}

    def tail(self, x: torch.Tensor) -> torch.Tensor:
        """See the base class.

        Args:
            x: [T, C], dtype of the weights.

        Returns:
            [T / U, O], dtype of the weights.
        """
        joined = apply_norm(self.post_layernorm, x).view(-1, self.downsample.in_features)
        merged: torch.Tensor = self.merger(self.downsample(joined))
        return merged


class Glm4VisionTower(GlmVisionTower):
    """GLM-4.1V, 4.5V and 4.6V: bicubic positions after a norm of the embedded patches."""

    num_taps = 16
    disk_renames = {  # noqa: RUF012
        **GlmVisionTower.disk_renames,
        r"^pos_embed\.": "embeddings.position_embedding.",
    }

    def __init__(self, config: GlmVisionConfig, vit: PackedViTConfig, *, merger_width: int) -> None:
        """Makes the modules; weights come from ``load_tower``."""
        super().__init__(config, vit, merger_width=merger_width)
        self.post_conv_layernorm = vit.make_norm()
        self.pos_embed = nn.Embedding(
            (config.image_size // config.patch_size) ** 2, config.hidden_size
        )

    def embed(self, pixels: torch.Tensor) -> torch.Tensor:
        """See the base class.

        Args:
            pixels: [T, P], dtype of the weights.

        Returns:
            [T, C], dtype of the weights.
        """
        return apply_norm(self.post_conv_layernorm, super().embed(pixels))

    def position_taps(self, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
        """Bicubic, corners not aligned."""
        rows = self.pos_embed.num_embeddings
        return self.table_taps(height, width, rows, cubic=True, align_corners=False)

    def position_table(self) -> torch.Tensor:
        """See the base class.

        Returns:
            [rows, C], dtype of the weights.
        """
        return self.pos_embed.weight


@register_tower("glm4v", "glm4v_moe", "glm46v", prefixes=("model.visual.",))
def _glm4_tower(config: Mapping[str, Any]) -> Glm4VisionTower:
    vision = parse_section(GlmVisionConfig, config, "vision_config")
    vit = vision.packed_vit(mlp_width=vision.out_hidden_size, qk_norm=False)
    return Glm4VisionTower(vision, vit, merger_width=vision.intermediate_size)


@register_tower("glm_ocr", prefixes=("model.visual.",))
def _glm_ocr_tower(config: Mapping[str, Any]) -> GlmVisionTower:
    vision = parse_section(GlmVisionConfig, config, "vision_config", attention_bias=True)
    vit = vision.packed_vit(mlp_width=vision.intermediate_size, qk_norm=True)
    return GlmVisionTower(vision, vit, merger_width=vision.out_hidden_size * vision.in_channels)


@register_tower("glm5_next", prefixes=("model.visual.",))
def _glm5_tower(config: Mapping[str, Any]) -> GlmVisionTower:
    vision = parse_section(
        GlmVisionConfig, config, "vision_config", attention_bias=True, swiglu_limit=10.0
    )
    vit = vision.packed_vit(mlp_width=vision.intermediate_size, qk_norm=True)
    return GlmVisionTower(vision, vit, merger_width=vision.projection_intermediate_size)
