# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Vision towers of every family, small enough for hundreds of tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from make_tiny_checkpoint import make_tiny_checkpoint
from tower_oracle import VisionOracle

_COMMON: dict[str, Any] = {
    "depth": 3,
    "hidden_size": 64,
    "num_heads": 2,
    "intermediate_size": 96,
    "out_hidden_size": 40,
    "patch_size": 4,
}
_QWEN = {**_COMMON, "num_position_embeddings": 49}
_QWEN3_VL = {**_QWEN, "deepstack_visual_indexes": [0, 1]}
_OMNI = {**_QWEN, "deepstack_visual_indexes": [1, 0]}
_QWEN2_VL = {
    "depth": 3,
    "embed_dim": 64,
    "num_heads": 2,
    "mlp_ratio": 2,
    "hidden_size": 40,
    "patch_size": 4,
}
_WINDOWS = {"window_size": 24, "fullatt_block_indexes": [1]}  # 3 x 3 merged tokens
_GLM4 = {**_COMMON, "image_size": 28, "intermediate_size": 56}  # a 7 x 7 table; merger's width

VISION: dict[str, dict[str, Any]] = {
    "qwen3_vl": _QWEN3_VL,
    "qwen3_vl_moe": _QWEN3_VL,
    "qwen3_5": _QWEN,
    "qwen3_5_moe": _QWEN,
    "qwen2_vl": _QWEN2_VL,
    "qwen2_5_vl": {**_COMMON, **_WINDOWS},
    "glm4v": _GLM4,
    "glm4v_moe": _GLM4,
    "glm46v": _GLM4,
    "glm46v_moe": _GLM4,
    "glm_ocr": _COMMON,
    "glm5_next": {**_COMMON, "projection_intermediate_size": 48, "swiglu_limit": 0.3},
    "qwen3_omni": _OMNI,
    "qwen3_omni_thinker": _OMNI,
}


def save(
    family: str, folder: Path, seed: int = 0, dtype: str = "float32", **vision: Any
) -> VisionOracle:
    """Makes a model of a family; its vision config may be changed."""
    vision = {**VISION[family], **vision}
    return VisionOracle(make_tiny_checkpoint(folder, family, seed, dtype=dtype, vision=vision))
