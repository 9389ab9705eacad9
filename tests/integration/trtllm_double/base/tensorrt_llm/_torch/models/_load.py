# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double only: a ``ModelConfig`` from a parsed config and the loader's keywords."""

from __future__ import annotations

from typing import Any

from ..model_config import ModelConfig


def config_for(pretrained: Any, **kwargs: Any) -> ModelConfig[Any]:
    text = getattr(pretrained, "llm_config", None)
    if text is not None:
        text.vocab_size = getattr(text, "vocab_size", 64)
        text.dtype = getattr(text, "dtype", "float32")
        pretrained.dtype = text.dtype
    known = {k: v for k, v in kwargs.items() if k in ModelConfig.__dataclass_fields__}
    return ModelConfig(pretrained_config=pretrained, **known)
