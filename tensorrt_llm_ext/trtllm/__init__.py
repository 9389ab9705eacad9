# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The binding to TensorRT-LLM, and the only place that imports it.

Upstream's own models with our towers as their encoders, registered out of tree; one wrapped name of
upstream runs the capture. Nothing here ran in the real engine: it was written against upstream's
public source and is tested against doubles of its interface (``tests/integration/trtllm_double``),
on CPU, under the static-buffer graph backend.

Importing this package imports nothing of upstream; its names are looked up on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_EXPORTS = {
    "HandOver": "serve",
    "Refusal": "serve",
    "expand": "expand",
    "module_dir": "arrival",
    "register": "registration",
    "serve_command": "serve",
    "wants_hand_over": "serve",
}

__all__ = [
    "HandOver",
    "Refusal",
    "expand",
    "module_dir",
    "register",
    "serve_command",
    "wants_hand_over",
]

if TYPE_CHECKING:
    from .arrival import module_dir
    from .expand import expand
    from .registration import register
    from .serve import HandOver, Refusal, serve_command, wants_hand_over


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_EXPORTS[name]}", __name__), name)
