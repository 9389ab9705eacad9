# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Rotary tables stay fp32 whatever the tower is cast to, and bf16 costs no more than it has to."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np
import pytest
import torch
from tower_oracle import VisionOracle

from tensorrt_llm_ext.ops.rope import rotate
from tensorrt_llm_ext.ops.taps import gather_taps
from tensorrt_llm_ext.towers import load_tower
from tensorrt_llm_ext.towers.grid import patch_positions, position_taps
from tensorrt_llm_ext.towers.packed_vit import AxialRope, Fp32Constant

from .checks import ORACLE, capture, relative_error, tensors, worst


def exact_tables(height: int, width: int, head_size: int) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin in fp64 from the formula: half of the frequencies per axis."""
    position = patch_positions(height, width, 2).astype(np.float64)
    spatial = head_size // 2
    frequencies = 10000.0 ** -(np.arange(0, spatial, 2) / spatial)
    angles = (position[:, :, None] * frequencies).reshape(len(position), -1)
    return np.cos(angles), np.sin(angles)


@pytest.mark.parametrize("how", ["loaded", "cast", "cast twice", "half()", "moved"])
@pytest.mark.parametrize("head_size", [64, 72])
def test_tables_are_exact_in_every_dtype(how: str, head_size: int, make_checkpoint: Any) -> None:
    folder = make_checkpoint(hidden_size=2 * head_size).folder
    tower = load_tower(folder, dtype=torch.bfloat16 if how == "loaded" else torch.float32)
    if how.startswith("cast"):
        tower = tower.to(torch.bfloat16)
    if how == "cast twice":
        tower = tower.to(torch.float32).bfloat16()
    if how == "half()":
        tower = tower.half()
    if how == "moved":
        tower = tower.to("cpu", torch.bfloat16)
    cos, sin = tower.rope(torch.from_numpy(patch_positions(64, 64, 2).copy())).tables()
    assert cos.dtype == sin.dtype == torch.float32
    for table, exact in zip((cos, sin), exact_tables(64, 64, head_size), strict=True):
        # 63 rows away, fp32 angles are off by 63 * 2^-24; bf16 frequencies would be off by 1e-2.
        assert np.abs(table.double().numpy() - exact).max() < 1e-5


def test_rotation_is_done_in_fp32() -> None:
    rope = AxialRope(64, 10000.0)
    cos, sin = rope(torch.from_numpy(patch_positions(16, 16, 2).copy())).tables()
    x = torch.randn(256, 3, 64).bfloat16()
    out = rotate(x, cos, sin)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, rotate(x.float(), cos, sin).bfloat16())
    norms = x.double().norm(dim=-1)
    assert torch.allclose(rotate(x.double().float(), cos, sin).double().norm(dim=-1), norms)


def test_position_table_is_mixed_in_fp32() -> None:
    """Rounding the weights to bf16 first, as some kernels do, would be off by 2e-3."""
    rows, weights = (torch.from_numpy(a.copy()) for a in position_taps(16, 10, 7, 2))
    table = torch.randn(49, 24).bfloat16()
    mixed = gather_taps(table, rows, weights)
    assert mixed.dtype == torch.float32
    exact = (table.double()[rows.long()] * weights.double()[:, :, None]).sum(1)
    assert torch.allclose(mixed.double(), exact, rtol=1e-6, atol=1e-6)


def test_transformers_agrees_on_rows_and_taps() -> None:
    """The host's geometry against transformers' own helpers, many grids and tables."""
    from transformers.vision_utils import (
        get_vision_interpolation_indices_and_weights,
        get_vision_position_ids,
    )

    for height, width, side in [(2, 2, 48), (64, 64, 48), (2, 100, 7), (30, 6, 16), (48, 48, 48)]:
        grid = torch.tensor([[1, height, width]])
        positions = patch_positions(height, width, 2)
        assert (positions == get_vision_position_ids(grid, 2).numpy()).all()
        taps, weights = position_taps(height, width, side, 2)
        theirs = get_vision_interpolation_indices_and_weights(
            grid, side, mode="bilinear", align_corners=True, spatial_merge_size=2
        )
        assert taps.min() >= 0
        assert taps.max() < side * side
        assert np.abs(weights.sum(1) - 1).max() < 1e-6
        table = torch.randn(side * side, 3, dtype=torch.float64)
        ours = (table[taps.astype(np.int64)] * torch.from_numpy(weights.copy())[:, :, None]).sum(1)
        expected = (table[theirs[0]] * theirs[1].double()[:, :, None]).sum(1)
        assert torch.allclose(ours, expected, atol=1e-5)
        for shared in (positions, taps, weights):
            assert not shared.flags.writeable


@pytest.mark.parametrize("head_size", [64, 72])
def test_bf16_error_is_no_larger_than_transformers(
    head_size: int, make_checkpoint: Any, make_batch: Any
) -> None:
    """Median over 5 seeds, against the fp32 oracle; transformers' rope tables kept in fp32."""
    ours: dict[str, list[float]] = {"eager": [], "replayed": []}
    theirs: list[float] = []
    for seed in range(5):
        shape = {"hidden_size": 2 * head_size, "depth": 4, "deepstack_visual_indexes": [0, 2]}
        fp32 = make_checkpoint(seed, "bfloat16", **shape)
        bf16 = VisionOracle(fp32.folder, torch.bfloat16)
        tower = load_tower(fp32.folder, dtype=torch.bfloat16)
        items = make_batch(tower, [(1, 12, 8), (2, 4, 6), (1, 2, 4)], seed)
        capture(tower, budget=256, buckets=[(256, 8)])
        pixels = [{**i, "pixel_values": i["pixel_values"].bfloat16().float()} for i in items]
        expected = fp32.ask(pixels)
        theirs.append(total_error(bf16.ask(pixels), expected))
        for name, eager in (("eager", True), ("replayed", False)):
            outputs = tower.encode(pixels, eager=eager)
            assert outputs[0].features.dtype == torch.bfloat16
            ours[name].append(total_error(outputs, expected))
        assert tower.encoder_stats().replays == {"256x8": 1}
    for name, errors in ours.items():
        ratio = statistics.median(errors) / statistics.median(theirs)
        assert ratio <= 1.05, f"{name}: {errors} against {theirs}"


