# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``checkpoints/hf/config_loader.py``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ..._load import config_for
from ...modeling_utils import register_config_loader


def load_pretrained_config(checkpoint_dir: str) -> Any:
    """transformers' class where it has one; else (upstream: remote code) plain attributes."""
    raw = json.loads((Path(checkpoint_dir) / "config.json").read_text(encoding="utf-8"))
    if raw.get("model_type") in CONFIG_MAPPING:
        return AutoConfig.from_pretrained(checkpoint_dir)
    sections = {k: raw.pop(k) for k in [*raw] if isinstance(raw[k], dict) and "config" in k}
    config = PreTrainedConfig(**raw)
    for name, section in sections.items():
        setattr(config, name, PreTrainedConfig(**section))
    return config


@register_config_loader("HF")
class HfConfigLoader:
    def load(self, checkpoint_dir: str, **kwargs: Any) -> Any:
        return config_for(load_pretrained_config(checkpoint_dir), **kwargs)
