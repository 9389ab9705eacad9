# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Memory that is free: one answer for all who ask.

On CUDA the driver is asked, because graphs hold memory that torch's allocator does not count. On a
CPU it is the host's available memory, or what a container's limit leaves of it.
"""

from __future__ import annotations

from pathlib import Path

import torch

_CGROUP = Path("/sys/fs/cgroup")


def free_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on a device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(device)[0])
    import psutil  # here, so that importing the towers needs torch, numpy and pydantic only

    available = int(psutil.virtual_memory().available)
    limit = _cgroup_value("memory.max")
    used = _cgroup_value("memory.current")
    if limit is not None and used is not None:
        available = min(available, max(limit - used, 0))
    return available


def _cgroup_value(name: str) -> int | None:
    path = _CGROUP / name
    if not path.is_file():
        return None
    text = path.read_text(encoding="ascii").strip()
    return int(text) if text.isdigit() else None
