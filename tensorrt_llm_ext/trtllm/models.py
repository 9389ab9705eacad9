# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Upstream's models with our towers as their encoders.

Each is a subclass made for the installed version. Upstream's constructor builds everything as it
does; then the encoder's place is taken. A worker process imports this module by name when it looks
a model up, which registers there what is registered here.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from ..towers.loading import allocate_weights, tower_without_weights
from ..towers.radio import RadioConfig, RadioTower
from ..towers.registry import tower_entry
from .hook import MARK, Hook, capture_at_last_call
from .probe import find
from .tower import DeepstackGridHost, GridHost, HostTower, RadioHost

logger = logging.getLogger(__name__)

_RADIO_PREFIXES = ("radio_model.",)
_CONDITIONER = {r"input_conditioner\.norm_(mean|std)": None}  # upstream's processor does that


class CannotTakeOverError(ValueError):
    """A model's encoder is one that our towers do not compute."""


@dataclass(frozen=True)
class Family:
    """Models whose encoders sit at the same place.

    Attributes:
        architectures: Of config.json.
        owner: Attribute of the model with upstream's wrapper of the encoder.
        place: Attribute of the wrapper with the encoder.
        host: What takes its place.
        takes_all_weights: The wrapper is given the whole checkpoint, renames keys for upstream's
            encoder, and is kept from that; else upstream passes ours its part.
    """

    architectures: tuple[str, ...]
    owner: str
    place: str
    host: type[HostTower]
    takes_all_weights: bool


FAMILIES = (
    Family(
        ("Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration"),
        "mm_encoder",
        "visual",
        DeepstackGridHost,
        True,
    ),
    Family(
        (
            "Glm5NextForConditionalGeneration",
            "Glm4vForConditionalGeneration",
            "Glm4vMoeForConditionalGeneration",
        ),
        "mm_encoder",
        "visual",
        GridHost,
        True,
    ),
    Family(
        (
            "NemotronH_Nano_VL_V2",
            "NemotronH_Nano_Omni_Reasoning_V3",
            "NemotronH_Omni_Reasoning_V3",
        ),
        "vision_encoder",
        "vision_model",
        RadioHost,
        False,
    ),
)


