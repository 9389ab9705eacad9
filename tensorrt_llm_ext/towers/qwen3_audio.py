# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The audio tower of Qwen3-Omni and Qwen3-ASR, convolutions included in the captured region.

Maths and checkpoint keys follow the published checkpoints; transformers'
``Qwen3OmniMoeAudioEncoder`` and ``Qwen3ASREncoder`` are the oracles of the tests. Shape letters: N
chunks, T tokens (13 a chunk), C width, O output width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import torch
from pydantic import BaseModel, ConfigDict, PositiveInt
from torch import nn

from ..graphs.adapter import Tensors
from ..graphs.layout import EncoderItem
from ..ops.activation import activate_
from ..ops.convolution import convolve, convolve_plane, convolve_to_columns
from ..ops.kernels import has_kernels
from ..ops.norm import apply_norm
from ..ops.packed_metadata import PackedAttnMetadata
from .audio_adapter import ChunkedAudioIOAdapter, ChunkGeometry, halved
from .checkpoint import DiskTensors, disk_tensors_of, parse_section
from .items import check_float_tensor, check_keys
from .mixin import MultimodalEncoderMixin
from .output import ItemOutput
from .packed_blocks import PackedBlocks
from .packed_vit import Fp32Constant, PackedViTConfig
from .registry import register_tower

_KEYS = frozenset({"input_features"})
_CONV_SLICE = 16  # chunks; the first convolution's output takes 3 MB a chunk in bf16


