# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Notices weights that moved: a graph goes on reading the address it was captured with.

Values written into a parameter are seen by a replay. A parameter that is rebound (``.data =``,
``.to()``, ``load_state_dict(assign=True)``, a merged adapter) is not, and nothing would fail.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import getitem
from typing import Any

import torch
from torch import nn


class WeightAddresses:
    """Addresses of a module's parameters and buffers at one moment.

    To look at some hundred tensors takes as long as all else that ``encode`` does on the host, so
    it looks after the launch. For that the memory has to outlive a rebinding: it is kept until
    ``moved`` has seen one. From then on a look comes first.
    """

    def __init__(self, module: nn.Module) -> None:
        """Takes them down."""
        slots = [
            (tensors, name)
            for part in module.modules()
            for tensors in (part._parameters, part._buffers)
            for name, tensor in tensors.items()
            if tensor is not None
        ]
        self._dicts = [tensors for tensors, _ in slots]
        self._names = [name for _, name in slots]
        self._addresses = self._now()
        self._kept = [tensor.detach() for tensor in self._tensors()]

    def kept_on(self, device: torch.device) -> bool:
        """Whether the weights, all on one device, can be read at these addresses as they were."""
        return bool(self._kept) and self._kept[0].device == device

    def moved(self) -> bool:
        """Whether one of them is somewhere else now, or gone."""
        try:
            moved = self._now() != self._addresses
        except (KeyError, TypeError):  # a slot is gone, or holds None
            moved = True
        if moved:
            self._kept = []
        return moved

    def _now(self) -> list[int]:
        return list(map(torch.Tensor.data_ptr, self._tensors()))  # all of it in C

    def _tensors(self) -> Iterable[Any]:
        return map(getitem, self._dicts, self._names)


class WeightVersions(WeightAddresses):
    """Addresses, torch's count of writes to each tensor, and the modules that hold them.

    For what was computed from weights and is kept. Not counted by torch, so not noticed: writes
    through ``.data`` or ``numpy()``, and to weights that were made in inference mode.
    """

    def __init__(self, module: nn.Module) -> None:
        """Takes them down."""
        self._children = [
            (part._modules, name, child)
            for part in module.modules()
            for name, child in part._modules.items()
        ]
        super().__init__(module)

    def changed(self) -> bool:
        """Whether a weight was written or moved, or a module replaced, since."""
        return self.moved() or any(d.get(name) is not m for d, name, m in self._children)

    def _now(self) -> list[int]:
        return [*super()._now(), *map(_version, self._tensors())]


def _version(tensor: torch.Tensor) -> int:
    try:
        return tensor._version
    except RuntimeError:  # made in inference mode; is_inference() forgets that once it is rebound
        return 0
