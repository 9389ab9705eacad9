# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Every tower at its published size, with transformers' tower beside it as the oracle.

What the benchmark and the GPU tests measure. Items and weights are random.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, NamedTuple

import torch

from tensorrt_llm_ext.towers.loading import allocate_weights, tower_without_weights

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

# In place of the published values: the same code paths in no time, for machines without a GPU.
TINY = {
    "depth": 2,
    "num_hidden_layers": 2,
    "encoder_layers": 2,
    "hidden_size": 64,
    "d_model": 64,
    "num_heads": 2,
    "num_attention_heads": 2,
    "encoder_attention_heads": 2,
    "intermediate_size": 96,
    "encoder_ffn_dim": 96,
    "out_hidden_size": 32,
    "output_dim": 32,
    "deepstack_visual_indexes": [0],
    "max_img_size": 256,
}
TINY_AUDIO = {"downsample_hidden_size": 16}  # published: the default of both config classes


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

    def config(self) -> dict[str, Any]:
        """A parsed config.json."""
        nested: dict[str, Any] = {**self.section, **self.extra}
        for key in reversed(self.path):
            nested = {key: nested}
        return {"model_type": self.model_type, **nested}

    def tiny(self) -> PublishedTower:
        """The same tower with two small layers."""
        small = {key: TINY.get(key, value) for key, value in self.section.items()}
        if self.modality == "audio":
            small |= TINY_AUDIO
        return replace(self, section=small)

    def make_tower(
        self,
        device: torch.device,
        dtype: torch.dtype,
        *,
        std: float = 0.05,
        prepare: Callable[[Any], None] = lambda tower: None,
    ) -> Any:
        """Ours with random weights, drawn on the device; ``prepare`` sees it before it has any."""
        tower = tower_without_weights(self.config(), modality=self.modality, dtype=dtype)
        prepare(tower)
        allocate_weights(tower, device)
        randomise(tower, 0, std)
        return tower

    def make_oracle(self, dtype: torch.dtype, device: torch.device = CUDA) -> torch.nn.Module:
        """The oracle with random weights of its own; tables that it computes stay fp32."""
        package = f"transformers.models.{self.hf_module}"
        last = self.hf_module
        config = getattr(import_module(f"{package}.configuration_{last}"), self.hf_config)
        model = getattr(import_module(f"{package}.modeling_{last}"), self.hf_model)
        with device:
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
TOWERS = {**VISION, **AUDIO}