def model_class(upstream: type[Any], family: Family, mixin: type[Any], hook: Hook) -> type[Any]:
    """A subclass of upstream's model whose encoder is ours.

    Args:
        upstream: The model's class.
        family: Where its encoder sits.
        mixin: Upstream's ``MultimodalEncoderMixin``.
        hook: Where capture runs.
    """

    def __init__(self: Any, model_config: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        config = config_of(model_config)  # before upstream narrows it to the language model's
        upstream.__init__(self, model_config, *args, **kwargs)
        owner = getattr(self, family.owner, None)
        if owner is not None:  # else switched off, or in another process
            _take_over_or_leave(owner, config, family, mixin, hook, model_config)

    return _subclass(upstream, {"__init__": __init__})


def encoder_class(upstream: type[Any], family: Family, mixin: type[Any], hook: Hook) -> type[Any]:
    """A subclass of upstream's wrapper, for a process that runs the encoder alone.

    Args:
        upstream: The wrapper's class.
        family: Where the encoder sits in it.
        mixin: Upstream's ``MultimodalEncoderMixin``.
        hook: Where capture runs.
    """

    def __init__(self: Any, model_config: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        config = config_of(model_config)
        upstream.__init__(self, model_config, *args, **kwargs)
        if not hasattr(self, "config"):  # what the engine asks its model for; GLM's has none
            self.config = model_config.pretrained_config.vision_config
        _take_over_or_leave(self, config, family, mixin, hook, model_config)

    return _subclass(upstream, {"__init__": __init__})


def _subclass(upstream: type[Any], members: Mapping[str, Any]) -> type[Any]:
    # Upstream sends workers the module's name, and looks decorated classes up by theirs.
    doc = f"{upstream.__name__} with our towers."
    made = {**members, "__module__": __name__, "__doc__": doc, MARK: True}
    return type(upstream.__name__, (upstream,), made)


def config_of(model_config: Any) -> dict[str, Any]:
    """A model's config.json, from upstream's configuration of it.

    Args:
        model_config: Has ``pretrained_config``.
    """
    pretrained = model_config.pretrained_config
    return dict(pretrained.to_dict() if hasattr(pretrained, "to_dict") else vars(pretrained))


def _take_over_or_leave(owner: nn.Module, *how: Any) -> None:
    try:
        take_over(owner, *how)
    except CannotTakeOverError as error:
        logger.warning("upstream's encoder stays, without graphs of ours: %s", error)


def take_over(
    owner: nn.Module,
    config: Mapping[str, Any],
    family: Family,
    mixin: type[Any],
    hook: Hook,
    model_config: Any,
) -> HostTower:
    """Puts a tower of ours where an encoder of upstream's is.

    Args:
        owner: Upstream's wrapper of the encoder.
        config: Parsed config.json.
        family: Where the encoder sits in it.
        mixin: Upstream's ``MultimodalEncoderMixin``.
        hook: Where capture runs.
        model_config: Upstream's, for what it says about the encoders and parallelism.

    Returns:
        What is there now.

    Raises:
        CannotTakeOverError: Ours computes something else.
    """
    theirs = getattr(owner, family.place, None)
    if not isinstance(theirs, nn.Module):
        raise CannotTakeOverError(f"{type(owner).__name__} has no encoder at .{family.place}")
    weight = next(iter(theirs.parameters()))
    build = partial(_build_radio, theirs) if family.host is RadioHost else partial(_build, config)
    # Upstream builds models under a dispatch mode that forbids to fill tensors. Modes are a
    # thread's own.
    with ThreadPoolExecutor(1) as pool:
        tower, prefixes = pool.submit(build, weight.dtype).result()
    allocate_weights(tower, weight.device)  # on meta, upstream makes it real with everything else
    host: HostTower = _bound(family.host, mixin)(tower, prefixes)
    host.multimodal_config = getattr(model_config, "multimodal_config", None)
    host.mapping = getattr(model_config, "mapping", None)
    if hook.kind == "towers":
        host.at_last_call = partial(capture_at_last_call, weakref.ref(host), weakref.ref(owner))
    setattr(owner, family.place, host.eval())
    if family.takes_all_weights:
        owner.load_weights = host.load_weights  # type: ignore[assignment]
    return host


def _build(config: Mapping[str, Any], dtype: torch.dtype) -> tuple[nn.Module, tuple[str, ...]]:
    try:
        tower: nn.Module = tower_without_weights(config, "image", dtype)
    except ValueError as error:
        raise CannotTakeOverError(str(error)) from error
    return tower, tower_entry(config["model_type"], "image").prefixes


def _build_radio(theirs: Any, dtype: torch.dtype) -> tuple[nn.Module, tuple[str, ...]]:
    """RADIO, of the sizes that upstream found out: its configuration names a timm model."""
    try:
        config = _radio_config(theirs)
    except (AttributeError, KeyError, TypeError) as error:
        raise CannotTakeOverError(
            f"this RADIO is not built as tensorrt_llm_ext knows it: {type(error).__name__}: {error}"
        ) from error
    with torch.device("meta"):
        tower = RadioTower(config, conditioned=False)
    tower.disk_ignored = {**RadioTower.disk_ignored, **_CONDITIONER}
    tower.to(dtype).requires_grad_(False).eval()
    return tower, _RADIO_PREFIXES


def _radio_config(theirs: Any) -> RadioConfig:
    vit = theirs.radio_model.model
    patches = vit.patch_generator
    if patches.temporal_patch_size > 1:
        raise CannotTakeOverError(
            f"this RADIO joins {patches.temporal_patch_size} video frames before it embeds them, "
            "which tensorrt_llm_ext does not"
        )
    if not isinstance(vit.norm, nn.Identity) or not patches.cpe_mode:
        raise CannotTakeOverError(
            "this RADIO has a final norm or a position table of one size, which tensorrt_llm_ext "
            "does not compute"
        )
    # Sizes of the modules are a rank's share under tensor parallelism.
    sizes = find(f"{type(theirs).__module__}:VIT_TIMM_CONFIG_BY_NAME")[theirs.config.args["model"]]
    return RadioConfig(
        hidden_size=sizes.embed_dim,
        num_hidden_layers=sizes.depth,
        num_attention_heads=sizes.num_attention_heads,
        mlp_ratio=sizes.intermediate_size / sizes.embed_dim,
        layer_norm_eps=vit.blocks[0].norm1.eps,
        patch_size=vit.patch_size,
        max_img_size=patches.num_rows * vit.patch_size,
        num_cls_tokens=patches.num_cls_tokens,
        num_registers=patches.num_registers,
        summary_idxs=(0,),
    )


def _bound(host: type[HostTower], mixin: type[Any]) -> Callable[..., HostTower]:
    """The class with upstream's mixin as a base, last: it answers only what ours does not."""
    return type(host.__name__, (host, mixin), {"__module__": __name__, "__doc__": host.__doc__})


def architectures() -> Sequence[str]:
    """All that a family names."""
    return [name for family in FAMILIES for name in family.architectures]
