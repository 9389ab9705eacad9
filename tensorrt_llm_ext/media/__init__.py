# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The one place that opens a URL or a file, or decodes what a request brings."""

from ..llmapi.media_limits import MediaLimits
from .door import MediaDoor
from .errors import MediaError
from .part import MediaPart

__all__ = ["MediaDoor", "MediaError", "MediaLimits", "MediaPart"]
