# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""One picture, video or clip of a request, as the request gives it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from .budget import Budget

Modality = Literal["image", "video", "audio"]


@dataclass
class MediaPart:
    """One picture, video or clip of a request.

    Attributes:
        modality: What it is to be.
        source: Bytes of a file; or a data URL, an http(s) URL, a file URL or an absolute path.
        budget: What is left to the request that it belongs to; set by :meth:`MediaDoor.check`.
    """

    modality: Modality
    source: str | bytes = field(repr=False)
    budget: Budget | None = field(default=None, init=False, repr=False, compare=False)
