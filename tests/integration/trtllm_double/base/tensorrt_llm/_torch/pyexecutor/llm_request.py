# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of the encoder's part of ``pyexecutor/llm_request.py``."""

from __future__ import annotations

import enum
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any


class MultimodalEncoderRequestError(RuntimeError):
    def __init__(self, message: str, *, request_ids: set[int] | None = None) -> None:
        super().__init__(message)
        self.request_ids = request_ids


class MultimodalEncoderProgress(enum.Enum):
    PENDING = "pending"
    READY = "ready"


@dataclass
class MultimodalEncoderRequestState:
    embedding_lengths: list[int]
    encoder_token_lengths: list[int]
    item_cache_keys: list[Hashable] = field(default_factory=list)
    progress: MultimodalEncoderProgress = MultimodalEncoderProgress.PENDING


@dataclass
class LlmRequest:
    request_id: int
    py_multimodal_data: dict[str, Any] | None = None
    py_mm_encoder_state: MultimodalEncoderRequestState | None = None
