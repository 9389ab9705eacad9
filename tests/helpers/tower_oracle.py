# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""transformers' own towers, unmodified, as the oracles of ours."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from torch import nn


def load_model(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The model of a folder, by the class that its configuration names."""
    (name,) = json.loads((folder / "config.json").read_text())["architectures"]
    return getattr(transformers, name).from_pretrained(folder, dtype=dtype).eval()


def module_of(model: nn.Module, name: str) -> Any:
    """The outermost module of a name: transformers moves towers between versions."""
    return next(module for path, module in model.named_modules() if path.split(".")[-1] == name)


class VisionOracle:
    """The vision tower of a folder."""

    def __init__(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        self.folder = folder
        model = load_model(folder, dtype)
        self.model_type: str = model.config.model_type
        self.tower: Any = module_of(model, "visual")
        # transformers' GLM models hand videos to their towers as pictures.
        self._flatten = self.model_type.startswith("glm")

    @torch.no_grad()
    def ask(self, items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Its answer to a batch, per item, under the names of our outputs."""
        grids = [tuple(int(n) for n in item["grid_thw"]) for item in items]
        rows = [t * h * w // 4 for t, h, w in grids]
        if self._flatten:
            grids = [(1, h, w) for t, h, w in grids for _ in range(t)]
        pixels = torch.cat([item["pixel_values"] for item in items]).to(self.tower.dtype)
        out = self.tower(pixels, grid_thw=torch.tensor(grids))
        taps = [tap.split(rows) for tap in getattr(out, "deepstack_features", None) or []]
        return [
            {"features": features, "deepstack": [tap[i] for tap in taps]}
            for i, features in enumerate(out.pooler_output.split(rows))
        ]


class RadioOracle:
    """A RADIO, which takes dense pictures."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = load_model(folder)

    @torch.no_grad()
    def ask(self, pictures: Sequence[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        """Per item of pictures [frames, 3, height, width], pixels 0..1."""
        outs = [self.model(pixels) for pixels in pictures]
        return [{"features": out.features.flatten(0, 1), "summary": out.summary} for out in outs]


class AudioOracle:
    """The audio tower of a folder; every clip in a call of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        config = json.loads((folder / "config.json").read_text())
        self.model_type: str = config["model_type"]
        self._fills_chunks = False
        if self.model_type != "qwen3_asr":
            self._tower: Any = module_of(load_model(folder), "audio_tower")
        elif "thinker_config" in config:
            self._tower = _original_asr_tower(folder, config["thinker_config"]["audio_config"])
        else:
            self._tower = load_model(folder).model
            self._fills_chunks = True

    @torch.no_grad()
    def ask(self, clips: Sequence[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        """Per clip of mel frames [mel, frames]."""
        return [{"features": self._one(clip)} for clip in clips]

    def _one(self, clip: torch.Tensor) -> torch.Tensor:
        frames = clip.shape[1]
        if self._fills_chunks:
            padded = nn.functional.pad(clip, (0, -frames % 100))[None]
            mask = (torch.arange(padded.shape[2]) < frames).long()[None]
            features: torch.Tensor = self._tower.get_audio_features(padded, mask).pooler_output
            return features
        out = self._tower(clip, feature_lens=torch.tensor([frames]))
        last: torch.Tensor = out.last_hidden_state
        return last


def _original_asr_tower(folder: Path, audio: dict[str, Any]) -> nn.Module:
    """Qwen3-Omni's tower with the weights of a first Qwen3-ASR, which transformers cannot read."""
    from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as omni

    del audio["model_type"]
    encoder = omni.Qwen3OmniMoeAudioEncoder
    tower: nn.Module = encoder._from_config(encoder.config_class(**audio)).eval()
    prefix = "thinker.audio_tower."
    state = load_file(folder / "model.safetensors")
    tower.load_state_dict(
        {key.removeprefix(prefix): state[key] for key in state if key.startswith(prefix)}
    )
    return tower
