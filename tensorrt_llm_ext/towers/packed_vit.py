# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The transformer that all vision towers share: pre-norm blocks over packed tokens.

Shape letters: T tokens (rows before the merger), C width, H heads, D head size, F MLP width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from ..ops.activation import ACTIVATIONS, activate_, gate_
from ..ops.kernels import has_kernels
from ..ops.packed_metadata import PackedAttnMetadata
from ..ops.rope import AxialAngles, rotate

_ALIGNED = 128  # columns


def part_of(module: nn.Module, name: str) -> Any:
    """What ``getattr`` says, for parameters and submodules in a fifth of its time.

    A fused run looks up two dozen of them in every block, and holds none: they may be others the
    next time.

    Args:
        module: A module.
        name: Of its attribute.
    """
    found: Any = module._parameters.get(name)
    if found is None:
        found = module._modules.get(name)
    return getattr(module, name) if found is None else found


def address_of(tensor: torch.Tensor) -> int:
    """Where it is; 0 for a fake one, which is nowhere.

    Args:
        tensor: Of any shape [...] and dtype.
    """
    return 0 if isinstance(tensor, FakeTensor) else tensor.data_ptr()


def move_parameter(module: nn.Module, name: str, place: torch.Tensor) -> None:
    """Makes a parameter a view of memory that is there; one on device meta is made anew.

    Args:
        module: A module.
        name: Of its parameter.
        place: Shape [...] and dtype of the parameter; gets its values, if it has any.
    """
    parameter = getattr(module, name)
    if parameter.is_meta:
        setattr(module, name, nn.Parameter(place, parameter.requires_grad))
    else:
        place.copy_(parameter)
        parameter.data = place


@dataclass(frozen=True)
class PackedViTConfig:
    """Knobs of the shared transformer.

    Attributes:
        depth: Blocks.
        width: C.
        num_heads: H; D = C / H.
        mlp_width: F.
        activation: Key of ``ACTIVATIONS``.
        norm: ``layer`` (with bias) or ``rms``.
        norm_eps: Epsilon of the norms.
        attention_bias: Biases of the qkv and output projections.
        qk_norm: RMS norm of every head's query and key, before rope.
        gated_mlp: activation(gate) * up instead of activation(up).
        mlp_bias: Biases of the MLP.
        gate_limit: Gated MLP: gate is clamped from above and up from both sides to this.
        rope_theta: Base of the two-axis rotary embedding; None for none.
        clamp_fp16: In fp16, what a block gives is clamped to 1000 below the largest number.
    """

    depth: int
    width: int
    num_heads: int
    mlp_width: int
    activation: str = "gelu_pytorch_tanh"
    norm: Literal["layer", "rms"] = "layer"
    norm_eps: float = 1e-6
    attention_bias: bool = True
    qk_norm: bool = False
    gated_mlp: bool = False
    mlp_bias: bool = True
    gate_limit: float | None = None
    rope_theta: float | None = 10000.0
    clamp_fp16: bool = False

    def __post_init__(self) -> None:
        if self.width % self.num_heads or (self.rope_theta and self.head_dim % 4):
            raise ValueError(
                f"width {self.width} with {self.num_heads} heads gives head size "
                f"{self.width / self.num_heads:g}; it has to be whole, and a multiple of 4 for "
                "two-axis rope"
            )
        if self.activation not in ACTIVATIONS:
            raise ValueError(
                f"activation {self.activation!r} is not supported; allowed: {sorted(ACTIVATIONS)}"
            )

    @property
    def head_dim(self) -> int:
        """D."""
        return self.width // self.num_heads

    def make_norm(self) -> nn.LayerNorm | nn.RMSNorm:
        """A norm over C."""
        if self.norm == "rms":
            return nn.RMSNorm(self.width, eps=self.norm_eps)
        return nn.LayerNorm(self.width, eps=self.norm_eps)


