# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""From a checkpoint's config.json to the plan of its encoders' capture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..graphs.lifecycle import refuse_unknown_modalities
from ..graphs.plan import EncoderPlan, plan_towers
from ..llmapi.mm_config import MultimodalConfig
from .checkpoint import read_config
from .loading import tower_without_weights
from .registry import registered_modalities

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_SECTIONS = ((), ("text_config",), ("thinker_config",), ("thinker_config", "text_config"))


def stored_dtype(config: Mapping[str, Any]) -> torch.dtype:
    """The dtype that a checkpoint says it was saved in, bfloat16 where it says nothing.

    Args:
        config: A parsed config.json.
    """
    for path in _SECTIONS:
        section: Any = config
        for key in path:
            section = section.get(key) if isinstance(section, Mapping) else None
        if isinstance(section, Mapping):
            name = section.get("dtype") or section.get("torch_dtype")
            if name in _DTYPES:
                return _DTYPES[name]
    return torch.bfloat16


def plan_encoder_cuda_graphs(
    source: str | Path | Mapping[str, Any],
    config: MultimodalConfig,
    *,
    max_num_tokens: int,
    device: str = "cuda",
    dtype: torch.dtype | None = None,
) -> EncoderPlan:
    """Buckets and memory of a capture; needs neither the device nor the weights.

    Args:
        source: Folder of a Hugging Face checkpoint, of which config.json alone is read, or a parsed
            config.json.
        config: The multimodal configuration.
        max_num_tokens: Encoder budget (rows before any merger) of entries without their own.
        device: ``cuda`` or ``cpu``: what is planned for.
        dtype: Element type of the weights; by default the one the checkpoint was saved in.

    Returns:
        The plan; without a tower for a modality that is not configured.

    Raises:
        ValueError: A configured modality has no tower, or an entry cannot work.
    """
    parsed = source if isinstance(source, Mapping) else read_config(source)
    chosen = dtype or stored_dtype(parsed)
    graphs = config.encoder_cuda_graph or {}
    known = registered_modalities(parsed.get("model_type", ""))
    refuse_unknown_modalities(config, known)
    towers = {m: tower_without_weights(parsed, m, chosen) for m in known if m in graphs}
    plans = plan_towers(towers, config, max_num_tokens, torch.device(device))
    return EncoderPlan(
        model=parsed["model_type"] if isinstance(source, Mapping) else str(source),
        device=device,
        dtype=str(chosen).removeprefix("torch."),
        towers=plans,
        total_bytes=sum(plan.total_bytes for plan in plans),
    )
