# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Floors are counted from the towers: against published numbers, and against torch's counter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from encoder_bench.floors import BYTES_PER_US, FLOPS_PER_US, work_of
from encoder_bench.layouts import Shapes
from published_towers import TOWERS, audio_items, vision_items
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tensorrt_llm_ext.towers.loading import tower_without_weights

CPU = torch.device("cpu")


def pictures(count: int, side: int) -> Shapes:
    return ((1, side, side),) * count


@pytest.mark.parametrize(
    ("shapes", "microseconds"),
    [
        (pictures(1, 8), 67),
        (pictures(1, 16), 277),
        (pictures(8, 16), 2214),
        (pictures(1, 32), 1231),
        (pictures(1, 64), 6905),
        (pictures(64, 16), 17711),
    ],
)
def test_blocks_of_qwen3_vl_8b(shapes: Shapes, microseconds: int) -> None:
    """FLOPs of the 27 blocks at 790 TFLOP/s, computed by others."""
    tower = tower_without_weights(TOWERS["qwen3_vl_8b"].config(), dtype=torch.bfloat16)
    assert round(work_of(tower, shapes).block_flops / FLOPS_PER_US) == microseconds


def test_bytes_are_weights_inputs_and_outputs() -> None:
    tower = tower_without_weights(TOWERS["qwen3_vl_8b"].config(), dtype=torch.bfloat16)
    work = work_of(tower, pictures(1, 16))
    layer = 3 * 1152**2 + 1152**2 + 2 * 1152 * 4304 + 3 * 1152 + 1152 + 4304 + 1152 + 4 * 1152
    merger = 4608**2 + 4608 + 4608 * 4096 + 4096
    weights = 27 * layer + 1536 * 1152 + 1152 + 4 * merger + 2 * 1152 + 3 * 2 * 4608
    rows = 256 * 1536 + 64 * 4 * 4096
    assert work.bytes == 2 * (weights + rows)
    assert work.bytes_us == work.bytes / BYTES_PER_US
    assert (work.tokens, work.segments) == (256, 1)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("qwen3_vl_8b", ((1, 4, 6), (3, 2, 2))),
        ("qwen3_omni_vision", ((1, 4, 4), (1, 2, 8))),
        ("glm_4_1v", ((1, 4, 6), (2, 4, 4))),
        ("qwen3_omni_audio", (300, 900)),
    ],
)
def test_flops_are_those_that_torch_counts(name: str, shapes: Shapes) -> None:
    tower, items = tiny(name, shapes)
    assert work_of(tower, shapes).flops == counted(tower, items)


def test_radio_embeds_patches_only() -> None:
    """Our tower multiplies the learned tokens' empty rows too; no floor asks for that."""
    shapes = ((1, 4, 4), (2, 2, 6))
    tower, items = tiny("radio_h", shapes)
    learned = 2 * 3 * 10 * tower.config.patch_dim * 64
    work = work_of(tower, shapes)
    assert work.flops == counted(tower, items) - learned
    assert (work.tokens, work.segments) == (16 + 24 + 3 * 10, 3)


def test_a_short_last_chunk_is_convolved_as_far_as_it_goes() -> None:
    tower, _ = tiny("qwen3_omni_audio", (300,))
    whole, short, shorter = (work_of(tower, (frames,)) for frames in (300, 201, 200))
    assert shorter.flops < short.flops < whole.flops
    assert (whole.tokens, short.tokens, shorter.tokens) == (39, 27, 26)
    assert work_of(tower, (3000,)).segments == 4


def counted(tower: Any, items: list[dict[str, Any]]) -> int:
    """Operations of an eager run; torch does not count its fused attention on a CPU."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        tower.encode(items, eager=True)
    return counter.get_total_flops()


def tiny(name: str, shapes: Shapes) -> tuple[Any, list[dict[str, Any]]]:
    published = TOWERS[name].tiny()
    tower = published.make_tower(CPU, torch.float32)
    if published.modality == "audio":
        return tower, audio_items(list(shapes), 0, CPU, torch.float32)
    dim = tower.config.patch_dim
    return tower, vision_items(dim, list(shapes), 0, name == "radio_h", CPU, torch.float32)
