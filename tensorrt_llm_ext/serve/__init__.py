# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""An OpenAI-compatible HTTP server for the embedded engine."""

from .options import HttpOptions
from .server import run

__all__ = ["HttpOptions", "run"]
