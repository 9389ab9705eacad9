# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The life of a server process: bind, load, serve, drain."""

from __future__ import annotations

from ..llmapi.llm_args import LlmArgs
from .options import HttpOptions


def run(args: LlmArgs, http: HttpOptions | None = None) -> int:
    """Serve a model until SIGTERM or SIGINT.

    The port is taken before weights are loaded. A first signal lets running requests finish within
    the grace period; a second one ends the process at once. While the model loads, one is enough.

    Args:
        args: The model and how it runs, as for ``LLM``.
        http: Address, limits and logs.

    Returns:
        Exit code: 0 after a drain, 1 after an error (one line of it is on stderr), 128 plus the
        signal's number where there was nothing to drain or no time.
    """
    raise NotImplementedError
