# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Every tower at its published size, with transformers' tower beside it as the oracle."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch

CUDA = torch.device("cuda")

QWEN3_VL_2B = {
    "depth": 24,
    "hidden_size": 1024,
    "num_heads": 16,
    "intermediate_size": 4096,
    "out_hidden_size": 2048,
    "deepstack_visual_indexes": [5, 11, 17],
}
QWEN3_VL_8B = {
    "depth": 27,
    "hidden_size": 1152,
    "num_heads": 16,
    "intermediate_size": 4304,
    "out_hidden_size": 4096,
    "deepstack_visual_indexes": [8, 16, 24],
}
OMNI_VISION = {**QWEN3_VL_8B, "out_hidden_size": 2048}
QWEN3_5 = {k: v for k, v in QWEN3_VL_8B.items() if k != "deepstack_visual_indexes"}
GLM_4V = {
    "depth": 24,
    "hidden_size": 1536,
    "num_heads": 12,
    "intermediate_size": 13696,
    "out_hidden_size": 4096,
}
GLM_OCR = {
    "depth": 24,
    "hidden_size": 1024,
    "num_heads": 16,
    "intermediate_size": 4096,
    "out_hidden_size": 1536,
}
GLM_5 = {**GLM_OCR, "out_hidden_size": 4096, "projection_intermediate_size": 10240}
QWEN2_VL = {"depth": 32, "embed_dim": 1280, "num_heads": 16, "hidden_size": 3584}
QWEN2_5_VL = {
    "depth": 32,
    "hidden_size": 1280,
    "num_heads": 16,
    "intermediate_size": 3420,
    "out_hidden_size": 3584,
}
RADIO_H = {
    "hidden_size": 1280,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "max_img_size": 2048,
}
OMNI_AUDIO = {
    "d_model": 1280,
    "encoder_layers": 32,
    "encoder_attention_heads": 20,
    "encoder_ffn_dim": 5120,
    "output_dim": 2048,
}


@dataclass(frozen=True)
class PublishedTower:
    """A tower of ours and the transformers classes that it is compared with."""

    model_type: str
    section: dict[str, Any]
    hf_module: str  # below transformers.models
    hf_config: str
    hf_model: str
    path: tuple[str, ...] = ("vision_config",)
    modality: str = "image"
    extra: dict[str, Any] = field(default_factory=dict)
    gate: float = 1.05  # of our error to transformers'

    def config(self) -> dict[str, Any]:
        """A parsed config.json."""
        nested: dict[str, Any] = {**self.section, **self.extra}
        for key in reversed(self.path):
            nested = {key: nested}
        return {"model_type": self.model_type, **nested}

    def make_oracle(self, dtype: torch.dtype) -> torch.nn.Module:
        """transformers' tower without weights; tables it computes stay fp32."""
        package = f"transformers.models.{self.hf_module}"
        last = self.hf_module
        config = getattr(import_module(f"{package}.configuration_{last}"), self.hf_config)
        model = getattr(import_module(f"{package}.modeling_{last}"), self.hf_model)
        with CUDA:
            oracle = model(config(**self.section)).eval().requires_grad_(False)
        tables = {n: b for n, b in oracle.named_buffers() if n.endswith("inv_freq")}
        oracle.to(dtype)
        for name, table in tables.items():  # as after from_pretrained(dtype=...)
            module, _, leaf = name.rpartition(".")
            setattr(oracle.get_submodule(module), leaf, table)
        return oracle


