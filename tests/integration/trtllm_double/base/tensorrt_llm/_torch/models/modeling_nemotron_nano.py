# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``models/modeling_nemotron_nano.py``: RADIO inside Nemotron VL and Omni, no audio.

Graphs of the tower are captured inside ``load_weights`` (the exact call site upstream is inferred).
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from tensorrt_llm.inputs import MultimodalPlaceholderMetadata, register_input_processor
from tensorrt_llm.inputs.multimodal import MultimodalParams

from .modeling_auto import AutoModelForCausalLM
from .modeling_multimodal_mixin import MultimodalModelMixin
from .modeling_radio import RADIOVisionModel
from .modeling_text import _is_disagg
from .modeling_utils import register_auto_model
from .processors import TileInputProcessor


def _get_vision_encoder_cuda_graph_config(model_config: Any) -> Any:
    mm_config = model_config.multimodal_config
    if mm_config is None or mm_config.encoder_cuda_graph is None:
        return None
    unknown = set(mm_config.encoder_cuda_graph) - {"vision"}
    if unknown:
        raise ValueError(
            "Nemotron: unsupported multimodal encoder CUDA graph modalities "
            f"{sorted(unknown)}; only 'vision' is supported"
        )
    return mm_config.encoder_cuda_graph.get("vision")


def _language(config: Any) -> Any:
    """Its section; transformers from 5.24 on has a class of its own for it, with another name."""
    return config.llm_config if hasattr(config, "llm_config") else config.text_config


class SquaredReLU(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) ** 2


class NanoV2VLVisionEncoder(nn.Module):
    def __init__(self, model_config: Any) -> None:
        super().__init__()
        config = model_config.pretrained_config
        self.patch_size = config.vision_config.patch_size
        self.downsample_ratio = config.downsample_ratio
        self.llm_hidden_size = _language(config).hidden_size
        wide = config.vision_config.hidden_size * int(1 / self.downsample_ratio) ** 2
        self.mlp1 = nn.Sequential(
            nn.RMSNorm(wide, eps=1e-5),
            nn.Linear(wide, config.projector_hidden_size, bias=False),
            SquaredReLU(),
            nn.Linear(config.projector_hidden_size, self.llm_hidden_size, bias=False),
        )
        vision_model_config = copy.deepcopy(model_config)
        vision_model_config.pretrained_config = config.vision_config
        self.vision_model = RADIOVisionModel(
            vision_model_config,
            disable_quantization=True,
            encoder_cuda_graph_config=_get_vision_encoder_cuda_graph_config(model_config),
        )

    def load_weights(self, weights: dict[str, torch.Tensor]) -> None:
        self.mlp1.load_state_dict(
            {k[len("mlp1.") :]: v[:] for k, v in weights.items() if k.startswith("mlp1.")}
        )
        self.vision_model.load_weights(
            {
                k[len("vision_model.") :]: v
                for k, v in weights.items()
                if k.startswith("vision_model.")
            }
        )

    def pixel_shuffle(self, x: torch.Tensor, scale_factor: float = 0.5) -> torch.Tensor:
        n, w, h, c = x.size()
        x = x.view(n, w, int(h * scale_factor), int(c / scale_factor)).permute(0, 2, 1, 3)
        x = x.contiguous().view(
            n, int(h * scale_factor), int(w * scale_factor), int(c / scale_factor**2)
        )
        return x.permute(0, 2, 1, 3).contiguous()

    def extract_feature(self, pixel_values: torch.Tensor, num_frames: Any = None) -> torch.Tensor:
        rows = pixel_values.shape[2] // self.patch_size
        columns = pixel_values.shape[3] // self.patch_size
        embeds = self.vision_model(pixel_values)
        embeds = embeds.reshape(embeds.shape[0], rows, columns, -1)
        embeds = self.pixel_shuffle(embeds, scale_factor=self.downsample_ratio)
        return self.mlp1(embeds.reshape(embeds.shape[0], -1, embeds.shape[-1]))

    def extract_feature_dynamic(
        self, pixel_values_flat: torch.Tensor, image_sizes: list[tuple[int, int]]
    ) -> torch.Tensor:
        embeds = self.vision_model(pixel_values_flat, image_sizes=image_sizes)
        sizes = [(h // self.patch_size, w // self.patch_size) for h, w in image_sizes]
        out = []
        for (rows, columns), piece in zip(
            sizes, torch.split(embeds, [h * w for h, w in sizes], dim=1), strict=True
        ):
            piece = piece.reshape(1, rows, columns, -1)
            piece = self.pixel_shuffle(piece, scale_factor=self.downsample_ratio)
            out.append(piece.reshape(1, -1, piece.shape[-1]))
        return self.mlp1(torch.cat(out, dim=1))

    @torch.inference_mode()
    def forward(self, multimodal_params: list[MultimodalParams]) -> tuple[list[torch.Tensor], Any]:
        data = [p.multimodal_data[p.multimodal_data["modality_type"]] for p in multimodal_params]
        out = []
        for one in data:  # upstream batches requests of one kind
            if "image_sizes" in one:
                embeds = self.extract_feature_dynamic(
                    torch.cat(list(one["pixel_values"])), one["image_sizes"]
                )
            else:
                embeds = self.extract_feature(one["pixel_values"])
            out.append(embeds.reshape(-1, self.llm_hidden_size))
        return out, None


class NanoV2VLInputProcessor(TileInputProcessor):
    pass


@register_auto_model("NemotronH_Nano_Omni_Reasoning_V3")
@register_auto_model("NemotronH_Omni_Reasoning_V3")
@register_auto_model("NemotronH_Nano_VL_V2")
@register_input_processor(
    NanoV2VLInputProcessor,
    model_type="NemotronH_Nano_VL_V2",
    placeholder_metadata=MultimodalPlaceholderMetadata(),
)
class NemotronH_Nano_VL_V2(nn.Module, MultimodalModelMixin):  # noqa: N801
    def __init__(self, model_config: Any) -> None:
        super().__init__()
        config = model_config.pretrained_config
        self.model_config = model_config
        if not _is_disagg():
            self.vision_encoder = NanoV2VLVisionEncoder(model_config).eval()
        llm_model_config = copy.deepcopy(model_config)
        llm_model_config.pretrained_config = _language(config)
        llm_model_config.pretrained_config.architectures = ["NemotronHForCausalLM"]
        self.llm = AutoModelForCausalLM.from_config(llm_model_config)
        self.post_config()

    def post_config(self) -> None:
        self.config = self.llm.config
        self.model_config.pretrained_config = self.llm.config

    @property
    def text_embedding_layer(self) -> nn.Module:
        return self.llm.model.embed_tokens

    def infer_max_seq_len(self) -> int:
        return self.llm.infer_max_seq_len()

    def load_weights(self, weights: dict[str, torch.Tensor]) -> None:
        self.vision_encoder.load_weights(weights)
        self.vision_encoder.vision_model.enable_blocks_cuda_graph()
        prefix = "language_model."
        self.llm.load_weights(
            {k[len(prefix) :]: v for k, v in weights.items() if k.startswith(prefix)}
        )

    def encode_multimodal_inputs(
        self, multimodal_params: list[MultimodalParams], **encoder_kwargs: Any
    ) -> torch.Tensor:
        embeds, _ = self.vision_encoder(list(multimodal_params))
        return torch.cat(embeds)
