# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Registers with TensorRT-LLM as soon as somebody imports it, and no sooner.

Importing upstream takes long and prints to standard output, which ``$(trtllm-ext module-dir)`` and
everybody who only plans or validates must not meet. So ``import tensorrt_llm_ext`` waits for it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

UPSTREAM = "tensorrt_llm"
DISABLE = "TRTLLM_EXT_DISABLE"


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
    """Registers now where upstream is loaded, else when it will be; off where disabled."""
    if disabled() or any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    module = sys.modules.get(UPSTREAM)
    if module is None:
        if installed():
            sys.meta_path.insert(0, _Finder())
    elif not _is_loading(module):
        _register()


def _is_loading(module: ModuleType) -> bool:
    return bool(getattr(module.__spec__, "_initializing", False))


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
    from .registration import register
    from .serve import refuse_uncarried_keys

    refuse_uncarried_keys(register().active)


class _Finder(MetaPathFinder):
    """Sees upstream's import; finds nothing itself.

    It stays until upstream is loaded: many only ask whether that could be (``find_spec``), and an
    import may fail and be tried again.
    """

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname != UPSTREAM:
            return None
        for finder in sys.meta_path:
            look = getattr(finder, "find_spec", None)
            spec = None if look is None or finder is self else look(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


class _Loader(Loader):
    """Upstream's loader, and our registration after it."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader  # what others look at
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        _stop_watching()
        _register()