VISION = {
    "qwen3_vl_2b": PublishedTower(
        "qwen3_vl", QWEN3_VL_2B, "qwen3_vl", "Qwen3VLVisionConfig", "Qwen3VLVisionModel"
    ),
    "qwen3_vl_8b": PublishedTower(
        "qwen3_vl", QWEN3_VL_8B, "qwen3_vl", "Qwen3VLVisionConfig", "Qwen3VLVisionModel"
    ),
    "qwen3_omni_vision": PublishedTower(
        "qwen3_omni_moe",
        OMNI_VISION,
        "qwen3_omni_moe",
        "Qwen3OmniMoeVisionEncoderConfig",
        "Qwen3OmniMoeVisionEncoder",
        path=("thinker_config", "vision_config"),
    ),
    "qwen3_5": PublishedTower(
        "qwen3_5", QWEN3_5, "qwen3_5", "Qwen3_5VisionConfig", "Qwen3_5VisionModel"
    ),
    "glm_4_1v": PublishedTower("glm4v", GLM_4V, "glm4v", "Glm4vVisionConfig", "Glm4vVisionModel"),
    "glm_4_5v": PublishedTower(
        "glm4v_moe",
        {**GLM_4V, "intermediate_size": 10944},
        "glm4v_moe",
        "Glm4vMoeVisionConfig",
        "Glm4vMoeVisionModel",
    ),
    "glm_ocr": PublishedTower(
        "glm_ocr", GLM_OCR, "glm_ocr", "GlmOcrVisionConfig", "GlmOcrVisionModel"
    ),
    "glm_5_3": PublishedTower(
        "glm5_next", GLM_5, "glm5_next", "Glm5NextVisionConfig", "Glm5NextVisionModel"
    ),
    "qwen2_vl": PublishedTower(
        "qwen2_vl",
        QWEN2_VL,
        "qwen2_vl",
        "Qwen2VLVisionConfig",
        "Qwen2VisionTransformerPretrainedModel",
        # Measured 1.07: transformers' own modules, and only the attention kernel another.
        gate=1.1,
    ),
    "qwen2_5_vl": PublishedTower(
        "qwen2_5_vl",
        QWEN2_5_VL,
        "qwen2_5_vl",
        "Qwen2_5_VLVisionConfig",
        "Qwen2_5_VisionTransformerPretrainedModel",
    ),
    "radio_h": PublishedTower("radio", RADIO_H, "radio", "RadioConfig", "RadioModel", path=()),
}
AUDIO = {
    "qwen3_omni_audio": PublishedTower(
        "qwen3_omni_moe",
        OMNI_AUDIO,
        "qwen3_omni_moe",
        "Qwen3OmniMoeAudioEncoderConfig",
        "Qwen3OmniMoeAudioEncoder",
        path=("thinker_config", "audio_config"),
        modality="audio",
    ),
}


def randomise(tower: torch.nn.Module, seed: int, std: float = 0.05) -> None:
    """New weights and biases in place: captured graphs see them."""
    generator = torch.Generator(CUDA).manual_seed(seed)
    for name, parameter in tower.named_parameters():
        values = torch.randn(parameter.shape, generator=generator, device=CUDA) * std
        if ("norm" in name or "ln_" in name) and name.endswith("weight"):
            values += 1
        if name.endswith("norm_std"):
            values = values.abs() + 0.2
        parameter.data.copy_(values)


def copy_weights(tower: Any, oracle: torch.nn.Module, model_type: str) -> None:
    """The tower's weights into transformers' module, by the names on disk."""
    state = {}
    for name, parameter in tower.named_parameters():
        tensors = tower.disk_tensors()[name]
        for tensor, part in zip(tensors, parameter.data.chunk(len(tensors)), strict=True):
            if tensor.axes is not None:
                shape = [tensor.shape[axis] for axis in tensor.axes]
                order = [tensor.axes.index(axis) for axis in range(len(shape))]
                state[tensor.key] = part.reshape(shape).permute(order)
            else:
                state[tensor.key] = part.reshape(tensor.shape)
    if model_type == "radio":
        state = _radio_names(state)
    missing, unexpected = oracle.load_state_dict(state, strict=False)
    assert not unexpected, unexpected
    assert all("layer_scale" in key or key == "summary_idxs" for key in missing), missing


