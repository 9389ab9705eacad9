# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``models/modeling_qwen3vl.py``: Qwen3-VL as upstream composes it.

The arithmetic of the tower is transformers'; what is upstream's is where it sits, how weights come
to it, how it is called and what it returns.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

from tensorrt_llm import _double
from tensorrt_llm.inputs import MultimodalPlaceholderMetadata, register_input_processor
from tensorrt_llm.inputs.multimodal import MultimodalParams

from ..attention.backends.interface import AttentionMetadata
from ..attention.backends.utils import get_attention_backend
from ..model_config import QuantConfig
from .modeling_auto import AutoModelForCausalLM
from .modeling_multimodal_encoder import MultimodalEncoderMixin
from .modeling_multimodal_mixin import MultimodalModelMixin
from .modeling_qwen2vl import _prepare_qwen_vl_vision_attn_metadata
from .modeling_text import _is_mm_disagg
from .modeling_utils import filter_weights, register_auto_model, register_vision_encoder
from .processors import GridInputProcessor


class Qwen3VLInputProcessorBase(GridInputProcessor):
    pass


class Qwen3VisionModel(nn.Module, MultimodalEncoderMixin):
    def __init__(self, model_config: Any) -> None:
        super().__init__()
        self.model_config = model_config
        self.config = model_config.pretrained_config.vision_config
        self.spatial_merge_unit = self.config.spatial_merge_size**2
        self.tower = Qwen3VLVisionModel(self.config)
        self.metadata_cls = get_attention_backend(model_config.attn_backend).Metadata
        self.attn_metadata: AttentionMetadata | None = None
        self._fixed_max_seq_len = model_config.max_num_tokens
        self.register_buffer("_rope_position_ids_buffer", None, persistent=False)

    @property
    def device(self) -> torch.device:
        return self.tower.patch_embed.proj.weight.device

    def setup_attn_metadata(
        self, max_num_tokens: int, attention_metadata_capacity: dict[str, int] | None = None
    ) -> None:
        super().setup_attn_metadata(max_num_tokens, attention_metadata_capacity)
        self.set_attn_max_seq_len(max_num_tokens)
        self._rope_position_ids_buffer = torch.arange(
            max_num_tokens, dtype=torch.int32, device=self.device
        )

    def set_attn_max_seq_len(self, max_seq_len: int) -> None:
        if max_seq_len <= 0:
            raise ValueError(f"attention max_seq_len must be positive, got {max_seq_len}")
        self._fixed_max_seq_len = max_seq_len

    def get_encoder_attention_metadata_capacity(self, max_num_tokens: int) -> dict[str, int]:
        return {"attention": max(1, max_num_tokens // self.spatial_merge_unit)}

    def prepare_attn_metadata(
        self, seq_lens: list[int], attn_metadata: AttentionMetadata | None = None
    ) -> AttentionMetadata:
        if attn_metadata is None:
            raise RuntimeError("Vision encoder AttentionMetadata is not initialized.")
        return _prepare_qwen_vl_vision_attn_metadata(
            seq_lens, attn_metadata, max_seq_len=self._fixed_max_seq_len
        )

    @torch.inference_mode()
    def forward(
        self, pixel_values: torch.Tensor, grid_thw: torch.Tensor, **kwargs: Any
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        lengths = [h * w for t, h, w in grid_thw.tolist() for _ in range(t)]
        self.attn_metadata = self.prepare_attn_metadata(lengths, self.attn_metadata)
        _double.record("upstream_eager", tower=type(self).__name__, tokens=sum(lengths))
        out = self.tower(pixel_values, grid_thw=grid_thw)
        return out.pooler_output, list(out.deepstack_features)


class Qwen3VisionModelBase(nn.Module):
    def __init__(self, model_config: Any, model_class: type[nn.Module]) -> None:
        super().__init__()
        self.model_config = model_config
        self.model_dtype = model_config.torch_dtype
        self.model_config.quant_config = QuantConfig()
        self.visual = MultimodalModelMixin._cast_multimodal_encoder_dtype(
            (model_class or Qwen3VisionModel)(self.model_config), self.model_dtype
        )
        self.post_config()

    def post_config(self) -> None:
        self.config = self.model_config.pretrained_config.vision_config

    def load_weights(self, weights: dict[str, torch.Tensor]) -> None:
        found = {k: v[:] for k, v in filter_weights("model.visual", weights).items()}
        self.visual.tower.load_state_dict(found, strict=True)
        _double.record("upstream_tower_loaded", tower=type(self.visual).__name__)

    def _parse_and_batch_multimodal_data(
        self, multimodal_params: list[MultimodalParams]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        content: dict[str, list[torch.Tensor]] = {}
        extra: dict[str, list[torch.Tensor]] = {}
        for param in multimodal_params:
            for modality, pixels in (("image", "pixel_values"), ("video", "pixel_values_videos")):
                data = param.multimodal_data.get(modality)
                if data is not None:
                    content.setdefault(pixels, []).append(data[pixels])
                    extra.setdefault(f"{modality}_grid_thw", []).append(
                        data[f"{modality}_grid_thw"]
                    )
        join = torch.cat
        return {k: join(v) for k, v in content.items()}, {k: join(v) for k, v in extra.items()}

    @torch.inference_mode()
    def forward(self, multimodal_params: list[MultimodalParams]) -> list[torch.Tensor]:
        content, extra = self._parse_and_batch_multimodal_data(multimodal_params)
        if len(content) > 1:
            raise ValueError("Currently only support single modality per request")
        embeds = []
        for modality, pixels in (("image", "pixel_values"), ("video", "pixel_values_videos")):
            if pixels in content:
                rows, deepstack = self.visual(
                    content[pixels].to(self.model_dtype), grid_thw=extra[f"{modality}_grid_thw"]
                )
                embeds.append(torch.cat([rows, *deepstack], dim=1))
        return embeds


class Qwen3VLModelBase(nn.Module, MultimodalModelMixin):
    supports_encoder_cache = True
    supports_mm_encoder_item_scheduling = True

    def __init__(self, model_config: Any, *args: Any, **kwargs: Any) -> None:
        config = model_config.pretrained_config
        self.original_arch = config.architectures[0]
        super().__init__()
        self.model_config = model_config
        llm_arch = {
            "Qwen3VLForConditionalGeneration": "Qwen3ForCausalLM",
            "Qwen3VLMoeForConditionalGeneration": "Qwen3MoeForCausalLM",
        }.get(self.original_arch)
        if llm_arch is None:
            raise ValueError(f"Unsupported architecture: {self.original_arch}")
        llm_model_config = copy.deepcopy(model_config)
        llm_model_config.pretrained_config = config.text_config
        llm_model_config.extra_attrs = model_config.extra_attrs
        llm_model_config.pretrained_config.architectures = [llm_arch]
        self.llm = AutoModelForCausalLM.from_config(llm_model_config)
        self.mm_encoder = None
        if not (_is_mm_disagg() or model_config.disable_mm_encoder):
            self.mm_encoder = Qwen3VisionModelBase(
                copy.deepcopy(model_config), kwargs.get("vision_model_class")
            ).eval()
        self.deepstack_num_level = len(config.vision_config.deepstack_visual_indexes)
        ids = [config.image_token_id, config.video_token_id]
        self._mm_token_ids = torch.tensor(ids, dtype=torch.int32, device="cpu")
        self.post_config()

    def post_config(self) -> None:
        self.model_config.pretrained_config = self.llm.config
        self.config = self.model_config.pretrained_config

    @property
    def multimodal_token_ids(self) -> torch.Tensor:
        return self._mm_token_ids

    @property
    def multimodal_data_device_paths(self) -> list[str]:
        return ["image.pixel_values", "video.pixel_values_videos", "multimodal_embedding"]

    @property
    def text_embedding_layer(self) -> nn.Module:
        return self.llm.model.embed_tokens

    @property
    def embedding_dim(self) -> int:
        return self.text_embedding_layer.embedding_dim * (1 + self.deepstack_num_level)

    @property
    def embedding_dtype(self) -> torch.dtype:
        return self.text_embedding_layer.weight.dtype

    def infer_max_seq_len(self) -> int:
        return self.llm.infer_max_seq_len()

    @property
    def draft_config(self) -> Any:
        return self.llm.draft_config

    @property
    def draft_model(self) -> Any:
        return self.llm.draft_model

    def encode_multimodal_inputs(
        self, multimodal_params: list[MultimodalParams], **encoder_kwargs: Any
    ) -> torch.Tensor:
        if self.mm_encoder is None:
            raise ValueError("Raw multimodal inputs require a local multimodal encoder.")
        embeds = self.mm_encoder.forward(list(multimodal_params))
        return torch.cat(embeds)


@register_vision_encoder(Qwen3VisionModelBase, vlm_base_model=Qwen3VisionModel)
@register_auto_model("Qwen3VLForConditionalGeneration")
@register_input_processor(
    Qwen3VLInputProcessorBase,
    model_type="qwen3_vl",
    placeholder_metadata=MultimodalPlaceholderMetadata(),
)
class Qwen3VLModel(Qwen3VLModelBase):
    def __init__(self, model_config: Any, *args: Any, **kwargs: Any) -> None:
        kwargs["vision_model_class"] = Qwen3VisionModel
        super().__init__(model_config, *args, **kwargs)

    def load_weights(self, weights: dict[str, torch.Tensor], weight_mapper: Any) -> None:
        if self.mm_encoder is not None:
            self.mm_encoder.load_weights(weights)
        weight_mapper.init_model_and_config(self.llm, self.model_config)
        self.llm.load_weights(filter_weights("model.language_model", weights), weight_mapper)
