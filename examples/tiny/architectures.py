# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The families: real transformers architectures, a few layers of a few heads each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import transformers as hf

from .published import NemotronOmni, OriginalQwen3ASR
from .tokenizers_of import GLM, MAX_LENGTH, QWEN, QWEN_ASR, QWEN_OMNI, VOCAB_SIZE, Vocabulary

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
_QWEN2_TEXT = {**_TEXT, **_mrope([4, 2, 2])}
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

_VISION: Config = {
    "depth": 4,
    "hidden_size": 64,
    "out_hidden_size": _TEXT["hidden_size"],
    "num_heads": 2,
    "intermediate_size": 160,
}
_QWEN_VISION = {**_VISION, "patch_size": 16, "num_position_embeddings": 2304}  # 48 x 48
_QWEN3_VISION = {**_QWEN_VISION, "deepstack_visual_indexes": [0, 2]}
_QWEN2_VISION = {
    "depth": 4,
    "embed_dim": 64,
    "hidden_size": _TEXT["hidden_size"],  # of the output
    "num_heads": 2,
    "mlp_ratio": 2,
    "patch_size": 14,
}
_QWEN2_5_VISION = {
    **_VISION,
    "patch_size": 14,
    "window_size": 112,  # pixels: 4 x 4 merged tokens
    "fullatt_block_indexes": [1, 3],
}
_GLM_VISION = {**_VISION, "patch_size": 14}
_RADIO = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "max_img_size": 512,
}
_AUDIO = {
    "num_mel_bins": 128,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 96,
    "d_model": 64,
    "output_dim": _TEXT["hidden_size"],
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
_ASR_IDS = {
    "audio_token_id": "<|audio_pad|>",
    "eos_token_id": "<|im_end|>",
    "pad_token_id": "<|endoftext|>",
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
        build: Makes the model from its whole configuration, see ``build_model``; it has
            ``save_pretrained``.
        vision: Fields of its vision configuration; none without a vision tower.
        text: Fields of its text configuration; none without a language model.
        audio: Fields of its audio configuration; none without an audio tower.
        ids: Special token of each id in the configuration.
        vocabulary: Special tokens and chat format; None without a tokenizer.
        preprocessors: Style of its preprocessor files, see ``preprocessors``.
    """

    build: Callable[[Config], Any]
    vision: Config = field(default_factory=dict)
    text: Config = field(default_factory=dict)
    audio: Config = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)
    vocabulary: Vocabulary | None = None
    preprocessors: str = "none"

    @property
    def sections(self) -> tuple[str, ...]:
        """Which of ``vision``, ``text`` and ``audio`` it has."""
        return tuple(name for name in ("vision", "text", "audio") if getattr(self, name))


def _hf(model: str, config: str) -> Callable[[Config], Any]:
    """A model of transformers, by its class and that of its configuration."""
    return lambda fields: getattr(hf, model)(getattr(hf, config)(**fields))


def _hf_conditional(name: str) -> Callable[[Config], Any]:
    return _hf(f"{name}ForConditionalGeneration", f"{name}Config")


def _glm(model: str, vision: Config, text: Config, preprocessors: str) -> Family:
    return Family(
        build=_hf_conditional(model),
        vision={**_GLM_VISION, **vision},
        text=text,
        ids=_GLM_IDS,
        vocabulary=GLM,
        preprocessors=preprocessors,
    )


def _qwen(model: str, text: Config, vision: Config, preprocessors: str = "qwen") -> Family:
    return Family(
        build=_hf_conditional(model),
        vision=vision,
        text=text,
        ids=_QWEN_IDS,
        vocabulary=QWEN,
        preprocessors=preprocessors,
    )


def _omni(build: Callable[[Config], Any]) -> Family:
    return Family(
        build=build,
        vision=_QWEN3_VISION,
        text={**_QWEN_TEXT, **_EXPERTS},
        audio=_AUDIO,
        ids=_OMNI_IDS,
        vocabulary=QWEN_OMNI,
        preprocessors="omni",
    )


def _asr(build: Callable[[Config], Any], preprocessors: str) -> Family:
    return Family(
        build=build,
        text=_TEXT,
        audio=_AUDIO,
        ids=_ASR_IDS,
        vocabulary=QWEN_ASR,
        preprocessors=preprocessors,
    )


def _whole_omni(thinker: Config) -> Any:
    build = _hf_conditional("Qwen3OmniMoe")
    return build({"thinker_config": thinker, "enable_audio_output": False})


_GLM_MOE_TEXT = {**_GLM_TEXT, **_GLM_EXPERTS, "first_k_dense_replace": 1}

FAMILIES: dict[str, Family] = {
    "qwen3_vl": _qwen("Qwen3VL", _QWEN_TEXT, _QWEN3_VISION),
    "qwen3_vl_moe": _qwen("Qwen3VLMoe", {**_QWEN_TEXT, **_EXPERTS}, _QWEN3_VISION),
    "qwen3_5": _qwen("Qwen3_5", _QWEN_HYBRID, _QWEN_VISION),
    "qwen3_5_moe": _qwen(
        "Qwen3_5Moe",
        {**_QWEN_HYBRID, **_EXPERTS, "shared_expert_intermediate_size": 48},
        _QWEN_VISION,
    ),
    "qwen2_vl": _qwen("Qwen2VL", _QWEN2_TEXT, _QWEN2_VISION, "qwen2_vl"),
    "qwen2_5_vl": _qwen("Qwen2_5_VL", _QWEN2_TEXT, _QWEN2_5_VISION, "qwen2_5_vl"),
    "glm4v": _glm("Glm4v", {}, _GLM_TEXT, "glm4v"),
    "glm4v_moe": _glm("Glm4vMoe", {}, _GLM_MOE_TEXT, "glm4v"),
    "glm46v": _glm("Glm46V", {}, _GLM_TEXT, "glm46v"),
    "glm46v_moe": _glm(
        "Glm46V",
        {"model_type": "glm4v_moe_vision"},
        {"model_type": "glm4v_moe_text", **_GLM_MOE_TEXT},
        "glm46v",
    ),
    "glm_ocr": _glm("GlmOcr", {}, _GLM_TEXT, "glm46v"),
    "glm5_next": _glm("Glm5Next", {"projection_intermediate_size": 96}, _GLM5_TEXT, "glm5_next"),
    "qwen3_omni": _omni(_whole_omni),
    "qwen3_omni_thinker": _omni(
        _hf("Qwen3OmniMoeThinkerForConditionalGeneration", "Qwen3OmniMoeThinkerConfig")
    ),
    "qwen3_asr": _asr(_hf_conditional("Qwen3ASR"), "asr"),
    "qwen3_asr_original": _asr(OriginalQwen3ASR, "asr_original"),
    "radio": Family(
        build=lambda config: hf.RadioModel(hf.RadioConfig(**config["vision_config"])),
        vision=_RADIO,
    ),
    "nemotron_h_omni": Family(
        build=NemotronOmni,
        vision=_RADIO,
        # Its words matter to nobody; transformers 5.24 would have 131072.
        text={"hidden_size": _TEXT["hidden_size"], "vocab_size": 64},
    ),
}


def build_model(family: Family, ids: Mapping[str, int], given: Mapping[str, Config]) -> Any:
    """Build a model with initial weights.

    Args:
        family: What to build.
        ids: Id of every token of its tokenizer.
        given: Fields that replace those of the family, by section of its configuration.

    Returns:
        The model in evaluation mode.
    """
    config: Config = {
        f"{section}_config": {**getattr(family, section), **given.get(section, {})}
        for section in family.sections
    }
    if family.vocabulary is not None:
        config["text_config"] = {
            **_special_ids(family.vocabulary, ids),
            "tie_word_embeddings": True,
            **config["text_config"],
        }
        config["tie_word_embeddings"] = True
        config |= {key: ids[token] for key, token in family.ids.items()}
    return family.build(config).eval()


def generation_config(vocabulary: Vocabulary, ids: Mapping[str, int]) -> Any:
    """Greedy, ended by the vocabulary's end of an answer or of a text."""
    special = _special_ids(vocabulary, ids)
    special["eos_token_id"] = [special["eos_token_id"], special["pad_token_id"]]
    return hf.GenerationConfig(**special, do_sample=False)


def _special_ids(vocabulary: Vocabulary, ids: Mapping[str, int]) -> Config:
    end, pad = ids[vocabulary.end], ids[vocabulary.pad]
    return {"bos_token_id": pad, "eos_token_id": end, "pad_token_id": pad}
