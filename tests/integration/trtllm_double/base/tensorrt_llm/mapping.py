# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``tensorrt_llm.mapping``: ranks and parallel sizes."""

from __future__ import annotations


class Mapping:
    def __init__(
        self,
        world_size: int = 1,
        rank: int = 0,
        gpus_per_node: int = 8,
        *,
        tp_size: int = 1,
        pp_size: int = 1,
        enable_attention_dp: bool = False,
    ) -> None:
        if tp_size * pp_size != world_size:
            raise ValueError(f"world_size must equal to tp_size * pp_size, but got {world_size}")
        self.world_size, self.rank, self.gpus_per_node = world_size, rank, gpus_per_node
        self.tp_size, self.pp_size = tp_size, pp_size
        self.enable_attention_dp = enable_attention_dp
        self.cp_config: dict[str, object] = {}

    @property
    def tp_rank(self) -> int:
        return self.rank % self.tp_size

    @property
    def pp_rank(self) -> int:
        return self.rank // self.tp_size

    def has_pp(self) -> bool:
        return self.pp_size > 1

    def is_first_pp_rank(self) -> bool:
        return self.pp_rank == 0
