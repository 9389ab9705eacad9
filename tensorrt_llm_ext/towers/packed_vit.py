# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The transformer that all vision towers share: pre-norm blocks over packed tokens.

Shape letters: T tokens (rows before the merger), C width, H heads, D head size, F MLP width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ..ops.attention import PackedAttnMetadata

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": F.gelu,
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}


@dataclass(frozen=True)
class PackedViTConfig:
    """Knobs of the shared transformer.

    Attributes:
        depth: Blocks.
        width: C.
        num_heads: H; D = C / H.
        mlp_width: F.
        activation: Key of ``ACTIVATIONS``.
        norm_eps: Epsilon of the LayerNorms.
        rope_theta: Base of the two-axis rotary embedding.
    """

    depth: int
    width: int
    num_heads: int
    mlp_width: int
    activation: str = "gelu_pytorch_tanh"
    norm_eps: float = 1e-6
    rope_theta: float = 10000.0

    def __post_init__(self) -> None:
        if self.width % self.num_heads or (self.width // self.num_heads) % 4:
            raise ValueError(
                f"width {self.width} with {self.num_heads} heads gives head size "
                f"{self.width / self.num_heads:g}; two-axis rope needs a multiple of 4"
            )
        if self.activation not in ACTIVATIONS:
            raise ValueError(
                f"activation {self.activation!r} is not supported; allowed: {sorted(ACTIVATIONS)}"
            )

    @property
    def head_dim(self) -> int:
        """D."""
        return self.width // self.num_heads


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding over the whole head, first half against second half.

    Args:
        x: [T, ..., H, D], any float dtype; rotated in fp32.
        cos: fp32 [T, D / 2].
        sin: fp32 [T, D / 2].

    Returns:
        Rotated tensor, shape and dtype of x.
    """
    shape = (cos.shape[0], *[1] * (x.dim() - 2), cos.shape[1])
    cos, sin = cos.view(shape), sin.view(shape)
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


class PackedSelfAttention(nn.Module):
    """Attention within segments, fused qkv projection with bias."""

    def __init__(self, config: PackedViTConfig) -> None:
        """Makes the projections."""
        super().__init__()
        self.heads = (config.num_heads, config.head_dim)
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.proj = nn.Linear(config.width, config.width)

    def forward(
        self,
        x: torch.Tensor,
        rope: tuple[torch.Tensor, torch.Tensor],
        metadata: PackedAttnMetadata,
        prepared: torch.Tensor | None,
    ) -> torch.Tensor:
        """Attends.

        Args:
            x: [T, C], dtype of the weights.
            rope: cos and sin, fp32 [T, D / 2] each.
            metadata: Layout of the batch.
            prepared: What the attention prepared for this layout, bool [T, T] or None.

        Returns:
            [T, C], dtype of x.
        """
        qkv = self.qkv(x).view(-1, 3, *self.heads)  # [T, 3, H, D]
        q, k = rotate(qkv[:, :2], *rope).unbind(1)  # [T, H, D] each
        attended = metadata.attention(q, k, qkv[:, 2], metadata, prepared)
        return self.proj(attended.reshape(x.shape))


class PackedMLP(nn.Module):
    """Two linear layers around an activation."""

    def __init__(self, config: PackedViTConfig) -> None:
        """Makes the layers."""
        super().__init__()
        self.linear_fc1 = nn.Linear(config.width, config.mlp_width)
        self.linear_fc2 = nn.Linear(config.mlp_width, config.width)
        self.act = ACTIVATIONS[config.activation]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, C] -> [T, C], dtype of the weights."""
        return self.linear_fc2(self.act(self.linear_fc1(x)))


class PackedBlock(nn.Module):
    """Pre-norm block."""

    def __init__(self, config: PackedViTConfig) -> None:
        """Makes the block."""
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.norm2 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.attn = PackedSelfAttention(config)
        self.mlp = PackedMLP(config)

    def forward(
        self,
        x: torch.Tensor,
        rope: tuple[torch.Tensor, torch.Tensor],
        metadata: PackedAttnMetadata,
        prepared: torch.Tensor | None,
    ) -> torch.Tensor:
        """Arguments as in ``PackedSelfAttention.forward``; x [T, C], dtype of the weights."""
        x = x + self.attn(self.norm1(x), rope, metadata, prepared)
        return x + self.mlp(self.norm2(x))


class AxialRope(nn.Module):
    """Two-axis rotary tables from (row, column) positions.

    Half of the frequencies turn with the row, half with the column: angle j of axis a is
    position_a * theta^(-2j / (D / 2)), j < D / 4. The frequencies stay fp32 whatever the module is
    cast to: in bf16 the angles of a 64x64 grid would be off by up to 1e-2.
    """

    def __init__(self, config: PackedViTConfig) -> None:
        """Computes the frequencies, fp32 [D / 4], on the host."""
        super().__init__()
        spatial = config.head_dim // 2
        exponent = torch.arange(0, spatial, 2, dtype=torch.float32, device="cpu") / spatial
        self._host_frequencies = 1.0 / (config.rope_theta**exponent)
        self._frequencies: dict[torch.device, torch.Tensor] = {}

    def _apply(self, fn: Any, recurse: bool = True) -> AxialRope:
        # Called by .to(): copy to the new device now, not inside a capture, and never cast.
        device = fn(torch.empty(0)).device
        if device.type != "meta":
            self._frequencies[device] = self._host_frequencies.to(device)
        return super()._apply(fn, recurse)

    def forward(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Computes the tables.

        Args:
            positions: int32 [T, 2]: row and column.

        Returns:
            cos and sin, fp32 [T, D / 2] each.
        """
        frequencies = self._frequencies.get(positions.device, self._host_frequencies)
        angles = (positions.float()[:, :, None] * frequencies).flatten(1)  # [T, D / 2]
        return angles.cos(), angles.sin()
