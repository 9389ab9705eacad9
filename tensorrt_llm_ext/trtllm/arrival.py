# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Registers with TensorRT-LLM as soon as somebody has imported it, and no sooner.

Importing upstream takes long and prints to standard output, which ``$(trtllm-ext module-dir)`` and
everybody who only plans or validates must not meet. So ``import tensorrt_llm_ext`` waits for it;
also where that happens in the middle of upstream's own import, by it or by another thread.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

logger = logging.getLogger(__name__)

UPSTREAM = "tensorrt_llm"
DISABLE = "TRTLLM_EXT_DISABLE"
_NOTE = "_initializing"
"""Attribute of a module's spec: its import has begun and is not over."""


def disabled() -> bool:
    """Whether the environment switches the binding off."""
    return os.environ.get(DISABLE, "") not in ("", "0")


def installed() -> bool:
    """Whether TensorRT-LLM could be imported; does not import it."""
    if UPSTREAM in sys.modules:
        return True
    try:
        return importlib.util.find_spec(UPSTREAM) is not None
    except (ImportError, ValueError):  # somebody put something odd into sys.modules
        return False


def available() -> bool:
    """Whether TensorRT-LLM could be the host; imports nothing."""
    return installed() and not disabled()


def module_dir() -> Path:
    """The folder for ``--custom_module_dirs``: this package."""
    return Path(__file__).resolve().parents[1]


def watch() -> None:
    """Registers now where upstream is loaded, else as soon as it is; off where disabled."""
    if disabled():
        return
    if UPSTREAM not in sys.modules:
        if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
            sys.meta_path.insert(0, _Finder())
    elif is_loading(UPSTREAM):
        follow(UPSTREAM)
    else:
        _register()


def is_loading(name: str) -> bool:
    """Whether a module's import has begun and is not over.

    Args:
        name: Of the module.
    """
    return bool(getattr(getattr(sys.modules.get(name), "__spec__", None), _NOTE, False))


def follow(name: str) -> None:
    """Watches again when the import of a module is over, however it ends.

    Args:
        name: Of a module whose import has begun.
    """
    spec = getattr(sys.modules.get(name), "__spec__", None)
    if spec is not None:
        _follow_spec(spec)


def register_now() -> Any:
    """Imports TensorRT-LLM and registers, on our own account.

    Returns:
        What ``registration.register`` does.
    """
    from .registration import register

    _stop_watching()
    return register()


def _stop_watching() -> None:
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]


def _register() -> None:
    from .registration import half_loaded, register
    from .serve import refuse_uncarried_keys

    registration = register()
    if not half_loaded():
        refuse_uncarried_keys(registration.active)


class _Followed(ModuleSpec):
    """A module's spec that notices the end of the import.

    The import system takes a note in the spec when it begins, and withdraws it in the thread that
    imports before anybody else gets the module. So nothing of an import is ours: not the loader,
    not the module, and the spec gets its class back.
    """

    own_class: type[ModuleSpec]

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == _NOTE and not value:
            self.__class__ = self.own_class  # type: ignore[assignment]
            _stop_watching()
            watch()


def _follow_spec(spec: ModuleSpec) -> None:
    own = type(spec)
    if issubclass(own, _Followed):
        return
    try:
        spec.__class__ = type(own.__name__, (_Followed, own), {"own_class": own})
    except TypeError as error:  # somebody's own kind of spec
        logger.warning(
            "tensorrt_llm_ext cannot see the end of the import of %s (%s): call "
            "tensorrt_llm_ext.trtllm.register() after it",
            spec.name,
            error,
        )


class _Finder(MetaPathFinder):
    """Sees upstream's import begin; finds nothing itself.

    It stays until upstream is loaded: many only ask whether that could be (``find_spec``), and an
    import may fail and be tried again.
    """

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname.startswith(f"{UPSTREAM}.") and is_loading(UPSTREAM):
            follow(UPSTREAM)  # a finder before this one found it
        if fullname != UPSTREAM:
            return None
        for finder in sys.meta_path:
            look = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = (
                None if look is None or finder is self else look(fullname, path, target)
            )
            if spec is not None:
                _follow_spec(spec)
                return spec
        return None