class PackedSelfAttention(nn.Module):
    """Attention within segments, fused qkv projection."""

    def __init__(self, config: PackedViTConfig) -> None:
        """Makes the projections."""
        super().__init__()
        self.heads = (config.num_heads, config.head_dim)
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=config.attention_bias)
        self.proj = nn.Linear(config.width, config.width, bias=config.attention_bias)
        self.q_norm: nn.Module | None = None
        self.k_norm: nn.Module | None = None
        if config.qk_norm:
            self.q_norm = nn.RMSNorm(config.head_dim, eps=config.norm_eps)
            self.k_norm = nn.RMSNorm(config.head_dim, eps=config.norm_eps)

    def forward(
        self,
        x: torch.Tensor,
        rope: tuple[torch.Tensor, torch.Tensor] | None,
        metadata: PackedAttnMetadata,
        prepared: torch.Tensor | None,
    ) -> torch.Tensor:
        """Attends.

        Args:
            x: [T, C], dtype of the weights.
            rope: cos and sin, fp32 [T, D / 2] each, or None.
            metadata: Layout of the batch.
            prepared: What the attention prepared for this layout, bool [T, T] or None.

        Returns:
            [T, C], dtype of x.
        """
        qkv = self.qkv(x).view(-1, 3, *self.heads)  # [T, 3, H, D]
        qk, v = qkv[:, :2], qkv[:, 2]
        if self.q_norm is not None and self.k_norm is not None:
            qk = torch.stack((self.q_norm(qkv[:, 0]), self.k_norm(qkv[:, 1])), dim=1)
        if rope is not None:
            qk = rotate(qk, *rope)
        q, k = qk.unbind(1)  # [T, H, D] each
        attended = metadata.attention(q, k, v, metadata, prepared)
        return self.proj(attended.reshape(x.shape))


class MLPWeights(NamedTuple):
    """Weights of an MLP whose inner width F is filled up.

    Attributes:
        first: [F', C], any float dtype.
        bias: Of the first, [F'], any float dtype.
        second: [C, F'], any float dtype.
    """

    first: torch.Tensor
    bias: torch.Tensor
    second: torch.Tensor


