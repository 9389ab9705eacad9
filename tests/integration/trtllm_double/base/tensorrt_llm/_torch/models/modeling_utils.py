# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``models/modeling_utils.py``: registries, their override rule, and loading helpers."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from tensorrt_llm.logger import logger

from ._arch_index import MODEL_ARCH_TO_MODULE, is_builtin_zoo_module

MODEL_CLASS_MAPPING: dict[str, type] = {}
DRAFT_MODEL_BUILDER_MAPPING: dict[Any, Callable[..., Any]] = {}
MODEL_CLASS_VISION_ENCODER_MAPPING: dict[str, tuple[type, type | None]] = {}
MODEL_CLASS_MAPPER_MAPPING: dict[str, type] = {}
MODEL_CLASS_CHECKPOINT_WEIGHT_LOADER_DEFAULT_MAPPING: dict[str, type] = {}
MODEL_CLASS_CONFIG_LOADER_DEFAULT_MAPPING: dict[str, type] = {}
CHECKPOINT_LOADER_FORMAT_DEFAULT_MAPPING: dict[str, type] = {}

_ARCH_REGISTRIES: dict[str, dict[str, Any]] = {
    "model class": MODEL_CLASS_MAPPING,
    "vision encoder": MODEL_CLASS_VISION_ENCODER_MAPPING,
}
_MODULE_REGISTRATIONS: dict[str, list[tuple[str, str, Any]]] = {}
_REGISTERED_ARCHS_ATTR = "_registered_architectures"
_EXTERNAL_ARCH_TO_MODULE: dict[str, str] = {}


class MetaInitException(RuntimeError):  # noqa: N818
    pass


class MetaInitMode(TorchDispatchMode):
    """Parameters made inside are on the meta device; other use of meta tensors is an error."""

    aten = torch.ops.aten
    init_ops = {aten.empty.memory_format, aten.empty_like.default}  # noqa: RUF012
    harmless_ops = {  # noqa: RUF012
        aten.normal_.default,
        aten.uniform_.default,
        aten.log.default,
        aten.fill_.Scalar,
        aten.zero_.default,
    }

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in self.init_ops:
            kwargs["device"] = torch.device("meta")
        elif func not in self.harmless_ops and any(
            isinstance(x, torch.Tensor) and x.is_meta for x in tree_iter((args, kwargs))
        ):
            raise MetaInitException(f"Meta tensor used in unsupported function: {func}")
        return func(*args, **kwargs)


def _apply_arch_registration(registry_name: str, arch: str, value: Any, module_name: str) -> None:
    """Built-in classes fill empty slots only; everything else overwrites."""
    registry = _ARCH_REGISTRIES[registry_name]
    existing = registry.get(arch)
    if existing is not None and existing != value and is_builtin_zoo_module(module_name):
        logger.info(f"Keeping {registry_name} registration of {arch}")
        return
    registry[arch] = value


def _record_arch_registration(registry_name: str, arch: str, value: Any, module_name: str) -> None:
    _MODULE_REGISTRATIONS.setdefault(module_name, []).append((registry_name, arch, value))
    _apply_arch_registration(registry_name, arch, value, module_name)


def register_auto_model(name: str) -> Callable[[type], type]:
    def decorator(cls: type) -> type:
        archs = cls.__dict__.get(_REGISTERED_ARCHS_ATTR)
        if archs is None:
            archs = set()
            setattr(cls, _REGISTERED_ARCHS_ATTR, archs)
        archs.add(name)
        _record_arch_registration("model class", name, cls, getattr(cls, "__module__", ""))
        return cls

    return decorator


def register_vision_encoder(
    vision_encoder_cls: type[nn.Module], vlm_base_model: type[nn.Module] | None = None
) -> Callable[[type], type]:
    def wrapper(model_cls: type) -> type:
        archs = model_cls.__dict__.get(_REGISTERED_ARCHS_ATTR) or {
            arch for arch, known in MODEL_CLASS_MAPPING.items() if known is model_cls
        }
        if not archs:
            raise ValueError(
                f"register_vision_encoder: model class {model_cls.__name__} is not registered via "
                "register_auto_model; decorator order must ensure registration occurs first."
            )
        for arch in archs:
            _record_arch_registration(
                "vision encoder",
                arch,
                (vision_encoder_cls, vlm_base_model),
                getattr(model_cls, "__module__", ""),
            )
        return model_cls

    return wrapper


