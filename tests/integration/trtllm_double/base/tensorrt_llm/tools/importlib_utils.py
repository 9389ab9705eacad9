# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``tensorrt_llm.tools.importlib_utils`` (commit 12c8156278)."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def import_custom_module_from_file(custom_module_path: str | Path) -> ModuleType | None:
    path = Path(custom_module_path)
    spec = importlib.util.spec_from_file_location(path.stem, str(path))
    if spec is None or spec.loader is None:
        raise ImportError(f"Failed to import custom module from {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def import_custom_module_from_dir(custom_module_path: str | Path) -> ModuleType | None:
    path = Path(custom_module_path)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    try:
        return importlib.import_module(path.name)
    except ImportError as error:
        raise ImportError(f"Failed to import package {path.name} from {path}: {error}") from error


def import_custom_module(custom_module_path: str | Path) -> ModuleType | None:
    path = Path(custom_module_path)
    if path.is_file():
        return import_custom_module_from_file(path)
    if path.is_dir():
        return import_custom_module_from_dir(path)
    raise FileNotFoundError(f"Custom module path {path} does not exist.")