class PackedMLP(nn.Module):
    """Two linear layers around an activation; gate and up are one layer, gate first."""

    def __init__(
        self,
        width: int,
        mlp_width: int,
        *,
        activation: str,
        gated: bool = False,
        bias: bool = True,
        gate_limit: float | None = None,
    ) -> None:
        """Makes the layers; arguments as in ``PackedViTConfig``."""
        super().__init__()
        self.linear_fc1 = nn.Linear(width, mlp_width * (2 if gated else 1), bias=bias)
        self.linear_fc2 = nn.Linear(mlp_width, width, bias=bias)
        self.activation = activation
        self.act = ACTIVATIONS[activation]
        self.gated = gated
        self.gate_limit = gate_limit
        self._filled_up: MLPWeights | None = None

    @property
    def room_needed(self) -> int:
        """Elements that ``lay_out_weights`` takes; 0 where F is aligned, or the weights are."""
        aligned = self.linear_fc1.out_features % _ALIGNED == 0
        if aligned or self.gated or self.linear_fc1.bias is None or self.filled_up() is not None:
            return 0
        return sum(map(math.prod, self._filled_shapes))

    @property
    def _filled_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of ``MLPWeights``."""
        first, second = self.linear_fc1, self.linear_fc2
        full = first.out_features + -first.out_features % _ALIGNED
        return (full, first.in_features), (full,), (second.out_features, full)

    @torch.no_grad()
    def lay_out_weights(self, room: torch.Tensor) -> None:
        """Moves the weights to where F has room to be aligned.

        The parameters stay what they are, as views. cuBLAS takes 4 to 7 % less for up to 1024 rows
        of 4352 columns than of 4304 (H200).

        Args:
            room: Zeros [R], R = ``room_needed``, dtype and device of the weights.
        """
        first, second = self.linear_fc1, self.linear_fc2
        width, shapes = first.out_features, self._filled_shapes
        parts = room.split([math.prod(shape) for shape in shapes])
        filled = MLPWeights(*(x.view(shape) for x, shape in zip(parts, shapes, strict=True)))
        for linear, name, place in (
            (first, "weight", filled.first[:width]),
            (first, "bias", filled.bias[:width]),
            (second, "weight", filled.second[:, :width]),
        ):
            move_parameter(linear, name, place)
        self._filled_up = filled

    def _apply(self, fn: Any, recurse: bool = True) -> PackedMLP:
        module = super()._apply(fn, recurse)
        if self.filled_up() is None:  # moved or cast: the memory they were in is nobody's
            self._filled_up = None
        return module

    def filled_up(self) -> MLPWeights | None:
        """The weights with an aligned F, zeros beyond; None where they have no such room.

        Returns:
            [F', C], [F'] and [C, F'], dtype of the weights, in the storage of the parameters.
        """
        found = self._filled_up
        if found is None:
            return None
        first, second = part_of(self, "linear_fc1"), part_of(self, "linear_fc2")
        same = (
            address_of(part_of(first, "weight")) == address_of(found.first)
            and address_of(part_of(first, "bias")) == address_of(found.bias)
            and address_of(part_of(second, "weight")) == address_of(found.second)
        )
        return found if same else None  # a parameter was rebound since

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transforms every token.

        Args:
            x: [T, C], dtype of the weights.

        Returns:
            [T, C], dtype of the weights.
        """
        hidden = self.linear_fc1(x)
        if has_kernels(x.device, x.dtype):  # in place
            kind = self.activation
            hidden = gate_(hidden, kind, self.gate_limit) if self.gated else activate_(hidden, kind)
            return self.linear_fc2(hidden)
        if not self.gated:
            return self.linear_fc2(self.act(hidden))
        gate, up = hidden.chunk(2, dim=-1)
        if self.gate_limit is not None:
            gate = gate.clamp(max=self.gate_limit)
            up = up.clamp(-self.gate_limit, self.gate_limit)
        return self.linear_fc2(self.act(gate) * up)


class PackedBlock(nn.Module):
    """Pre-norm block."""

    def __init__(self, config: PackedViTConfig) -> None:
        """Makes the block."""
        super().__init__()
        self.norm1 = config.make_norm()
        self.norm2 = config.make_norm()
        self.attn = PackedSelfAttention(config)
        self.mlp = PackedMLP(
            config.width,
            config.mlp_width,
            activation=config.activation,
            gated=config.gated_mlp,
            bias=config.mlp_bias,
            gate_limit=config.gate_limit,
        )

    def forward(
        self,
        x: torch.Tensor,
        rope: tuple[torch.Tensor, torch.Tensor] | None,
        metadata: PackedAttnMetadata,
        prepared: torch.Tensor | None,
    ) -> torch.Tensor:
        """Attends, then transforms every token.

        Args:
            x: [T, C], dtype of the weights.
            rope: cos and sin, fp32 [T, D / 2] each, or None.
            metadata: Layout of the batch.
            prepared: What the attention prepared for this layout, bool [T, T] or None.

        Returns:
            [T, C], dtype of the weights.
        """
        x = x + self.attn(self.norm1(x), rope, metadata, prepared)
        return x + self.mlp(self.norm2(x))


class Fp32Constant(nn.Module):
    """A computed table that follows its module to a device but is never cast nor saved."""

    def __init__(self, value: torch.Tensor) -> None:
        """Takes a table.

        Args:
            value: fp32 of any shape [...], made on the host.
        """
        super().__init__()
        self._host = value.detach()  # an nn.Buffer would be registered, and cast with the module
        self._copies: dict[torch.device, torch.Tensor] = {}

    def _apply(self, fn: Any, recurse: bool = True) -> Fp32Constant:
        # Called by .to(): copy to the new device now, not inside a capture.
        device = fn(torch.empty(0)).device
        if device.type != "meta" and device not in self._copies:  # graphs hold its address
            self._copies[device] = self._host.to(device)
        return super()._apply(fn, recurse)

    def on(self, device: torch.device) -> torch.Tensor:
        """The table on a device.

        Returns:
            fp32, shape [...] as given.
        """
        return self._copies.get(device, self._host)


class AxialRope(nn.Module):
    """Two-axis rotary embedding of (row, column) positions.

    Half of the frequencies turn with the row, half with the column: angle j of axis a is
    position_a * theta^(-2j / (D / 2)), j < D / 4. The frequencies stay fp32 whatever the module is
    cast to: in bf16 the angles of a 64x64 grid would be off by up to 1e-2.
    """

    def __init__(self, head_dim: int, theta: float) -> None:
        """Computes the frequencies, fp32 [D / 4], on the host."""
        super().__init__()
        spatial = head_dim // 2
        exponent = torch.arange(0, spatial, 2, dtype=torch.float32, device="cpu") / spatial
        self.frequencies = Fp32Constant(1.0 / (theta**exponent))

    def forward(self, positions: torch.Tensor) -> AxialAngles:
        """Takes the positions of a batch.

        Args:
            positions: int32 [T, 2]: row and column.

        Returns:
            Their angles, not computed yet.
        """
        return AxialAngles(positions, self.frequencies.on(positions.device))
