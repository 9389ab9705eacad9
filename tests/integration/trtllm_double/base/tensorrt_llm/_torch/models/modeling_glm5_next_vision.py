# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``models/modeling_glm5_next_vision.py``: GLM-5.3's tower and the model around it.

Graphs of the tower are captured inside ``load_weights``, before the engine sets metadata up.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers.models.glm5_next.modeling_glm5_next import Glm5NextVisionModel as _Tower

from tensorrt_llm import _double
from tensorrt_llm.inputs import MultimodalPlaceholderMetadata, register_input_processor
from tensorrt_llm.inputs.multimodal import MultimodalParams

from ..attention.backends.interface import AttentionMetadata
from ..attention.backends.trtllm import TrtllmAttention
from ..model_config import QuantConfig
from .modeling_auto import AutoModelForCausalLM
from .modeling_multimodal_encoder import MultimodalEncoderMixin
from .modeling_multimodal_mixin import (
    EncoderGroup,
    MultimodalModelMixin,
    encode_multimodal_by_groups,
)
from .modeling_qwen2vl import _prepare_qwen_vl_vision_attn_metadata
from .modeling_text import _is_mm_disagg
from .modeling_utils import filter_weights, register_auto_model, register_vision_encoder
from .multimodal_encoder_graph import (
    EncoderGraphKey,
    EncoderGraphTensorSpec,
    EncoderMetadataProvider,
    MultimodalEncoderGraphRunner,
)
from .processors import GridInputProcessor

_VISION_WEIGHT_PREFIX = "model.visual"


def _image_encoder_cuda_graph_config(model_config: Any) -> Any:
    mm_config = model_config.multimodal_config
    if mm_config is None or mm_config.encoder_cuda_graph is None:
        return None
    unknown = set(mm_config.encoder_cuda_graph) - {"image"}
    if unknown:
        raise ValueError(
            "glm5_next: unsupported multimodal encoder CUDA graph modalities "
            f"{sorted(unknown)}; only 'image' is supported"
        )
    return mm_config.encoder_cuda_graph.get("image")