def total_error(ours: Any, oracle: Any) -> float:
    """Relative L2 over all outputs of all items, each output tensor weighing the same."""
    errors = [
        relative_error(a, b)
        for own, expected in zip(ours, oracle, strict=True)
        for a, b in zip(tensors(own), tensors(expected), strict=True)
    ]
    return statistics.fmean(errors)


def test_bf16_checkpoint_into_an_fp32_tower(make_checkpoint: Any, make_batch: Any) -> None:
    checkpoint = make_checkpoint(7, "bfloat16")
    tower = load_tower(checkpoint.folder, dtype=torch.float32)
    assert {p.dtype for p in tower.parameters()} == {torch.float32}
    items = make_batch(tower, [(1, 4, 6)])
    assert worst(tower.encode(items), checkpoint.ask(items)) <= ORACLE


@pytest.mark.parametrize("kind", [torch.Tensor, torch.nn.Buffer])
def test_a_constant_is_never_cast(kind: Any) -> None:
    """A buffer of another module neither: a device that comes after a cast gets all its bits."""
    value = torch.rand(7)
    given = torch.nn.Buffer(value.clone(), persistent=False) if kind is not torch.Tensor else value
    constant = Fp32Constant(given)
    constant.to(torch.bfloat16)
    assert list(constant.buffers()) == []
    elsewhere = torch.device("cuda", 7)  # not there yet: what it would be copied from
    for device in (torch.device("cpu"), elsewhere):
        assert torch.equal(constant.on(device), value)
