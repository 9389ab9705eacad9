# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""What the double has and upstream has not: a record of what happened, and measured memory."""

from __future__ import annotations

import gc
import json
import os
import threading
from typing import Any

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""Where upstream says ``"cuda"``."""
TOTAL_BYTES = int(os.environ.get("TRTLLM_DOUBLE_BYTES", 64 << 20))
"""Device memory that the double pretends to have without a GPU."""

events: list[dict[str, Any]] = []
rank = 0
_lock = threading.Lock()


def record(event: str, **details: Any) -> None:
    """Append an event; with ``TRTLLM_DOUBLE_LOG`` set, also as a line of JSON to that file."""
    entry = {"event": event, "pid": os.getpid(), "rank": rank, **details}
    with _lock:
        events.append(entry)
        path = os.environ.get("TRTLLM_DOUBLE_LOG")
        if path:
            with open(path, "a", encoding="utf-8") as log:
                log.write(json.dumps(entry, default=str) + "\n")


def names() -> list[str]:
    """Events by name, in order."""
    return [entry["event"] for entry in events]


def used_bytes() -> int:
    """Bytes of live tensors on the device, counted by storage (on a GPU: what the driver says)."""
    if DEVICE.type == "cuda":
        free, total = torch.cuda.mem_get_info()
        return total - free
    storages: dict[int, int] = {}
    for thing in gc.get_objects():
        # Lazy modules of other packages answer isinstance() with an import.
        if issubclass(type(thing), torch.Tensor) and thing.device.type == "cpu":
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def mem_get_info() -> tuple[int, int]:
    """(free, total) bytes, as ``torch.cuda.mem_get_info``."""
    if DEVICE.type == "cuda":
        return torch.cuda.mem_get_info()
    return max(TOTAL_BYTES - used_bytes(), 0), TOTAL_BYTES