class Glm5NextVisionModel(nn.Module, MultimodalEncoderMixin):
    def __init__(self, model_config: Any) -> None:
        super().__init__()
        if model_config.attn_backend.upper() != "TRTLLM":
            raise ValueError(
                f"{type(self).__name__}: the glm5_next vision tower supports only the TRTLLM "
                f"attention backend, got attn_backend={model_config.attn_backend!r}."
            )
        self.model_config = model_config
        self.config = model_config.pretrained_config.vision_config
        self.spatial_merge_unit = self.config.spatial_merge_size**2
        self.tower = _Tower(self.config)
        self.metadata_cls = TrtllmAttention.Metadata
        self.attn_metadata: AttentionMetadata | None = None
        self._fixed_max_seq_len = model_config.max_num_tokens
        self._encoder_cuda_graph_config = _image_encoder_cuda_graph_config(model_config)
        self._blocks_graph_runner: MultimodalEncoderGraphRunner | None = None

    @property
    def device(self) -> torch.device:
        return self.tower.patch_embed.proj.weight.device

    def enable_blocks_cuda_graph(
        self, config: Any = None, *, device: torch.device | None = None
    ) -> None:
        config = config if config is not None else self._encoder_cuda_graph_config
        if config is None or self._blocks_graph_runner is not None:
            return
        spec = EncoderGraphTensorSpec(shape=(self.config.hidden_size,), dtype=torch.float32)
        runner = MultimodalEncoderGraphRunner(
            encoder_fn=lambda inputs, metadata: {"x": inputs["x"].clone()},
            metadata_provider=_Glm5NextVisionGraphMetadataProvider(self),
            input_specs={"x": spec},
            output_specs={"x": 0},
            config=config,
        )
        runner.capture_all(device if device is not None else self.device)
        self._blocks_graph_runner = runner

    def setup_attn_metadata(
        self, max_num_tokens: int, attention_metadata_capacity: dict[str, int] | None = None
    ) -> None:
        super().setup_attn_metadata(max_num_tokens, attention_metadata_capacity)
        self.set_attn_max_seq_len(max_num_tokens)

    def set_attn_max_seq_len(self, max_seq_len: int) -> None:
        if max_seq_len <= 0:
            raise ValueError(f"GLM vision attention max_seq_len must be positive: {max_seq_len}")
        self._fixed_max_seq_len = max_seq_len

    def get_encoder_attention_metadata_capacity(self, max_num_tokens: int) -> dict[str, int]:
        return {"attention": max(1, max_num_tokens // self.spatial_merge_unit)}

    @torch.inference_mode()
    def forward(self, pixel_values: torch.Tensor, grid_thw: torch.Tensor) -> torch.Tensor:
        lengths = [h * w for t, h, w in grid_thw.tolist() for _ in range(t)]
        if self._blocks_graph_runner is not None:
            rows = torch.zeros(sum(lengths), self.config.hidden_size, device=self.device)
            self._blocks_graph_runner.maybe_run(seq_lengths=lengths, inputs={"x": rows})
        self.attn_metadata = _prepare_qwen_vl_vision_attn_metadata(
            lengths, self.attn_metadata, max_seq_len=self._fixed_max_seq_len
        )
        _double.record("upstream_eager", tower=type(self).__name__, tokens=sum(lengths))
        return self.tower(pixel_values.to(self.device), grid_thw=grid_thw).pooler_output


class _Glm5NextVisionGraphMetadataProvider(EncoderMetadataProvider):
    graph_critical_attrs: Sequence[str] = ("_seq_lens_cuda", "cu_q_seqlens")

    def __init__(self, vit: Glm5NextVisionModel) -> None:
        self._vit = vit

    def build(self, key: EncoderGraphKey) -> AttentionMetadata:
        metadata = self._vit.metadata_cls(
            max_num_requests=key.num_contexts,
            max_num_tokens=key.total_tokens,
            kv_cache_manager=None,
        )
        metadata.is_cuda_graph = True
        metadata.cu_q_seqlens = torch.zeros(
            key.num_contexts + 1, dtype=torch.int32, device=self._vit.device
        )
        metadata.cu_kv_seqlens = metadata.cu_q_seqlens
        return metadata

    def refresh_in_place(self, metadata: Any, padded_seq_lengths: Sequence[int]) -> None:
        _prepare_qwen_vl_vision_attn_metadata(
            list(padded_seq_lengths), metadata, max_seq_len=self._vit._fixed_max_seq_len
        )


class Glm5NextVisionModelBase(nn.Module):
    def __init__(self, model_config: Any, vlm_base_model: type[nn.Module] | None = None) -> None:
        super().__init__()
        self.model_config = model_config
        self.model_dtype = model_config.torch_dtype
        self.model_config.quant_config = QuantConfig()
        was_frozen = self.model_config._frozen
        self.model_config._frozen = False
        self.model_config.allreduce_strategy = "NCCL"
        self.model_config._frozen = was_frozen
        self.visual = MultimodalModelMixin._cast_multimodal_encoder_dtype(
            (vlm_base_model or Glm5NextVisionModel)(self.model_config), self.model_dtype
        )

    def load_weights(
        self, weights: dict[str, torch.Tensor], allow_partial_loading: bool = False
    ) -> None:
        found = {k: v[:] for k, v in filter_weights(_VISION_WEIGHT_PREFIX, weights).items()}
        self.visual.tower.load_state_dict(found, strict=not allow_partial_loading)
        _double.record("upstream_tower_loaded", tower=type(self.visual).__name__)

    def enable_blocks_cuda_graph(self, *, device: torch.device | None = None) -> None:
        self.visual.enable_blocks_cuda_graph(device=device)

    @torch.inference_mode()
    def encode_batched(self, pixel_values: torch.Tensor, grid_thw: torch.Tensor) -> torch.Tensor:
        return self.visual(pixel_values.to(self.model_dtype), grid_thw=grid_thw)

    @property
    def mm_encoder_groups(self) -> tuple[EncoderGroup, ...]:
        return (
            EncoderGroup(
                modalities=("image", "video"),
                encoder_fn=self.encode_batched,
                build_batched_input=_glm5_next_build_batched_input,
            ),
        )

    def forward(self, multimodal_params: list[MultimodalParams]) -> list[torch.Tensor]:
        return [encode_multimodal_by_groups(self.mm_encoder_groups, multimodal_params)]


def _flatten_video_grid_thw(video_grid_thw: torch.Tensor) -> torch.Tensor:
    sides = torch.repeat_interleave(video_grid_thw[:, 1:], video_grid_thw[:, 0], dim=0)
    return torch.cat([sides.new_ones(sides.shape[0], 1), sides], dim=1)


def _glm5_next_build_batched_input(multimodal_params: list[MultimodalParams]) -> dict[str, Any]:
    pixels, grids = [], []
    for param in multimodal_params:
        image, video = param.multimodal_data.get("image"), param.multimodal_data.get("video")
        if image is not None:
            pixels.append(image["pixel_values"])
            grids.append(image["image_grid_thw"])
        if video is not None:
            pixels.append(video["pixel_values_videos"])
            grids.append(_flatten_video_grid_thw(video["video_grid_thw"]))
    return {"pixel_values": torch.cat(pixels), "grid_thw": torch.cat(grids)}


class Glm5NextInputProcessor(GridInputProcessor):
    pass


@register_vision_encoder(Glm5NextVisionModelBase, vlm_base_model=Glm5NextVisionModel)
@register_auto_model("Glm5NextForConditionalGeneration")
@register_input_processor(
    Glm5NextInputProcessor,
    model_type="glm5_next",
    placeholder_metadata=MultimodalPlaceholderMetadata(),
)
class Glm5NextVLM(nn.Module, MultimodalModelMixin):
    def __init__(self, model_config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        config = model_config.pretrained_config
        self.original_arch = config.architectures[0]
        self.model_config = model_config
        llm_model_config = copy.deepcopy(model_config)
        llm_model_config.extra_attrs = model_config.extra_attrs
        llm_model_config.pretrained_config = config.text_config
        llm_model_config.pretrained_config.architectures = ["Glm5NextForCausalLM"]
        self.llm = AutoModelForCausalLM.from_config(llm_model_config)
        self.mm_encoder = None
        if not (_is_mm_disagg() or model_config.disable_mm_encoder):
            self.mm_encoder = Glm5NextVisionModelBase(copy.deepcopy(model_config)).eval()
            self.mm_encoder_groups = self.mm_encoder.mm_encoder_groups
        ids = [int(config.image_token_id), int(config.video_token_id)]
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
        return self.text_embedding_layer.embedding_dim

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
        embeds = self.mm_encoder.forward(list(multimodal_params), **encoder_kwargs)
        if len(embeds) != 1:
            raise ValueError("glm5_next multimodal encoder must return one packed tensor")
        return embeds[0]

    def load_weights(self, weights: dict[str, torch.Tensor], **_ignored: Any) -> None:
        if _ignored.pop("weight_mapper", None) is not None:
            raise ValueError("glm5_next: a checkpoint-format weight_mapper is not supported")
        if self.mm_encoder is not None:
            if not any(key.startswith(_VISION_WEIGHT_PREFIX) for key in weights):
                raise ValueError(f"the checkpoint holds no '{_VISION_WEIGHT_PREFIX}.*' weights")
            self.mm_encoder.load_weights(weights)
            self.mm_encoder.enable_blocks_cuda_graph()
        self.llm.load_weights(weights)
