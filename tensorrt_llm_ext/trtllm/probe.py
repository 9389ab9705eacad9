# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""What the installed TensorRT-LLM has: names and signatures, as values with reasons."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Missing:
    """A name that is not there.

    Attributes:
        reason: What was looked for and what was met.
    """

    reason: str

    def __bool__(self) -> bool:
        return False


MODELING_UTILS = "tensorrt_llm._torch.models.modeling_utils"
ENCODER = "tensorrt_llm._torch.models.modeling_multimodal_encoder"
MODEL_MIXIN = "tensorrt_llm._torch.models.modeling_multimodal_mixin"
MODEL_ENGINE = "tensorrt_llm._torch.pyexecutor.model_engine"
LLM_ARGS = "tensorrt_llm.llmapi.llm_args"
INPUTS = "tensorrt_llm.inputs.registry"
ATTENTION = ("tensorrt_llm._torch.attention.backends", "tensorrt_llm._torch.attention_backend")
MPI_GATHER = "tensorrt_llm._utils:mpi_allgather"
NCCL_WINDOWS = (
    "tensorrt_llm._torch.pyexecutor.nccl_window_graph",
    "tensorrt_llm._torch.nccl_window_graph",
)


def find(*names: str) -> Any:
    """The first of several names that is there.

    Args:
        names: ``module`` or ``module:attribute.attribute`` each.

    Returns:
        The value, or `Missing`: whatever an import raises is a reason, not an end. A module of
        upstream's loads libraries and asks drivers.
    """
    reasons = []
    for name in names:
        module, _, path = name.partition(":")
        try:
            value: Any = import_module(module)
            for attribute in path.split(".") if path else ():
                value = getattr(value, attribute)
        except (Exception, SystemExit) as error:  # noqa: BLE001  (see Returns)
            reasons.append(f"{name} ({type(error).__name__}: {error})")
        else:
            return value
    return Missing("not found: " + ", ".join(reasons))


def parameters_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Names of a function's parameters, in order; () where it has no readable signature."""
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return ()


def takes(function: Callable[..., Any], *args: Any, **named: Any) -> bool:
    """Whether a function could be called so; it is not called."""
    try:
        inspect.signature(function).bind(*args, **named)
    except (TypeError, ValueError):
        return False
    return True


def contract_error() -> type[ValueError]:
    """Upstream's error for an encoder that breaks the item contract, or one of ours before it."""
    name = "MultimodalEncoderContractError"
    found = find(f"{ENCODER}:{name}", f"{MODEL_MIXIN}:{name}")
    return found if isinstance(found, type) else ItemContractError


class ItemContractError(ValueError):
    """An item, or an encoder's output for it, is not what was declared."""
