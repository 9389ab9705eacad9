# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Registers our models with TensorRT-LLM, all at once or not at all, and says what happened."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from . import models
from .arrival import DISABLE, disabled, follow, installed, is_loading
from .hook import Hook, choose_hook
from .models import FAMILIES, Family
from .probe import (
    ENCODER,
    INPUTS,
    MODEL_ENGINE,
    MODELING_UTILS,
    Missing,
    find,
    parameters_of,
    takes,
)

logger = logging.getLogger(__name__)

_ZOO = "tensorrt_llm._torch.models"


@dataclass(frozen=True)
class Finding:
    """What became of one architecture.

    Attributes:
        architecture: Of config.json.
        status: ``absent``: upstream does not have it.
        reason: More about it.
    """

    architecture: str
    status: Literal["registered", "absent", "refused"]
    reason: str = ""


@dataclass(frozen=True)
class Registration:
    """What there is now.

    Attributes:
        hook: Where capture runs; None where nothing is registered.
        findings: One for each architecture; none where nothing was tried.
        refusal: Why nothing is registered, "" where something is.
    """

    hook: Hook | None = None
    findings: tuple[Finding, ...] = ()
    refusal: str = ""

    @property
    def active(self) -> bool:
        """Whether upstream builds at least one model with our towers."""
        return any(finding.status == "registered" for finding in self.findings)


_done: Registration | None = None


def register() -> Registration:
    """Registers, the first time; imports TensorRT-LLM.

    Returns:
        What there is now, the same every time; but in the middle of an import of upstream's, that
        it registers when that is over.
    """
    global _done
    if disabled():
        return Registration(refusal=f"{DISABLE} is set")
    if _done is None:
        for name in half_loaded():
            follow(name)
            return Registration(refusal=f"{name} is still being imported; what is ours follows it")
        _done = _register()
        if _done.refusal:
            logger.warning("tensorrt_llm_ext registered nothing: %s", _done.refusal)
    return _done


def half_loaded() -> tuple[str, ...]:
    """Modules that registration needs and whose import has begun and is not over."""
    needed = {MODEL_ENGINE, ENCODER, MODELING_UTILS, INPUTS}
    packages = {name.rsplit(".", depth)[0] for name in needed for depth in range(1, 4)}
    return tuple(
        name
        for name in tuple(sys.modules)
        if (name in needed | packages or name.startswith(f"{_ZOO}.")) and is_loading(name)
    )


def _register() -> Registration:
    if not installed():
        return Registration(refusal="TensorRT-LLM is not installed")
    needed = {
        "mixin": find(f"{ENCODER}:MultimodalEncoderMixin"),
        "register": find(f"{MODELING_UTILS}:register_auto_model"),
        "register_encoder": find(f"{MODELING_UTILS}:register_vision_encoder"),
        "processors": find(
            f"{INPUTS}:INPUT_PROCESSOR_REGISTRY._input_processors_cls_by_model_type"
        ),
        "hook": choose_hook(),
    }
    missing = [value.reason for value in needed.values() if isinstance(value, Missing)]
    if missing:
        return Registration(refusal="; ".join(missing))
    if parameters_of(needed["register"]) != ("name",):
        return Registration(refusal="register_auto_model takes other arguments than a name")
    if not takes(needed["register_encoder"], None, vlm_base_model=None):
        return Registration(
            refusal="register_vision_encoder takes other arguments than a class and vlm_base_model"
        )
    hook: Hook = needed["hook"]
    findings: list[Finding] = []
    steps: list[Callable[[], None]] = []
    for family in FAMILIES:
        for architecture in family.architectures:
            finding, step = _prepare(architecture, family, needed, hook)
            findings.append(finding)
            steps += [step] if step is not None else []
    if not steps:
        reason = "; ".join(f"{f.architecture}: {f.reason or f.status}" for f in findings)
        return Registration(findings=tuple(findings), refusal=f"no model to register ({reason})")
    hook.install()
    for step in steps:
        step()
    return Registration(hook, tuple(findings))


def _prepare(
    architecture: str, family: Family, upstream: dict[str, Any], hook: Hook
) -> tuple[Finding, Callable[[], None] | None]:
    """Makes the classes of an architecture; what registers them cannot fail any more."""
    theirs, encoder, absent = built_in(architecture)
    current = registry("MODEL_CLASS_MAPPING").get(architecture)
    other = getattr(current, "__module__", models.__name__)
    if other != models.__name__ and other.split(".")[0] != "tensorrt_llm":
        reason = f"{other} registered another class for it"
        return Finding(architecture, "refused", reason), None
    if theirs is None:
        return Finding(architecture, "refused" if absent else "absent", absent), None
    mixin, processors = upstream["mixin"], upstream["processors"]
    ours = models.model_class(theirs, family, mixin, hook)

    def step() -> None:
        if theirs in processors:  # looked up by the very class
            processors[ours] = processors[theirs]
        upstream["register"](architecture)(ours)
        if encoder is not None:
            wrapper, base = encoder if isinstance(encoder, tuple) else (encoder, None)
            alone = models.encoder_class(wrapper, family, mixin, hook)
            upstream["register_encoder"](alone, vlm_base_model=base)(ours)

    return Finding(architecture, "registered"), step


def registry(name: str) -> dict[str, Any]:
    """One of upstream's registries; {} where there is none of the name."""
    found = find(f"{MODELING_UTILS}:{name}")
    return found if isinstance(found, dict) else {}


def built_in(architecture: str) -> tuple[Any, Any, str]:
    """What upstream itself has for an architecture.

    Not through its look-ups: in a worker they lead to this package, which is on its way in.

    Args:
        architecture: Of config.json.

    Returns:
        Model class, and wrapper of the encoder alone with its encoder, None each where there is
        none; and why there is no model class.
    """
    index = find(f"{_ZOO}._arch_index:MODEL_ARCH_TO_MODULE")
    provider = f"{_ZOO}.{index[architecture]}" if index and architecture in index else None
    if provider is not None:
        module = find(provider)  # registers by being imported
        if isinstance(module, Missing):
            return None, None, module.reason
        # Slots may be another's by now, or ours; what a module registered is kept beside them.
        records = registry("_MODULE_REGISTRATIONS").get(provider, ())
        recorded = {kind: value for kind, name, value in records if name == architecture}
        if "model class" in recorded:
            return recorded["model class"], recorded.get("vision encoder"), ""
    theirs = registry("MODEL_CLASS_MAPPING").get(architecture)
    if theirs is None or theirs.__module__ == models.__name__:
        return None, None, "" if theirs is None else "only ours is known here"
    return theirs, registry("MODEL_CLASS_VISION_ENCODER_MAPPING").get(architecture), ""
