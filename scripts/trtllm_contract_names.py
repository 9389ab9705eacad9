# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The names of TensorRT-LLM that the binding relies on, for ``trtllm_contract.py``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Name(NamedTuple):
    """A name we rely on.

    Attributes:
        use: What for.
        modules: Where it is, the newest place first, below ``tensorrt_llm``.
        path: ``function``, ``Class``, ``Class.method`` or a value.
        kind: ``function``, ``class`` (there or not), ``fields`` or ``value``.
    """

    use: str
    modules: tuple[str, ...]
    path: str
    kind: str = "function"


def _names(use: str, modules: str, kind: str, *paths: str) -> Iterator[Name]:
    for path in paths:
        yield Name(use, tuple(modules.split("|")), path, kind)


MODELS = "_torch.models"
ENCODER = f"{MODELS}.modeling_multimodal_encoder"
ATTENTION = "_torch.attention.backends.interface|_torch.attention_backend.interface"
TRTLLM = "_torch.attention.backends.trtllm|_torch.attention_backend.trtllm"
GRAPH = f"{MODELS}.multimodal_encoder_graph"
ENGINE = "_torch.pyexecutor.model_engine"
MULTIMODAL = "_torch.pyexecutor.engine.multimodal"

NAMES: tuple[Name, ...] = (
    *_names(
        "hook",
        ENGINE,
        "function",
        "PyTorchModelEngine.__init__",
        "PyTorchModelEngine._init_model_capacity",
        "PyTorchModelEngine._release_cuda_graphs",
    ),
    *_names(
        "hook",
        MULTIMODAL,
        "function",
        "setup_mm_encoder_attn_metadata",
        "resolve_mm_encoder_token_budget",
        "mm_item_scheduling_enabled",
        "MultimodalItemScheduler.__init__",
        "MultimodalItemScheduler.maybe_create",
        "MultimodalItemScheduler.create",
        "MultimodalItemScheduler.forward_items",
    ),
    *_names("tower", ENCODER, "class", "MultimodalEncoderMixin", "MultimodalEncoderContractError"),
    *_names(
        "tower",
        ENCODER,
        "function",
        "MultimodalEncoderMixin.setup_attn_metadata",
        "MultimodalEncoderMixin.set_attn_max_seq_len",
        "MultimodalEncoderMixin.get_encoder_attention_metadata_capacity",
    ),
    *_names(
        "items",
        ENCODER,
        "function",
        "MultimodalEncoderMixin.encode_multimodal_inputs",
        "MultimodalEncoderMixin.prepare_multimodal_encoder_inputs",
        "MultimodalEncoderMixin.forward_multimodal_encoder_items",
        "MultimodalEncoderMixin.build_multimodal_encoder_input",
    ),
    *_names(
        "items",
        f"{MODELS}.modeling_multimodal_mixin",
        "function",
        "MultimodalModelMixin.encode_multimodal_inputs",
        "MultimodalModelMixin.encoder_cache_active",
    ),
    *_names(
        "items",
        "inputs.registry",
        "function",
        "get_multimodal_encoder_item_metadata",
        "register_input_processor",
        "create_input_processor",
    ),
    *_names("registration", "inputs.registry", "value", "INPUT_PROCESSOR_REGISTRY"),
    *_names(
        "registration",
        f"{MODELS}.modeling_utils",
        "function",
        "register_auto_model",
        "register_vision_encoder",
        "get_registered_model_class",
        "get_registered_vision_encoder",
        "export_external_model_modules",
        "register_external_model_modules",
        "filter_weights",
    ),
    *_names("registration", f"{MODELS}._arch_index", "function", "is_builtin_zoo_module"),
    *_names("registration", f"{MODELS}._arch_index", "value", "MODEL_ARCH_TO_MODULE"),
    *_names(
        "registration",
        "tools.importlib_utils",
        "function",
        "import_custom_module",
        "import_custom_module_from_dir",
        "import_custom_module_from_file",
    ),
    *_names("ranks", "_utils", "function", "mpi_allgather"),
    *_names(
        "weights",
        "_torch.pyexecutor.model_loader",
        "function",
        "ModelLoader.load",
        "ModelLoader._call_load_weights",
    ),
    *_names("models", f"{MODELS}.modeling_qwen3vl", "class", "Qwen3VisionModel", "Qwen3VLModel"),
    *_names(
        "models",
        f"{MODELS}.modeling_qwen3vl",
        "function",
        "Qwen3VisionModel.__init__",
        "Qwen3VisionModel.forward",
        "Qwen3VisionModelBase.__init__",
        "Qwen3VisionModelBase.load_weights",
        "Qwen3VisionModelBase.forward",
        "Qwen3VLModelBase.__init__",
        "Qwen3VLModelBase.encode_multimodal_inputs",
    ),
    *_names(
        "models",
        f"{MODELS}.modeling_qwen2vl",
        "function",
        "_prepare_qwen_vl_vision_attn_metadata",
    ),
    *_names(
        "models",
        f"{MODELS}.modeling_glm5_next_vision",
        "function",
        "_image_encoder_cuda_graph_config",
        "Glm5NextVisionModel.__init__",
        "Glm5NextVisionModel.enable_blocks_cuda_graph",
        "Glm5NextVisionModel.setup_attn_metadata",
        "Glm5NextVisionModel.set_attn_max_seq_len",
        "Glm5NextVisionModel.forward",
        "Glm5NextVisionModelBase.__init__",
        "Glm5NextVisionModelBase.load_weights",
        "Glm5NextVisionModelBase.enable_blocks_cuda_graph",
        "Glm5NextVisionModelBase.encode_batched",
        "Glm5NextVisionModelBase.forward",
        "Glm5NextVLM.__init__",
        "Glm5NextVLM.encode_multimodal_inputs",
        "Glm5NextVLM.load_weights",
    ),
    *_names("models", f"{MODELS}.modeling_radio", "value", "VIT_TIMM_CONFIG_BY_NAME"),
    *_names(
        "models",
        f"{MODELS}.modeling_radio",
        "function",
        "VisionTransformer.setup_attn_metadata",
        "VisionTransformer.enable_blocks_cuda_graph",
        "VisionTransformer.prepare_attn_metadata",
        "VisionTransformer.forward_features",
        "RADIOVisionModel.__init__",
        "RADIOVisionModel.load_weights",
        "RADIOVisionModel.enable_blocks_cuda_graph",
        "RADIOVisionModel.forward",
    ),
    *_names(
        "models",
        f"{MODELS}.modeling_nemotron_nano",
        "function",
        "NanoV2VLVisionEncoder.__init__",
        "NanoV2VLVisionEncoder.load_weights",
        "NanoV2VLVisionEncoder.pixel_shuffle",
        "NanoV2VLVisionEncoder.extract_feature",
        "NanoV2VLVisionEncoder.forward",
    ),
    *_names(
        "configuration",
        "llmapi.llm_args",
        "fields",
        "MultimodalEncoderCudaGraphConfig",
        "MultimodalConfig",
    ),
    *_names(
        "configuration",
        "llmapi.llm_args",
        "value",
        "TorchLlmArgs.multimodal_config",
        "TorchLlmArgs.encoder_max_batch_size",
        "TorchLlmArgs.encoder_max_num_tokens",
    ),
    *_names(
        "configuration",
        "llmapi.llm_args",
        "function",
        "update_llm_args_with_extra_dict",
        "update_llm_args_with_extra_options",
    ),
    *_names(
        "attention",
        ATTENTION,
        "function",
        "AttentionMetadata.prepare",
        "AttentionMetadata.prepare_encoder_only",
        "AttentionMetadata.create_cuda_graph_metadata",
        "AttentionBackend.__init__",
        "AttentionBackend.forward",
        "AttentionBackend.support_fused_qkv",
    ),
    *_names("attention", ATTENTION, "class", "PredefinedAttentionMask"),
    *_names(
        "attention",
        TRTLLM,
        "function",
        "TrtllmAttentionMetadata.bind_encoder_cuda_graph_seq_lens",
        "TrtllmAttentionMetadata.prepare_encoder_only",
    ),
    *_names("graphs", GRAPH, "fields", "EncoderGraphKey", "EncoderGraphTensorSpec"),
    *_names(
        "graphs",
        GRAPH,
        "function",
        "MultimodalEncoderGraphRunner.__init__",
        "MultimodalEncoderGraphRunner.capture_all",
        "MultimodalEncoderGraphRunner.maybe_run",
    ),
    *_names(
        "nccl",
        "_torch.nccl_window_graph",
        "function",
        "nccl_window_graph_owner",
        "nccl_window_graph_capture",
        "abandon_nccl_window_graph_owner",
        "release_nccl_window_graph_owner",
    ),
)
