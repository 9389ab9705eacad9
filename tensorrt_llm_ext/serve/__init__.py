# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""An OpenAI-compatible HTTP server for the embedded engine.

``run`` is imported on first use: the options alone need none of the packages that serve.
"""

from typing import TYPE_CHECKING, Any

from .options import HttpOptions

if TYPE_CHECKING:
    from .server import run

__all__ = ["HttpOptions", "run"]


def __getattr__(name: str) -> Any:
    if name != "run":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .server import run

    return run
