# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Models that were published in a layout which transformers (5.17) does not write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from torch import nn

Config = dict[str, Any]
Tensors = dict[str, torch.Tensor]


class NemotronOmni(nn.Module):
    """The encoder's side of Nemotron Omni: RADIO and the projector, without a language model.

    Args:
        config: ``vision_config`` of RADIO and ``text_config`` with ``hidden_size``; with
            ``num_nextn_predict_layers`` above 0 a norm stands between the two.
    """

    PROJECTOR_WIDTH = 96

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.text = config["text_config"]
        self.vision_model = hf.RadioModel(hf.RadioConfig(**config["vision_config"]))
        width = self.vision_model.config.hidden_size
        self.mlp1 = nn.Sequential(
            nn.RMSNorm(4 * width),
            nn.Linear(4 * width, self.PROJECTOR_WIDTH, bias=False),
            nn.Identity(),  # the activation
            nn.Linear(self.PROJECTOR_WIDTH, self.text["hidden_size"], bias=False),
        )
        self.vision_projector = nn.ModuleDict()
        if self.text.get("num_nextn_predict_layers"):
            self.vision_projector["vision_final_layernorm"] = nn.LayerNorm(width)

    def save_pretrained(self, out: Path) -> None:
        """Write config.json and model.safetensors."""
        self.vision_model.save_pretrained(out)
        tensors, vision = _read(out)
        del vision["architectures"]
        # transformers 5.24 demands that it be what the whole model has, 2 by default.
        vision["video_temporal_patch_size"] = 2
        tensors = {f"vision_model.{key}": tensor for key, tensor in tensors.items()}
        own = self.state_dict().items()
        tensors |= {key: tensor for key, tensor in own if not key.startswith("vision_model.")}
        config = {
            "architectures": ["NemotronH_Omni_Reasoning_V3"],
            "model_type": "nemotron_h_omni",
            "downsample_ratio": 0.5,
            "projector_hidden_size": self.PROJECTOR_WIDTH,
            "vision_config": vision,
            "llm_config": self.text,
        }
        _write(out, tensors, config)


class OriginalQwen3ASR(nn.Module):
    """Qwen3-ASR under the names of its first release, which are Qwen3-Omni's.

    Args:
        config: Arguments of ``Qwen3ASRConfig``.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.model = hf.Qwen3ASRForConditionalGeneration(hf.Qwen3ASRConfig(**config))

    def save_pretrained(self, out: Path) -> None:
        """Write config.json and model.safetensors."""
        self.model.save_pretrained(out)
        tensors, thinker = _read(out)
        config = {key: thinker.pop(key) for key in ("architectures", "model_type")}
        for own, original in (
            ("model.multi_modal_projector.linear_", "thinker.audio_tower.proj"),
            ("model.audio_tower.", "thinker.audio_tower."),
            ("model.language_model.", "thinker.model."),
        ):
            tensors = {key.replace(own, original): tensor for key, tensor in tensors.items()}
        _write(out, tensors, {**config, "thinker_config": thinker})


def _read(folder: Path) -> tuple[Tensors, Config]:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return load_file(folder / "model.safetensors"), config


def _write(folder: Path, tensors: Tensors, config: Config) -> None:
    weights = folder / "model.safetensors"
    weights.unlink()  # tensors that were read from it may still be mapped to it
    save_file(tensors, weights, metadata={"format": "pt"})
    text = json.dumps(config, indent=2) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")