def _radio_names(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    names = {
        "model.patch_generator.embedder.": "embeddings.patch_projection.",
        "model.patch_generator.pos_embed": "embeddings.position_embedding",
        "model.patch_generator.cls_token.token": "embeddings.cls_register_token",
        "model.blocks.": "encoder.layer.",
        ".attn.proj.": ".attention.output.dense.",
    }
    renamed = {}
    for key, value in state.items():
        for ours, theirs in names.items():
            key = key.replace(ours, theirs)
        if ".attn.qkv." in key:
            for part, rows in zip(("query", "key", "value"), value.chunk(3), strict=True):
                renamed[key.replace(".attn.qkv.", f".attention.attention.{part}.")] = rows
        else:
            renamed[key] = value
    return renamed


Grid = tuple[int, int, int]


def vision_items(patch_dim: int, grids: list[Grid], seed: int, radio: bool) -> list[dict[str, Any]]:
    """Random rows, bf16 on the device (0..1 for RADIO, which normalises itself)."""
    generator = torch.Generator(CUDA).manual_seed(seed)
    draw = torch.rand if radio else torch.randn
    return [
        {
            "pixel_values": draw(t * h * w, patch_dim, generator=generator, device=CUDA).bfloat16(),
            "grid_thw": (t, h, w),
        }
        for t, h, w in grids
    ]


def ask_vision(oracle: torch.nn.Module, items: list[dict[str, Any]], dtype: torch.dtype) -> Any:
    """Outputs of transformers' tower: features, then the other outputs, batch end to end."""
    if type(oracle).__name__ == "RadioModel":
        outs = [oracle(image.to(dtype)) for item in items for image in _radio_images(item)]
        return [torch.cat([o.features[0] for o in outs]), torch.cat([o.summary for o in outs])]
    flat = "Glm" in type(oracle).__name__  # wants every frame as a picture of its own
    grids = [
        (1, h, w) if flat else (t, h, w)
        for item in items
        for t, h, w in [item["grid_thw"]]
        for _ in range(t if flat else 1)
    ]
    pixels = torch.cat([item["pixel_values"] for item in items]).to(dtype)
    out = oracle(pixels, grid_thw=torch.tensor(grids, device=CUDA))
    return [out.pooler_output, *(getattr(out, "deepstack_features", None) or [])]


def _radio_images(item: dict[str, Any]) -> list[torch.Tensor]:
    t, h, w = item["grid_thw"]
    frames = item["pixel_values"].view(t, h, w, 3, 16, 16).permute(0, 3, 1, 4, 2, 5)
    return [frame.reshape(1, 3, h * 16, w * 16) for frame in frames]


def outputs_of(outs: list[Any]) -> list[torch.Tensor]:
    """Ours in the same order as ``ask_vision``'s and ``ask_audio``'s."""

    def rest(output: Any) -> list[torch.Tensor]:
        return [output["summary"]] if "summary" in output else output.get("deepstack", [])

    columns = [[o.features, *rest(o)] for o in outs]
    return [torch.cat(parts) for parts in zip(*columns, strict=True)]


def audio_items(lengths: list[int], seed: int) -> list[dict[str, Any]]:
    """Random mel frames, bf16 on the device."""
    generator = torch.Generator(CUDA).manual_seed(seed)
    return [
        {"input_features": torch.randn(128, n, generator=generator, device=CUDA).bfloat16()}
        for n in lengths
    ]


def ask_audio(oracle: torch.nn.Module, items: list[dict[str, Any]], dtype: torch.dtype) -> Any:
    """Every clip alone, as transformers treats it then."""
    clips = [item["input_features"].to(dtype) for item in items]
    outs = [oracle(clip, feature_lens=torch.tensor([clip.shape[1]], device=CUDA)) for clip in clips]
    return [torch.cat([o.last_hidden_state for o in outs])]


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    """Relative L2 error."""
    return ((a.float() - b.float()).norm() / b.float().norm()).item()
