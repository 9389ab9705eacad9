# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The one name of upstream that is wrapped, so that capture runs at its place in the engine.

Where upstream has ``setup_mm_encoder_cuda_graphs`` (#20213), that is the place. Before, it is
``PyTorchModelEngine._init_model_capacity``: called once by the constructor, after the encoders'
metadata and before anything is sized. If neither looks as expected, the towers capture when
upstream's mixin calls ``set_attn_max_seq_len``, its last word to an encoder before sizing; then the
configured budget is known only from ``LLM(...)``, ``trtllm-ext serve`` or the entry itself. If that
is missing too, there is no place, and nothing is registered.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from torch import nn

from .config import Settings
from .lifecycle import (
    capture_model,
    capture_once,
    refuse_without_towers,
    settings_of,
    towers_of,
)
from .probe import ENCODER, MODEL_ENGINE, Missing, find, parameters_of
from .ranks import Ranks
from .tower import HostTower

SETUP = "setup_mm_encoder_cuda_graphs"
CAPACITY = "_init_model_capacity"
LAST_CALL = "set_attn_max_seq_len"
MARK = "__tensorrt_llm_ext__"
"""Attribute of what is ours: the wrapped name, and classes of models."""
_BUDGETS = ("configured_encoder_max_num_tokens", "encoder_max_num_tokens", "max_num_tokens")


@dataclass(frozen=True)
class Hook:
    """Where capture runs.

    Attributes:
        kind: Upstream's own set-up, the engine's constructor, or the towers themselves.
        owner: What the wrapped name belongs to; None for the towers.
        name: The name.
        notes: Why it is not the first choice.
    """

    kind: Literal["setup", "capacity", "towers"]
    owner: Any
    name: str
    notes: tuple[str, ...] = ()

    @property
    def installed(self) -> bool:
        """Whether the name is wrapped."""
        return self.owner is None or hasattr(getattr(self.owner, self.name), MARK)

    def install(self) -> None:
        """Wraps the name, once."""
        if self.installed:
            return
        original = getattr(self.owner, self.name)
        wrapper = _around_setup(original) if self.kind == "setup" else _around_capacity(original)
        setattr(wrapper, MARK, True)
        setattr(self.owner, self.name, wrapper)


def choose_hook() -> Hook | Missing:
    """The hook for the installed version, or why there is none."""
    engine_module = find(MODEL_ENGINE)
    notes = []
    if not engine_module:
        notes.append(engine_module.reason)
    else:
        setup = getattr(engine_module, SETUP, None)
        if setup is not None:
            if "model" in parameters_of(setup):
                return Hook("setup", engine_module, SETUP)
            notes.append(f"{SETUP}{inspect.signature(setup)} has no parameter 'model'")
        engine = getattr(engine_module, "PyTorchModelEngine", None)
        capacity = getattr(engine, CAPACITY, None)
        if capacity is None:
            notes.append(f"{MODEL_ENGINE}:PyTorchModelEngine.{CAPACITY} is not there")
        elif parameters_of(capacity) != ("self",):
            notes.append(f"{CAPACITY}{inspect.signature(capacity)} takes more than self")
        elif setup is None:  # upstream's own set-up would capture our towers too
            return Hook("capacity", engine, CAPACITY)
    last = find(f"{ENCODER}:MultimodalEncoderMixin.{LAST_CALL}")
    if last and "max_seq_len" in parameters_of(last) and not hasattr(engine_module, SETUP):
        return Hook("towers", None, LAST_CALL, tuple(notes))
    if not last:
        notes.append(last.reason)
    return Missing("no place to capture: " + "; ".join(notes))


def _around_capacity(original: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(original)
    def capture_first(engine: Any) -> None:
        if not getattr(engine, "is_draft_model", False):
            _capture_for(engine)
        original(engine)

    return capture_first


def _takes_part(model: nn.Module) -> bool:
    """Whether every rank of the model is here: it is of a class of ours, which each looked up.

    A process that never needed this package has no hook, and would not answer.
    """
    return hasattr(type(model), MARK) or bool(towers_of(model))


def _capture_for(engine: Any) -> None:
    args = engine.llm_args
    if not _takes_part(engine.model):
        refuse_without_towers(args)
        return
    ranks = Ranks.of(getattr(engine, "dist", None), getattr(engine, "mapping", None))
    capture_model(engine.model, lambda: settings_of(args), ranks, args)


def _around_setup(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def capture_instead(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        llm_args = next((v for v in given.values() if hasattr(v, "multimodal_config")), None)
        config = next((v for v in given.values() if hasattr(v, "encoder_cuda_graph")), None)

        def find_settings() -> Settings:
            settings = settings_of(llm_args, config)
            if settings.max_num_tokens is not None:
                return settings
            budget = next((given[name] for name in _BUDGETS if given.get(name)), None)
            return settings.model_copy(update={"max_num_tokens": budget})

        model = given["model"]
        if not _takes_part(model):
            refuse_without_towers(llm_args)
            return original(*args, **kwargs)
        built_for = getattr(getattr(model, "model_config", None), "mapping", None)
        ranks = Ranks.of(given.get("dist"), given.get("mapping", built_for))
        capture_model(model, find_settings, ranks, llm_args)
        return None if towers_of(model) else original(*args, **kwargs)

    return capture_instead


def capture_at_last_call(
    tower_ref: weakref.ref[HostTower], anchor_ref: weakref.ref[nn.Module]
) -> None:
    """What a tower does in the third kind of hook.

    Args:
        tower_ref: Ours, the model's only one. It keeps this call: a strong reference would keep
            the model, and with it the graphs.
        anchor_ref: The module of upstream's that holds it.

    Raises:
        ValueError: An entry needs the configured budget, and nothing here knows it.
    """
    tower, anchor = tower_ref(), anchor_ref()
    if tower is None or anchor is None:
        return
    towers = {tower.encoder_cuda_graph_modality: tower}
    find_settings = partial(_settings_of_tower, tower.multimodal_config)
    capture_once(towers, anchor, find_settings, Ranks.of(mapping=tower.mapping))


def _settings_of_tower(multimodal_config: Any) -> Settings:
    settings = settings_of(multimodal_config=multimodal_config)
    for modality, entry in settings.graphs.items():
        if settings.max_num_tokens is None and entry.max_batch_size and not entry.max_num_tokens:
            raise ValueError(
                f"encoder_cuda_graph.{modality}.max_batch_size needs the configured encoder "
                "budget, which this version of TensorRT-LLM gives no access to: set max_num_tokens "
                "beside it, use buckets, or start by `trtllm-ext serve` or tensorrt_llm_ext.LLM"
            )
    return settings
