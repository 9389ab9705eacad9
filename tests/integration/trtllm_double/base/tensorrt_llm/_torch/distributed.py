# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``_torch.distributed``: a communicator over torch.distributed (upstream's: MPI)."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist

from tensorrt_llm import _double
from tensorrt_llm.mapping import Mapping


class Distributed:
    def __init__(self, mapping: Mapping) -> None:
        self.mapping = mapping
        self.rank, self.tp_size, self.pp_size = mapping.rank, mapping.tp_size, mapping.pp_size
        self.world_size = mapping.world_size
        if self.world_size > 1 and not dist.is_initialized():
            os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
            dist.init_process_group("gloo", rank=self.rank, world_size=self.world_size)
            _double.record("process_group_up")

    def broadcast(self, obj: Any, root: int = 0) -> Any:
        box = [obj]
        if self.world_size > 1:
            dist.broadcast_object_list(box, src=root)
        return box[0]

    def allgather(self, obj: Any) -> list[Any]:
        if self.world_size == 1:
            return [obj]
        out: list[Any] = [None] * self.world_size
        dist.all_gather_object(out, obj)
        return out

    tp_allgather = allgather

    def shutdown(self) -> None:
        """Double only: upstream's groups end with the process."""
        if dist.is_initialized():
            dist.destroy_process_group()
        _double.record("process_groups_down")
