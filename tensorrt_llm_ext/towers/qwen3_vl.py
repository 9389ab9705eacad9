# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The vision tower of Qwen3-VL (dense and MoE models), Qwen3-Omni and Qwen3.5.

Qwen3-Omni's has other names on disk, Qwen3.5's has no deepstack. Maths and checkpoint keys follow
the published checkpoints; transformers' towers are the oracle of the tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, cast

import numpy as np
import torch
from pydantic import AfterValidator, PositiveInt, model_validator
from torch import nn

from ..ops.kernels import has_kernels
from .checkpoint import parse_section
from .mergers import MergersTogether, PatchMerger, can_go_together
from .packed_vit import PackedViTConfig
from .registry import register_tower
from .vision import PatchGridConfig, PatchGridTower


def _square(value: int) -> int:
    if round(value**0.5) ** 2 != value:
        raise ValueError(f"{value} position embeddings do not form a square table")
    return value


class Qwen3VLVisionConfig(PatchGridConfig):
    """``vision_config`` of a checkpoint's config.json; keys without use here are ignored."""

    deepstack_visual_indexes: tuple[int, ...] = ()
    num_position_embeddings: Annotated[PositiveInt, AfterValidator(_square)] = 2304
    hidden_act: str = "gelu_pytorch_tanh"

    @model_validator(mode="after")
    def _check_deepstack(self) -> Qwen3VLVisionConfig:
        taps = self.deepstack_visual_indexes
        if len(set(taps)) != len(taps) or any(not 0 <= i < self.depth for i in taps):
            raise ValueError(
                f"deepstack_visual_indexes {list(taps)} have to be different blocks in "
                f"0..{self.depth - 1}"
            )
        return self

    def packed_vit(self) -> PackedViTConfig:
        """Knobs of the shared transformer."""
        return PackedViTConfig(
            depth=self.depth,
            width=self.hidden_size,
            num_heads=self.num_heads,
            mlp_width=self.intermediate_size,
            activation=self.hidden_act,
            rope_theta=self.rope_base,
        )


_TOGETHER = 256  # rows of a merger up to which all of them at the end take less time (H200)


class Qwen3VLVisionTower(PatchGridTower):
    """Patch rows to merged features and deepstack features."""

    num_taps = 4
    config: Qwen3VLVisionConfig

    def __init__(self, config: Qwen3VLVisionConfig) -> None:
        """Makes the modules; weights come from ``load_tower``."""
        super().__init__(config, config.packed_vit())
        self.pos_embed = nn.Embedding(config.num_position_embeddings, config.hidden_size)
        sizes = config.hidden_size, config.merge_unit, config.out_hidden_size
        self.merger = PatchMerger(*sizes, norm_after_join=False)
        self.deepstack_merger_list = nn.ModuleList(
            PatchMerger(*sizes, norm_after_join=True) for _ in config.deepstack_visual_indexes
        )
        self._together: MergersTogether | None = None

    @property
    def num_deepstack(self) -> int:  # type: ignore[override]
        """Deepstack outputs per item."""
        return len(self.config.deepstack_visual_indexes)

    def position_taps(self, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
        """Bilinear, corners aligned."""
        return self.table_taps(height, width, self.config.num_position_embeddings)

    def position_table(self) -> torch.Tensor:
        """See the base class.

        Returns:
            [rows, C], dtype of the weights.
        """
        return self.pos_embed.weight

    @property
    def taps(self) -> tuple[int, ...]:
        """Blocks that a deepstack output leaves."""
        return self.config.deepstack_visual_indexes

    def tap(self, index: int, x: torch.Tensor) -> torch.Tensor:
        """See the base class; the merger is picked by the index's place in the config's list.

        Args:
            index: The block.
            x: Its output [T, C], dtype of the weights.

        Returns:
            [T / U, O], dtype of the weights.
        """
        merged: torch.Tensor = self.deepstack_merger_list[self.taps.index(index)](x)
        return merged

    def tail(self, x: torch.Tensor) -> torch.Tensor:
        """See the base class.

        Args:
            x: [T, C], dtype of the weights.

        Returns:
            [T / U, O], dtype of the weights.
        """
        merged: torch.Tensor = self.merger(x)
        return merged

    # ---- all mergers at once ---------------------------------------------------------------

    @property
    def _mergers(self) -> list[PatchMerger]:
        """In the order of what leaves the blocks: of the taps, ascending, then the last."""
        taps = self.taps
        found = [self.deepstack_merger_list[taps.index(i)] for i in sorted(taps)]
        return cast(list[PatchMerger], [*found, self.merger])

    def _apply(self, fn: Any, recurse: bool = True) -> Qwen3VLVisionTower:
        module = super()._apply(fn, recurse)
        self._let_go_of_moved()
        return module

    def _let_go_of_moved(self) -> None:
        """Rebound, moved or cast weights are not in that memory any more: it is nobody's."""
        if self._together is not None and not self._together.serves(self._mergers):
            self._together = None

    def lay_out_weights(self, device: torch.device | None = None) -> None:
        """See the mixin."""
        super().lay_out_weights(device)
        self._let_go_of_moved()  # first: it holds as much memory as the next
        device, mergers = device or self.device, self._mergers
        usable = self.fused_layers is not False and has_kernels(device, self.dtype)
        if usable and self._together is None and can_go_together(mergers):
            self._together = MergersTogether(mergers, device)

    @property
    def few_tokens(self) -> int:
        """See the mixin."""
        return 0 if self._together is None else _TOGETHER * self.config.merge_unit

    def outputs_of(
        self, found: Iterator[torch.Tensor], num_tokens: int
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """See the base class.

        Args:
            found: Outputs of blocks, [T, C] each, dtype of the weights.
            num_tokens: T.

        Yields:
            ``deepstack_{i}`` and ``features``, [T / U, O] each, dtype of the weights.
        """
        mergers, together = self._mergers, self._together
        num_rows, own = num_tokens // self.config.merge_unit, Qwen3VLVisionTower
        usable = self.fused_layers is not False and num_rows <= _TOGETHER
        usable &= type(self).tap is own.tap and type(self).tail is own.tail
        if together is None or not usable or not together.serves(mergers):
            yield from super().outputs_of(found, num_tokens)
            return
        joined = together.room(num_rows)
        for merger, rows in zip(mergers, joined, strict=True):
            merger.join(next(found), out=rows)
        names = (*self._deepstack_names, "features")
        yield from zip(names, together.project(joined), strict=True)


class Qwen3OmniVisionTower(Qwen3VLVisionTower):
    """The same tower under the names of Qwen3-Omni's checkpoints."""

    disk_renames = {  # noqa: RUF012
        r"^deepstack_merger_list": "merger_list",
        r"^(merger.*)\.norm\.": r"\1.ln_q.",
        r"^(merger.*)\.linear_fc1\.": r"\1.mlp.0.",
        r"^(merger.*)\.linear_fc2\.": r"\1.mlp.2.",
    }


@register_tower("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", prefixes=("model.visual.",))
def _qwen3_vl_tower(config: Mapping[str, Any]) -> Qwen3VLVisionTower:
    return Qwen3VLVisionTower(parse_section(Qwen3VLVisionConfig, config, "vision_config"))


@register_tower("qwen3_omni_moe", "qwen3_omni_moe_thinker", prefixes=("thinker.visual.", "visual."))
def _qwen3_omni_tower(config: Mapping[str, Any]) -> Qwen3OmniVisionTower:
    path = ("thinker_config",) * ("thinker_config" in config)
    section = parse_section(Qwen3VLVisionConfig, config, *path, "vision_config")
    return Qwen3OmniVisionTower(section)