def export_external_model_modules() -> dict[str, str]:
    external = {
        arch: cls.__module__
        for arch, cls in MODEL_CLASS_MAPPING.items()
        if not is_builtin_zoo_module(getattr(cls, "__module__", ""))
    }
    for arch, module_name in _EXTERNAL_ARCH_TO_MODULE.items():
        external.setdefault(arch, module_name)
    return external


def _replay_provider(module_name: str, declared: dict[str, str]) -> None:
    for registry_name, arch, value in _MODULE_REGISTRATIONS.get(module_name, ()):
        if declared.get(arch, module_name) == module_name:
            _apply_arch_registration(registry_name, arch, value, module_name)


def register_external_model_modules(arch_to_module: dict[str, str]) -> None:
    declared = dict(arch_to_module)
    if declared == _EXTERNAL_ARCH_TO_MODULE:
        return
    _EXTERNAL_ARCH_TO_MODULE.clear()
    _EXTERNAL_ARCH_TO_MODULE.update(declared)
    for registry in _ARCH_REGISTRIES.values():
        registry.clear()
    for module_name in _MODULE_REGISTRATIONS:
        if is_builtin_zoo_module(module_name):
            _replay_provider(module_name, declared)
    for module_name in dict.fromkeys(declared.values()):
        _replay_provider(module_name, declared)


def _ensure_model_registered(model_arch: str) -> None:
    full_name = _EXTERNAL_ARCH_TO_MODULE.get(model_arch)
    if full_name is None:
        module_name = MODEL_ARCH_TO_MODULE.get(model_arch)
        if module_name is None:
            return
        full_name = f"tensorrt_llm._torch.models.{module_name}"
    try:
        importlib.import_module(full_name)
    except ModuleNotFoundError as error:
        if error.name != full_name:
            raise
        logger.warning(f"Lazy import of {full_name} for architecture {model_arch} failed")


def get_registered_model_class(model_arch: str) -> type[nn.Module] | None:
    if model_arch not in MODEL_CLASS_MAPPING:
        _ensure_model_registered(model_arch)
    return MODEL_CLASS_MAPPING.get(model_arch)


def get_registered_vision_encoder(
    model_arch: str,
) -> tuple[type[nn.Module], type | None] | None:
    if model_arch not in MODEL_CLASS_VISION_ENCODER_MAPPING:
        _ensure_model_registered(model_arch)
    return MODEL_CLASS_VISION_ENCODER_MAPPING.get(model_arch)


def register_draft_model(mode: Any) -> Callable[[Any], Any]:
    def decorator(builder: Any) -> Any:
        DRAFT_MODEL_BUILDER_MAPPING[mode] = builder
        return builder

    return decorator


def register_mapper(format: str, name: str | None = None) -> Callable[[type], type]:
    def decorator(cls: type) -> type:
        MODEL_CLASS_MAPPER_MAPPING[format if name is None else f"{name}_{format}"] = cls
        return cls

    return decorator


def _registering(registry: dict[str, type]) -> Callable[[str], Callable[[type], type]]:
    def register(name: str) -> Callable[[type], type]:
        def decorator(cls: type) -> type:
            registry[name] = cls
            return cls

        return decorator

    return register


register_checkpoint_weight_loader = _registering(
    MODEL_CLASS_CHECKPOINT_WEIGHT_LOADER_DEFAULT_MAPPING
)
register_checkpoint_loader = _registering(CHECKPOINT_LOADER_FORMAT_DEFAULT_MAPPING)
register_config_loader = _registering(MODEL_CLASS_CONFIG_LOADER_DEFAULT_MAPPING)


def filter_weights(prefix: str, weights: dict) -> dict:
    return {k[len(prefix) + 1 :]: v for k, v in weights.items() if k.startswith(prefix)}
