# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``tensorrt_llm.inputs.multimodal``: what carries pixels from processor to encoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .. import _double

MULTIMODAL_ENCODER_ITEM_METADATA_KEY = "multimodal_encoder_item_metadata"


@dataclass
class MultimodalParams:
    multimodal_input: Any | None = None
    multimodal_data: dict[str, Any] | None = None
    multimodal_runtime: Any | None = None

    def has_content(self) -> bool:
        return bool(self.multimodal_input or self.multimodal_data)

    def to_device(
        self,
        element: str,
        device: str,
        pin_memory: bool = False,
        target_keywords: list[str] | None = None,
    ) -> None:
        """Moves the tensors named (``image.pixel_values``), or all; grids stay on the host."""
        target = _double.DEVICE if device == "cuda" else torch.device(device)
        data = getattr(self, element) or {}
        for modality, entry in data.items():
            if not isinstance(entry, dict):
                continue
            for key, value in entry.items():
                named = target_keywords is None or f"{modality}.{key}" in target_keywords
                if isinstance(value, torch.Tensor) and named:
                    entry[key] = value.to(target)


def strip_mm_encoder_inputs(multimodal_data: dict[str, Any] | None) -> None:
    for modality in ("image", "video", "audio"):
        (multimodal_data or {}).pop(modality, None)