def randomise(tower: torch.nn.Module, seed: int, std: float = 0.05) -> None:
    """New weights and biases in place: captured graphs see them."""
    device = next(tower.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    for name, parameter in tower.named_parameters():
        values = torch.randn(parameter.shape, generator=generator, device=device) * std
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
        state = _radio_names(state, oracle.state_dict().keys())
    missing, unexpected = oracle.load_state_dict(state, strict=False)
    missing = [k for k in missing if "layer_scale" not in k and k != "summary_idxs"]
    if missing or unexpected:
        raise ValueError(f"transformers' tower lacks {missing} and does not know {unexpected}")


def _radio_names(state: dict[str, torch.Tensor], known: Collection[str]) -> dict[str, torch.Tensor]:
    """Names of transformers' module; it called the projections otherwise before 5.24."""
    late = any(".attention.q_proj." in key for key in known)
    parts = (
        ("q_proj", "k_proj", "v_proj")
        if late
        else tuple(f"attention.{part}" for part in ("query", "key", "value"))
    )
    names = {
        "model.patch_generator.embedder.": "embeddings.patch_projection.",
        "model.patch_generator.pos_embed": "embeddings.position_embedding",
        "model.patch_generator.cls_token.token": "embeddings.cls_register_token",
        "model.blocks.": "encoder.layer.",
        ".attn.proj.": ".attention.o_proj." if late else ".attention.output.dense.",
    }
    renamed = {}
    for key, value in state.items():
        for ours, theirs in names.items():
            key = key.replace(ours, theirs)
        if ".attn.qkv." in key:
            for part, rows in zip(parts, value.chunk(3), strict=True):
                renamed[key.replace(".attn.qkv.", f".attention.{part}.")] = rows
        else:
            renamed[key] = value
    return renamed


Grid = tuple[int, int, int]
Items = list[dict[str, Any]]


def vision_items(
    patch_dim: int,
    grids: list[Grid],
    seed: int,
    radio: bool,
    device: torch.device = CUDA,
    dtype: torch.dtype = torch.bfloat16,
) -> Items:
    """Random rows on the device (0..1 for RADIO, which normalises itself)."""
    generator = torch.Generator(device).manual_seed(seed)
    draw = torch.rand if radio else torch.randn
    return [
        {
            "pixel_values": draw(t * h * w, patch_dim, generator=generator, device=device).to(
                dtype
            ),
            "grid_thw": (t, h, w),
        }
        for t, h, w in grids
    ]


def audio_items(
    lengths: list[int],
    seed: int,
    device: torch.device = CUDA,
    dtype: torch.dtype = torch.bfloat16,
) -> Items:
    """Random mel frames on the device."""
    generator = torch.Generator(device).manual_seed(seed)
    return [
        {"input_features": torch.randn(128, n, generator=generator, device=device).to(dtype)}
        for n in lengths
    ]


class Call(NamedTuple):
    """One call of an encoder on inputs that are ready for it.

    Attributes:
        run: Makes the call, and nothing else; returns what the encoder returns.
        outputs: That -> features, then the other outputs, batch end to end.
    """

    run: Callable[[], Any]
    outputs: Callable[[Any], list[torch.Tensor]]

    def ask(self) -> list[torch.Tensor]:
        """Makes the call."""
        return self.outputs(self.run())


def grids_for(oracle: torch.nn.Module, items: Items) -> torch.Tensor:
    """``grid_thw`` of a batch, int64 [n, 3], on the items' device."""
    flat = "Glm" in type(oracle).__name__  # wants every frame as a picture of its own
    grids = [
        (1, h, w) if flat else (t, h, w)
        for item in items
        for t, h, w in [item["grid_thw"]]
        for _ in range(t if flat else 1)
    ]
    return torch.tensor(grids, device=items[0]["pixel_values"].device)


def vision_call(
    oracle: torch.nn.Module, items: Items, dtype: torch.dtype, together: bool = True
) -> Call:
    """A batch through transformers' vision tower.

    RADIO takes pictures of one size at once: those that follow each other, or with ``together``
    off each alone.
    """
    if type(oracle).__name__ == "RadioModel":
        pictures = [picture.to(dtype) for item in items for picture in _radio_images(item)]
        batches: list[list[torch.Tensor]] = []
        for picture in pictures:
            if together and batches and batches[-1][0].shape == picture.shape:
                batches[-1].append(picture)
            else:
                batches.append([picture])
        inputs = [torch.cat(batch) for batch in batches]
        return Call(lambda: [oracle(batch) for batch in inputs], _radio_outputs)
    pixels = torch.cat([item["pixel_values"] for item in items]).to(dtype)
    grid = grids_for(oracle, items)
    return Call(lambda: oracle(pixels, grid_thw=grid), hf_vision_outputs)


def hf_vision_outputs(out: Any) -> list[torch.Tensor]:
    """Outputs of a vision tower of transformers that takes packed rows."""
    return [out.pooler_output, *(getattr(out, "deepstack_features", None) or [])]


def _radio_outputs(outs: list[Any]) -> list[torch.Tensor]:
    features = torch.cat([o.features.flatten(0, 1) for o in outs])
    return [features, torch.cat([o.summary for o in outs])]


def _radio_images(item: dict[str, Any]) -> list[torch.Tensor]:
    t, h, w = item["grid_thw"]
    frames = item["pixel_values"].view(t, h, w, 3, 16, 16).permute(0, 3, 1, 4, 2, 5)
    return [frame.reshape(1, 3, h * 16, w * 16) for frame in frames]


def ask_vision(oracle: torch.nn.Module, items: Items, dtype: torch.dtype) -> list[torch.Tensor]:
    """Outputs of transformers' tower: features, then the other outputs, batch end to end."""
    return vision_call(oracle, items, dtype, together=False).ask()


def clips_of(items: Items, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Clips end to end [mel, frames] and their lengths, int64 [n], as transformers takes them."""
    clips = [item["input_features"] for item in items]
    lengths = torch.tensor([clip.shape[1] for clip in clips], device=clips[0].device)
    return torch.cat(clips, dim=1).to(dtype), lengths


def audio_call(oracle: torch.nn.Module, items: Items, dtype: torch.dtype) -> Call:
    """A batch through transformers' audio tower.

    Clips under a second come out otherwise than alone, when longer ones are with them.
    """
    features, lengths = clips_of(items, dtype)
    return Call(lambda: oracle(features, feature_lens=lengths), hf_audio_outputs)


def hf_audio_outputs(out: Any) -> list[torch.Tensor]:
    """Outputs of transformers' audio tower."""
    return [out.last_hidden_state]


def ask_audio(oracle: torch.nn.Module, items: Items, dtype: torch.dtype) -> list[torch.Tensor]:
    """Every clip alone, as transformers treats it then."""
    outs = [audio_call(oracle, [item], dtype).ask() for item in items]
    return [torch.cat([features for (features,) in outs])]


def outputs_of(outs: list[Any]) -> list[torch.Tensor]:
    """Ours in the same order as ``ask_vision``'s and ``ask_audio``'s."""

    def rest(output: Any) -> list[torch.Tensor]:
        return [output["summary"]] if "summary" in output else output.get("deepstack", [])

    columns = [[o.features, *rest(o)] for o in outs]
    return [torch.cat(parts) for parts in zip(*columns, strict=True)]


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    """Relative L2 error."""
    return ((a.float() - b.float()).norm() / b.float().norm()).item()
