# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""What ``encode`` returns for an item."""

from __future__ import annotations

from typing import Any


class ItemOutput(dict[str, Any]):
    """Outputs of one item by name, also as attributes; the tensors are the caller's own."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no output {name!r}; there are {sorted(self)}") from None
