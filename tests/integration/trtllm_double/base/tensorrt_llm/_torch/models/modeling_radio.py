# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``models/modeling_radio.py`` (commit 047098b74c51): a small RADIO over the backends.

It attends through upstream's metadata, calls ``setup_attn_metadata`` in its constructor (before any
engine) and captures its block loop when asked.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from tensorrt_llm import _double

from ..attention.backends import utils as attention_utils
from ..attention.backends.interface import AttentionMetadata, PredefinedAttentionMask
from ..model_config import QuantConfig
from .modeling_multimodal_encoder import MultimodalEncoderMixin
from .multimodal_encoder_graph import (
    EncoderGraphKey,
    EncoderGraphTensorSpec,
    EncoderMetadataProvider,
    MultimodalEncoderGraphRunner,
)


class VITTIMMConfig(NamedTuple):
    embed_dim: int
    depth: int
    num_attention_heads: int
    intermediate_size: int
    img_size: int = 224


VIT_TIMM_CONFIG_BY_NAME: dict[str, VITTIMMConfig] = {
    "vit_huge_patch16_224": VITTIMMConfig(1280, 32, 16, 5120),
}


def calc_seq_lens(sizes: list[tuple[int, int]], patch_size: int) -> list[int]:
    return [(h // patch_size) * (w // patch_size) for h, w in sizes]


class ViTPatchGenerator(nn.Module):
    """Patches, positions and the tokens in front of them."""

    def __init__(self, config: Any, embed_dim: int) -> None:
        super().__init__()
        self.patch_size, self.embed_dim = config.patch_size, embed_dim
        self.num_cls_tokens, self.num_registers = config.num_cls_tokens, config.num_registers
        self.num_skip = self.num_cls_tokens + self.num_registers
        self.num_rows = self.num_cols = config.max_img_size // config.patch_size
        self.cpe_mode, self.temporal_patch_size = True, 1
        self.embedder = nn.Linear(3 * config.patch_size**2, embed_dim, bias=False)
        self.pos_embed = nn.Parameter(torch.empty(1, self.num_rows * self.num_cols, embed_dim))
        self.cls_token = nn.Module()
        self.cls_token.token = nn.Parameter(torch.empty(self.num_skip, embed_dim))

    def positions(self, rows: int, columns: int) -> torch.Tensor:
        grid = self.pos_embed.reshape(1, self.num_rows, self.num_cols, -1).permute(0, 3, 1, 2)
        side = max(rows, columns)
        grid = nn.functional.interpolate(
            grid.float(), size=(side, side), mode="bilinear", align_corners=False
        )[..., :rows, :columns]
        return grid.flatten(2).transpose(1, 2).to(self.pos_embed)

    def patches(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 3, H, W] -> [N, patches, 3 * patch * patch]."""
        size = self.patch_size
        n, _, height, width = x.shape
        rows, columns = height // size, width // size
        x = x.reshape(n, 3, rows, size, columns, size).permute(0, 2, 4, 1, 3, 5)
        return x.reshape(n, rows * columns, -1)

    def forward(
        self, x: torch.Tensor, image_sizes: list[tuple[int, int]] | None = None
    ) -> torch.Tensor:
        size, prefix = self.patch_size, self.cls_token.token
        if image_sizes is None:
            rows, columns = x.shape[-2] // size, x.shape[-1] // size
            x = self.embedder(self.patches(x).to(prefix)) + self.positions(rows, columns)
            return torch.cat([prefix.expand(x.shape[0], -1, -1), x], dim=1)
        pieces = torch.split(self.embedder(x.to(prefix)), calc_seq_lens(image_sizes, size), dim=1)
        out = []
        for (height, width), piece in zip(image_sizes, pieces, strict=True):
            out += [prefix[None], piece + self.positions(height // size, width // size)]
        return torch.cat(out, dim=1)


class Block(nn.Module):
    def __init__(self, width: int, wide: int, heads: int, backend: str, layer_idx: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, wide), nn.Linear(wide, width)
        self.attn = attention_utils.create_attention(backend, layer_idx, heads, width // heads)

    def forward(self, x: torch.Tensor, attn_metadata: AttentionMetadata) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        mixed = self.attn.forward(
            q, k, v, attn_metadata, attention_mask=PredefinedAttentionMask.FULL
        )
        x = x + self.proj(mixed)
        return x + self.fc2(nn.functional.gelu(self.fc1(self.norm2(x))))


class VisionTransformer(nn.Module, MultimodalEncoderMixin):
    def __init__(self, model_config: Any) -> None:
        super().__init__()
        self.model_config = model_config
        config = self.config = model_config.pretrained_config
        shape = VIT_TIMM_CONFIG_BY_NAME[config.args["model"]]
        self.embed_dim, self.patch_size = shape.embed_dim, config.patch_size
        self.temporal_patch_size = 1
        self.patch_generator = ViTPatchGenerator(config, self.embed_dim)
        self.num_cls_tokens = self.patch_generator.num_cls_tokens
        self.num_registers = self.patch_generator.num_registers
        backend = model_config.attn_backend
        self.blocks = nn.ModuleList(
            Block(self.embed_dim, shape.intermediate_size, shape.num_attention_heads, backend, i)
            for i in range(shape.depth)
        )
        self.norm = nn.Identity()
        self._fixed_max_seq_len = (
            self.patch_generator.num_rows * self.patch_generator.num_cols
            + self.patch_generator.num_skip
        )
        self.metadata_cls = attention_utils.get_attention_backend(backend).Metadata
        self._attn_backend = backend
        self.setup_attn_metadata(max_num_tokens=model_config.max_num_tokens)
        self._blocks_graph_runner: MultimodalEncoderGraphRunner | None = None

    def setup_attn_metadata(self, max_num_tokens: int) -> None:
        capacities = self.get_encoder_attention_metadata_capacity(max_num_tokens)
        kwargs: dict[str, Any] = {"kv_layout": "NHD"} if self._attn_backend == "FLASHINFER" else {}
        self.attn_metadata = self.metadata_cls(
            max_num_requests=capacities["attention"],
            max_num_tokens=max_num_tokens,
            kv_cache_manager=None,
            **kwargs,
        )

    def enable_blocks_cuda_graph(self, config: Any, *, device: torch.device | None = None) -> None:
        if self._blocks_graph_runner is not None:
            return
        dtype = self.patch_generator.embedder.weight.dtype
        spec = EncoderGraphTensorSpec(shape=(self.embed_dim,), dtype=dtype)
        runner = MultimodalEncoderGraphRunner(
            encoder_fn=self._encoder_graph_fn,
            metadata_provider=_VisionEncoderMetadataProvider(self),
            input_specs={"x": spec},
            output_specs={"x": 0},
            config=config,
        )
        runner.capture_all(device if device is not None else next(self.parameters()).device)
        self._blocks_graph_runner = runner

    def prepare_attn_metadata(
        self, batch_size: int, seq_lengths: list[int], attn_metadata: AttentionMetadata
    ) -> AttentionMetadata:
        attn_metadata.seq_lens = torch.tensor(seq_lengths, dtype=torch.int32)
        attn_metadata.num_contexts = batch_size
        attn_metadata.request_ids = list(range(1, batch_size + 1))
        attn_metadata.prompt_lens = seq_lengths
        attn_metadata.max_seq_len = self._fixed_max_seq_len
        attn_metadata.prepare()
        return attn_metadata

    def forward_features(
        self,
        x: torch.Tensor,
        image_sizes: list[tuple[int, int]] | None = None,
        num_frames: int | None = None,
    ) -> torch.Tensor:
        """[N, 3, H, W], or packed patches [1, T, 3 * p * p] and their pictures' sizes."""
        if num_frames is not None:
            raise NotImplementedError("the double's temporal patch size is 1")
        tokens = self.patch_generator(x, image_sizes)
        if image_sizes is None:
            lengths = [tokens.shape[1]] * tokens.shape[0]
        else:
            skip = self.patch_generator.num_skip
            lengths = [n + skip for n in calc_seq_lens(image_sizes, self.patch_size)]
        metadata = self.prepare_attn_metadata(len(lengths), lengths, self.attn_metadata)
        out = self._run_blocks(tokens.flatten(0, 1), metadata)
        return self.norm(out.reshape(tokens.shape))

    def _encoder_graph_fn(
        self, inputs: Mapping[str, torch.Tensor], md: AttentionMetadata
    ) -> dict[str, torch.Tensor]:
        return {"x": self._run_blocks_eager(inputs["x"], md)}

    def _run_blocks(self, x: torch.Tensor, attn_metadata: AttentionMetadata) -> torch.Tensor:
        if self._blocks_graph_runner is not None:
            output = self._blocks_graph_runner.maybe_run(
                seq_lengths=attn_metadata.seq_lens.tolist(), inputs={"x": x}
            )
            if output is not None:
                return output["x"]
        _double.record("upstream_eager", tower=type(self).__name__, tokens=x.shape[0])
        return self._run_blocks_eager(x, attn_metadata)

    def _run_blocks_eager(self, x: torch.Tensor, attn_metadata: AttentionMetadata) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, attn_metadata=attn_metadata)
        return x


class _VisionEncoderMetadataProvider(EncoderMetadataProvider):
    graph_critical_attrs: Sequence[str]

    def __init__(self, vit: VisionTransformer) -> None:
        self._vit = vit
        self.graph_critical_attrs = ("_seq_lens_cuda",)
        if vit.model_config.attn_backend == "FLASHINFER":
            self.graph_critical_attrs += (
                "workspace_buffer",
                "_ragged_qo_indptr_buf",
                "_ragged_kv_indptr_buf",
            )

    def build(self, key: EncoderGraphKey) -> AttentionMetadata:
        vit = self._vit
        kwargs = {"kv_layout": "NHD"} if vit.model_config.attn_backend == "FLASHINFER" else {}
        metadata = vit.metadata_cls(
            max_num_requests=max(vit.attn_metadata.max_num_requests, key.num_contexts),
            max_num_tokens=max(vit.attn_metadata.max_num_tokens, key.total_tokens),
            kv_cache_manager=None,
            **kwargs,
        )
        metadata.is_cuda_graph = True
        return metadata

    def refresh_in_place(self, metadata: Any, padded_seq_lengths: Sequence[int]) -> None:
        lengths = list(padded_seq_lengths)
        self._vit.prepare_attn_metadata(len(lengths), lengths, metadata)


class RADIOVisionModelBase(nn.Module):
    def __init__(self, model: VisionTransformer, input_conditioner: nn.Module) -> None:
        super().__init__()
        self.model, self.input_conditioner = model, input_conditioner

    def forward(
        self,
        x: torch.Tensor,
        feature_fmt: str = "NLC",
        image_sizes: list[tuple[int, int]] | None = None,
        num_frames: int | None = None,
    ) -> torch.Tensor:
        if image_sizes is None:
            x = self.input_conditioner(x)
        out = self.model.forward_features(x, image_sizes=image_sizes, num_frames=num_frames)
        skip = self.model.patch_generator.num_skip
        if image_sizes is None:
            return out[:, skip:]
        counts = calc_seq_lens(image_sizes, self.model.patch_size)
        pieces = torch.split(out, [n + skip for n in counts], dim=1)
        return torch.cat([piece[:, skip:] for piece in pieces], dim=1)


class RADIOVisionModel(nn.Module):
    def __init__(
        self,
        model_config: Any,
        disable_quantization: bool = True,
        vision_attn_backend: str | None = "FLASHINFER",
        encoder_cuda_graph_config: Any = None,
    ) -> None:
        super().__init__()
        self._encoder_cuda_graph_config = encoder_cuda_graph_config
        self.model_config = copy.deepcopy(model_config)
        if disable_quantization:
            self.model_config.quant_config = QuantConfig()
        self.model_config = dataclasses.replace(self.model_config, attn_backend=vision_attn_backend)
        self.config = model_config.pretrained_config
        self.radio_model = RADIOVisionModelBase(VisionTransformer(self.model_config), nn.Identity())

    def load_weights(self, weights: dict[str, torch.Tensor]) -> None:
        vit = self.radio_model.model
        prefix = "radio_model.model."
        found = {k[len(prefix) :]: v[:] for k, v in weights.items() if k.startswith(prefix)}
        renamed = {
            key.replace("attn.", "").replace("mlp.", ""): value
            for key, value in found.items()
            if "layer_scale" not in key
        }
        vit.load_state_dict(renamed, strict=True)
        _double.record("upstream_tower_loaded", tower=type(self).__name__)

    def enable_blocks_cuda_graph(self, *, device: torch.device | None = None) -> None:
        if self._encoder_cuda_graph_config is not None:
            self.radio_model.model.enable_blocks_cuda_graph(
                self._encoder_cuda_graph_config, device=device
            )

    def forward(
        self,
        x: torch.Tensor,
        image_sizes: list[tuple[int, int]] | None = None,
        num_frames: int | None = None,
    ) -> torch.Tensor:
        return self.radio_model.forward(x, image_sizes=image_sizes, num_frames=num_frames)
