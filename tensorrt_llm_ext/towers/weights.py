# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Notices weights that moved: a graph goes on reading the address it was captured with.

Values written into a parameter are seen by a replay. A parameter that is rebound (``.data =``,
``.to()``, ``load_state_dict(assign=True)``, a merged adapter) is not, and nothing would fail.
"""

from __future__ import annotations

from torch import nn


class WeightAddresses:
    """Addresses of a module's parameters and buffers at one moment."""

    def __init__(self, module: nn.Module) -> None:
        """Takes them down."""
        self._slots = [
            (tensors, name)
            for part in module.modules()
            for tensors in (part._parameters, part._buffers)
            for name, tensor in tensors.items()
            if tensor is not None
        ]
        self._addresses = self._now()

    def moved(self) -> bool:
        """Whether one of them is somewhere else now, or gone."""
        return self._now() != self._addresses

    def _now(self) -> list[int]:
        # In the path of every replay: 0.1 us a tensor.
        return [-1 if (t := d.get(name)) is None else t.data_ptr() for d, name in self._slots]
