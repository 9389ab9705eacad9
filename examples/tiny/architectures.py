# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The families: real transformers architectures, a few layers of a few heads each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import transformers as hf

from .tokenizers_of import GLM, MAX_LENGTH, QWEN, QWEN_OMNI, VOCAB_SIZE, Vocabulary

Config = dict[str, Any]

_TEXT: Config = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": MAX_LENGTH,
}


def _mrope(section: list[int], **more: Any) -> Config:
    """Rotary parameters; the sections sum to half of the rotated width."""
    rope = {"rope_type": "default", "rope_theta": 5_000_000.0, "mrope_section": section, **more}
    return {"rope_parameters": rope}


_QWEN_TEXT = {**_TEXT, **_mrope([4, 2, 2], mrope_interleaved=True)}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
_GLM_EXPERTS = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "n_shared_experts": 1,
}
_QWEN_HYBRID = {
    **_TEXT,
    **_mrope([2, 1, 1], mrope_interleaved=True, partial_rotary_factor=0.5),
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_GLM_TEXT = {**_TEXT, **_mrope([2, 1, 1], partial_rotary_factor=0.5)}
_GLM5_TEXT = {
    **_TEXT,
    **_GLM_EXPERTS,
    "num_key_value_heads": 4,
    "head_dim": 0,  # no rotary part
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    # One sparse-attention layer after three of linear attention, as published.
    "layer_types": [*["linear_attention"] * 3, "deepseek_sparse_attention"],
    "mlp_layer_types": ["dense", "dense", "sparse", "sparse"],
    "linear_head_dim": 16,
    "linear_num_heads": 4,
    "hc_mult": 2,
    "hc_sinkhorn_iters": 4,
    "index_head_dim": 16,
    "index_n_heads": 2,
    "index_topk": 1024,
}

_VISION: Config = {"depth": 4, "hidden_size": 64, "num_heads": 2, "intermediate_size": 160}
_QWEN_VISION = {**_VISION, "patch_size": 16, "num_position_embeddings": 2304}  # 48 x 48
_DEEPSTACK = {"deepstack_visual_indexes": [0, 2]}
_GLM_VISION = {**_VISION, "patch_size": 14}
_AUDIO = {
    "num_mel_bins": 128,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 96,
    "d_model": 64,
    "output_dim": 64,
    "downsample_hidden_size": 16,
}

_QWEN_IDS = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}
_OMNI_IDS = {
    **_QWEN_IDS,
    "audio_token_id": "<|audio_pad|>",
    "audio_start_token_id": "<|audio_start|>",
    "audio_end_token_id": "<|audio_end|>",
}
_GLM_IDS = {
    "image_token_id": "<|image|>",
    "video_token_id": "<|video|>",
    "image_start_token_id": "<|begin_of_image|>",
    "image_end_token_id": "<|end_of_image|>",
    "video_start_token_id": "<|begin_of_video|>",
    "video_end_token_id": "<|end_of_video|>",
}


@dataclass(frozen=True)
class Family:
    """What makes a tiny model of a family.

    Attributes:
        model: Name of the transformers class.
        config: Name of its configuration class.
        vision: Fields of its vision configuration.
        text: Fields of its text configuration.
        audio: Fields of its audio configuration; none without an audio tower.
        ids: Special token of each id in the configuration.
        vocabulary: Special tokens and chat format.
        preprocessors: Style of its preprocessor files, see ``preprocessors``.
        wrap: Makes the whole configuration from the one with the towers.
    """

    model: str
    config: str
    vision: Config
    text: Config
    preprocessors: str
    audio: Config = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=lambda: _QWEN_IDS)
    vocabulary: Vocabulary = QWEN
    wrap: Callable[[Config], Config] = dict


def _glm(model: str, vision: Config, text: Config, preprocessors: str) -> Family:
    return Family(
        model=f"{model}ForConditionalGeneration",
        config=f"{model}Config",
        vision={**_GLM_VISION, **vision},
        text=text,
        preprocessors=preprocessors,
        ids=_GLM_IDS,
        vocabulary=GLM,
    )


def _qwen(model: str, text: Config, vision: Config) -> Family:
    return Family(
        model=f"{model}ForConditionalGeneration",
        config=f"{model}Config",
        vision={**_QWEN_VISION, **vision},
        text=text,
        preprocessors="qwen",
    )


def _omni(model: str, config: str, **more: Any) -> Family:
    return Family(
        model=model,
        config=config,
        vision={**_QWEN_VISION, **_DEEPSTACK},
        text={**_QWEN_TEXT, **_EXPERTS},
        audio=_AUDIO,
        preprocessors="omni",
        ids=_OMNI_IDS,
        vocabulary=QWEN_OMNI,
        **more,
    )


FAMILIES: dict[str, Family] = {
    "qwen3_vl": _qwen("Qwen3VL", _QWEN_TEXT, _DEEPSTACK),
    "qwen3_vl_moe": _qwen("Qwen3VLMoe", {**_QWEN_TEXT, **_EXPERTS}, _DEEPSTACK),
    "qwen3_5": _qwen("Qwen3_5", _QWEN_HYBRID, {}),
    "glm4v": _glm("Glm4v", {}, _GLM_TEXT, "glm4v"),
    "glm4v_moe": _glm(
        "Glm4vMoe", {}, {**_GLM_TEXT, **_GLM_EXPERTS, "first_k_dense_replace": 1}, "glm4v"
    ),
    "glm46v": _glm("Glm46V", {}, _GLM_TEXT, "glm46v"),
    "glm_ocr": _glm("GlmOcr", {}, _GLM_TEXT, "glm46v"),
    "glm5_next": _glm("Glm5Next", {"projection_intermediate_size": 96}, _GLM5_TEXT, "glm5_next"),
    "qwen3_omni": _omni(
        "Qwen3OmniMoeForConditionalGeneration",
        "Qwen3OmniMoeConfig",
        wrap=lambda thinker: {"thinker_config": thinker, "enable_audio_output": False},
    ),
    "qwen3_omni_thinker": _omni(
        "Qwen3OmniMoeThinkerForConditionalGeneration", "Qwen3OmniMoeThinkerConfig"
    ),
}


def build_model(
    family: Family,
    ids: Mapping[str, int],
    *,
    vision: Config,
    text: Config,
) -> Any:
    """Build a model with transformers' own initial weights.

    Args:
        family: What to build.
        ids: Id of every token of its tokenizer.
        vision: Fields that replace those of the family's vision configuration.
        text: Fields that replace those of its text configuration.

    Returns:
        The model in evaluation mode, with its generation configuration.
    """
    end, pad = ids[family.vocabulary.end], ids[family.vocabulary.pad]
    special = {"bos_token_id": pad, "eos_token_id": end, "pad_token_id": pad}
    text = {**family.text, **special, "tie_word_embeddings": True, **text}
    config: Config = {
        "vision_config": {**family.vision, "out_hidden_size": text["hidden_size"], **vision},
        "text_config": text,
        "tie_word_embeddings": True,
        **{key: ids[token] for key, token in family.ids.items()},
    }
    if family.audio:
        config["audio_config"] = family.audio
    model: Any = getattr(hf, family.model)(getattr(hf, family.config)(**family.wrap(config)))
    model.generation_config = hf.GenerationConfig(
        bos_token_id=pad, eos_token_id=[end, pad], pad_token_id=pad, do_sample=False
    )
    return model.eval()
