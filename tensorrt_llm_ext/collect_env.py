# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""What a bug report needs to know about a machine: versions, devices, backends, our variables.

Nothing that names the machine, its user or a secret.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = (
    "torch",
    "triton",
    "transformers",
    "tensorrt_llm",
    "numpy",
    "pydantic",
    "safetensors",
    "tokenizers",
    "click",
    "pyyaml",
)
_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING",
    "CUBLAS_WORKSPACE_CONFIG",
    "HF_HUB_OFFLINE",
    "OMP_NUM_THREADS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TRITON_INTERPRET",
)
_PREFIX = "TRTLLM_EXT_"
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)
_DRIVER = Path("/proc/driver/nvidia/version")


def collect() -> dict[str, Any]:
    """Gathers everything.

    Returns:
        ``versions``, ``system``, ``devices``, ``backends``, ``hosts`` and ``environment``, plain
        values only.
    """
    return {
        "versions": _versions(),
        "system": {
            "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
            "cpus": os.cpu_count(),
            "memory_bytes": _memory_bytes(),
        },
        "devices": _devices(),
        "backends": _backends(),
        "hosts": _hosts(),
        "environment": environment(os.environ),
    }


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables that change what this package does.

    Args:
        variables: All of them.

    Returns:
        Those of ours (``TRTLLM_EXT_*``) and a few of torch's, CUDA's and the Hub client's. Where
        the name speaks of a secret the value is only said to be set; the home folder is ``~``.
    """
    home = variables.get("HOME", "")
    shown = {}
    for name, value in sorted(variables.items()):
        if not name.startswith(_PREFIX) and name not in _VARIABLES:
            continue
        if _SECRET.search(name):
            value = "(set, not shown)"
        elif len(home) > 1:
            value = value.replace(home, "~")
        shown[name] = value
    return shown


def render(facts: Mapping[str, Any]) -> str:
    """The facts as text for a terminal.

    Args:
        facts: What ``collect`` returned.
    """
    lines = []
    for section, content in facts.items():
        lines.append(f"{section}:")
        if not content:
            lines.append("  none")
        elif isinstance(content, list):
            lines += [f"  {', '.join(f'{k}: {v}' for k, v in entry.items())}" for entry in content]
        else:
            lines += [f"  {name}: {value}" for name, value in content.items()]
    return "\n".join(lines)


def _versions() -> dict[str, str | None]:
    import torch

    from tensorrt_llm_ext import __version__

    versions: dict[str, str | None] = {
        "tensorrt_llm_ext": __version__,
        "python": f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}",
    }
    versions |= {name: _version_of(name) for name in _PACKAGES}
    cudnn = torch.backends.cudnn
    versions["cuda (torch's)"] = torch.version.cuda
    versions["cudnn"] = str(cudnn.version()) if cudnn.is_available() else None
    versions["nvidia driver"] = driver_version(_DRIVER)
    return versions


def _version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def driver_version(path: Path) -> str | None:
    """Version of NVIDIA's kernel driver.

    Args:
        path: The file in which it says so.

    Returns:
        The version, None without a driver.
    """
    if not path.is_file():
        return None
    found = re.search(r"\b\d+\.\d+(\.\d+)?\b", path.read_text(encoding="utf-8", errors="replace"))
    return found.group(0) if found else None


def _memory_bytes() -> int:
    import psutil

    return int(psutil.virtual_memory().total)


def _devices() -> list[dict[str, Any]]:
    import torch

    if not torch.cuda.is_available():
        return []
    devices = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        devices.append(
            {
                "device": f"cuda:{index}",
                "name": properties.name,
                "capability": f"{properties.major}.{properties.minor}",
                "memory_bytes": properties.total_memory,
                "free_bytes": torch.cuda.mem_get_info(index)[0],
            }
        )
    return devices


def _backends() -> dict[str, str]:
    import torch

    from tensorrt_llm_ext.graphs.backends import CudaGraphBackend
    from tensorrt_llm_ext.graphs.static_backend import StaticGraphBackend
    from tensorrt_llm_ext.ops.attention import attention_for

    def attention(kind: str) -> str:
        return attention_for(torch.device(kind), torch.bfloat16, captured=True).name

    return {
        "cpu": f"{StaticGraphBackend.name}, {attention('cpu')} attention in bfloat16",
        "cuda": f"{CudaGraphBackend.name}, {attention('cuda')} attention in bfloat16"
        if torch.cuda.is_available()
        else "not available: torch finds no CUDA device",
    }


def _hosts() -> dict[str, str]:
    """What can run a whole model."""
    available = {True: "available", False: "not available"}
    return {
        "torch": available[_version_of("transformers") is not None] + " (needs transformers)",
        "tensorrt_llm": available[_version_of("tensorrt_llm") is not None],
    }