class Qwen3AudioConfig(BaseModel):
    """``audio_config`` of a checkpoint's config.json; keys without use here are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    d_model: PositiveInt
    encoder_layers: PositiveInt
    encoder_attention_heads: PositiveInt
    encoder_ffn_dim: PositiveInt
    output_dim: PositiveInt
    num_mel_bins: PositiveInt = 128
    downsample_hidden_size: PositiveInt = 480
    n_window: PositiveInt = 50
    n_window_infer: PositiveInt = 800
    activation_function: str = "gelu"

    def geometry(self, *, mask_short_clips: bool) -> ChunkGeometry:
        """Chunks of 2 * n_window frames, windows of n_window_infer frames."""
        return ChunkGeometry(
            self.num_mel_bins,
            2 * self.n_window,
            max(1, self.n_window_infer // (2 * self.n_window)),
            mask_short_clips,
        )


class Qwen3AudioTower(MultimodalEncoderMixin, nn.Module):
    """Mel frames to features.

    An item is ``{"input_features": float [mel, frames]}`` with any positive number of frames; its
    output has ``features`` [tokens, O]. A clip comes out as it would alone, whatever its batch
    mates.

    Attributes:
        mask_short_clips: See ``ChunkGeometry``.
        disk_renames: What else is called otherwise on disk, see ``checkpoint.disk_tensors_of``.
    """

    encoder_cuda_graph_modality = "audio"
    mask_short_clips = True
    disk_renames: Mapping[str, str] = {}

    def __init__(self, config: Qwen3AudioConfig) -> None:
        """Makes the modules; weights come from ``load_tower``."""
        super().__init__()
        self.config = config
        self.geometry = config.geometry(mask_short_clips=self.mask_short_clips)
        width, channels = config.d_model, config.downsample_hidden_size
        self.conv2d1 = nn.Conv2d(1, channels, 3, 2, padding=1)
        self.conv2d2 = nn.Conv2d(channels, channels, 3, 2, padding=1)
        self.conv2d3 = nn.Conv2d(channels, channels, 3, 2, padding=1)
        self.conv_out = nn.Linear(channels * halved(config.num_mel_bins, 3), width, bias=False)
        self.positions = Fp32Constant(sinusoids(self.geometry.chunk_tokens, width))
        vit = PackedViTConfig(
            depth=config.encoder_layers,
            width=width,
            num_heads=config.encoder_attention_heads,
            mlp_width=config.encoder_ffn_dim,
            activation=config.activation_function,
            norm_eps=1e-5,
            rope_theta=None,
            clamp_fp16=True,
        )
        self.blocks = PackedBlocks(vit)
        self.ln_post = nn.LayerNorm(width)
        self.proj1 = nn.Linear(width, width)
        self.proj2 = nn.Linear(width, config.output_dim)

    @property
    def out_hidden_size(self) -> int:
        """O: width of the output."""
        return self.config.output_dim

    def disk_tensors(self) -> DiskTensors:
        """See the mixin; query, key and value are apart on disk."""
        layer = r"^blocks\.(\d+)\."
        return disk_tensors_of(
            self,
            {
                layer + r"attn\.qkv\.": tuple(rf"layers.\1.self_attn.{x}_proj." for x in "qkv"),
                layer + r"attn\.proj\.": r"layers.\1.self_attn.out_proj.",
                layer + r"norm1\.": r"layers.\1.self_attn_layer_norm.",
                layer + r"norm2\.": r"layers.\1.final_layer_norm.",
                layer + r"mlp\.linear_(fc\d)\.": r"layers.\1.\2.",
                **self.disk_renames,
            },
        )

    @torch.no_grad()
    def lay_out_weights(self, device: torch.device | None = None) -> None:
        """See the mixin; channels of convolutions come last in memory."""
        super().lay_out_weights(device)
        if has_kernels(device or self.device, self.dtype):
            for conv in (self.conv2d2, self.conv2d3):
                conv.weight.data = conv.weight.contiguous(memory_format=torch.channels_last)

    def make_io_adapter(self) -> ChunkedAudioIOAdapter:
        """See the mixin."""
        attention = self.attention(captured=True)
        return ChunkedAudioIOAdapter(
            self.geometry,
            out_width=self.config.output_dim,
            dtype=self.dtype,
            bakes_max_segment_len=attention.bakes_max_segment_len,
        )

    def pack_item(self, item: Mapping[str, Any]) -> EncoderItem:
        """See the class and the mixin."""
        check_keys(item, _KEYS)
        features, mel = item["input_features"], self.config.num_mel_bins
        check_float_tensor("input_features", features)
        if features.dim() != 2 or features.shape[0] != mel or features.shape[1] < 1:
            raise ValueError(
                f"input_features is {list(features.shape)}; expected [{mel}, frames] with at "
                "least one frame"
            )
        frames = features.shape[1]
        rows = self.geometry.segment_rows(frames)
        return EncoderItem(rows, {"input_features": features}, frames)

    def encoder_forward(
        self, inputs: Mapping[str, torch.Tensor], metadata: PackedAttnMetadata
    ) -> dict[str, torch.Tensor]:
        """Mel frames to features.

        Args:
            inputs: ``features`` [N, mel, frames], ``keep_half`` [N, frames / 2] and
                ``keep_quarter`` [N, frames / 4] (0 or 1), dtype of the weights.
            metadata: Layout of the windows.

        Returns:
            ``features`` [T, O], dtype of the weights.
        """
        names = ("features", "keep_half", "keep_quarter")
        slices = zip(*(inputs[name].split(_CONV_SLICE) for name in names), strict=True)
        x = torch.cat([self._convolve(*part) for part in slices])  # [N, 13, C]
        x += self.positions.on(x.device).to(x.dtype)
        x = x.flatten(0, 1)  # [T, C]
        (x,) = self.blocks.run(x, None, metadata, fused=self.fused_layers)
        x = self.proj1(apply_norm(self.ln_post, x))
        x = activate_(x, self.config.activation_function)
        return {"features": self.proj2(x)}

    def _convolve(
        self, features: torch.Tensor, keep_half: torch.Tensor, keep_quarter: torch.Tensor
    ) -> torch.Tensor:
        """Three strided convolutions and a projection: [N, mel, frames] -> [N, 13, C].

        The masks clear the columns that only padding has reached: their bias would leak into the
        last real column of the next convolution.
        """
        convs = (self.conv2d1, self.conv2d2, self.conv2d3)
        first, second, third = ((c.weight, cast(torch.Tensor, c.bias)) for c in convs)
        x = convolve_plane(features, *first, keep_half)
        x = convolve(x, *second, keep_quarter)
        x = convolve_to_columns(x, *third)  # [N, 13, channels, mel / 8]
        return cast(torch.Tensor, self.conv_out(x.flatten(2)))

    def make_output(self, item: EncoderItem, tensors: Tensors) -> ItemOutput:
        """See the class."""
        num_tokens = self.geometry.num_tokens(cast(int, item.layout))
        return ItemOutput(features=tensors["features"][:num_tokens])


class Qwen3ASRAudioTower(Qwen3AudioTower):
    """The same tower in Qwen3-ASR, where every clip is filled up with silence to whole chunks.

    The projection is a module of its own on disk.
    """

    mask_short_clips = False
    disk_renames = {  # noqa: RUF012
        r"^(?!proj)": "audio_tower.",
        r"^proj(\d)\.": r"multi_modal_projector.linear_\1.",
    }
    disk_ignored = {r"language_model\..*": None}  # noqa: RUF012


def sinusoids(length: int, width: int) -> torch.Tensor:
    """Sine and cosine positions, timescales 1 to 10000 in geometric steps.

    Returns:
        fp32 [length, width], sines in the first half of the columns.
    """
    half = width // 2
    steps = torch.arange(half, dtype=torch.float32, device="cpu")
    timescales = torch.exp(-math.log(10000.0) / (half - 1) * steps)
    angles = torch.arange(length, dtype=torch.float32, device="cpu")[:, None] * timescales
    return torch.cat((angles.sin(), angles.cos()), dim=1)


@register_tower(
    "qwen3_omni_moe",
    "qwen3_omni_moe_thinker",
    modality="audio",
    prefixes=("thinker.audio_tower.", "audio_tower."),
)
def _qwen3_omni_audio(config: Mapping[str, Any]) -> Qwen3AudioTower:
    path = ("thinker_config",) * ("thinker_config" in config)
    return Qwen3AudioTower(parse_section(Qwen3AudioConfig, config, *path, "audio_config"))


@register_tower("qwen3_asr", modality="audio", prefixes=("model.", "thinker.audio_tower."))
def _qwen3_asr_audio(config: Mapping[str, Any]) -> Qwen3AudioTower:
    if "thinker_config" in config:  # as published first: Qwen3-Omni's tower under its names
        return Qwen3AudioTower(
            parse_section(Qwen3AudioConfig, config, "thinker_config", "audio_config")
        )
    return Qwen3ASRAudioTower(parse_section(Qwen3AudioConfig, config, "audio_config"))
