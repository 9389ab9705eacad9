# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Fused blocks against the blocks as modules, on CPU through the references of ``ops``."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tensorrt_llm_ext.ops.attention import BlockMaskAttention, SegmentAttention
from tensorrt_llm_ext.ops.packed_metadata import PackedAttnMetadata, make_metadata
from tensorrt_llm_ext.towers import packed_blocks
from tensorrt_llm_ext.towers.loading import allocate_weights, tower_without_weights
from tensorrt_llm_ext.towers.packed_blocks import PackedBlocks
from tensorrt_llm_ext.towers.packed_vit import (
    AxialRope,
    Fp32Constant,
    PackedViTConfig,
    part_of,
)

CPU = torch.device("cpu")
LENGTHS = (7, 1, 12, 4)
TOKENS = sum(LENGTHS)
SIZES: dict[str, Any] = {"depth": 3, "width": 48, "num_heads": 3, "mlp_width": 80}
QWEN: dict[str, Any] = {}
RADIO: dict[str, Any] = {"activation": "gelu", "rope_theta": None}
GLM_4: dict[str, Any] = {
    "activation": "silu",
    "norm": "rms",
    "attention_bias": False,
    "gated_mlp": True,
    "mlp_bias": False,
}
GLM_5 = {**GLM_4, "attention_bias": True, "mlp_bias": True, "qk_norm": True, "gate_limit": 0.5}
ONE_BIAS = {"attention_bias": False, "mlp_bias": True}
KNOBS = {"qwen": QWEN, "radio": RADIO, "glm 4": GLM_4, "glm 5": GLM_5, "one bias": ONE_BIAS}

TOWER = {
    "model_type": "qwen3_vl",
    "vision_config": {
        "depth": 2,
        "hidden_size": 48,
        "num_heads": 3,
        "intermediate_size": 80,
        "out_hidden_size": 32,
        "deepstack_visual_indexes": [0],
    },
}


def make_blocks(knobs: dict[str, Any], dtype: torch.dtype = torch.float32) -> PackedBlocks:
    blocks = PackedBlocks(PackedViTConfig(**{**SIZES, **knobs}))
    for name, parameter in blocks.named_parameters():
        torch.nn.init.normal_(parameter, std=0.3)
        if "norm" in name and name.endswith("weight"):
            parameter.data += 1
    return blocks.requires_grad_(False).to(dtype)


def make_layout(attention: Any = None) -> PackedAttnMetadata:
    metadata = make_metadata(
        attention or SegmentAttention(),
        num_tokens=TOKENS,
        max_segments=len(LENGTHS),
        max_segment_len=max(LENGTHS),
        device=CPU,
    )
    metadata.refresh(LENGTHS)
    return metadata


def run(
    blocks: PackedBlocks, x: torch.Tensor, attention: Any = None, **how: Any
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    c = blocks.config
    angles = None
    if c.rope_theta is not None:
        positions = torch.arange(2 * TOKENS, dtype=torch.int32).view(TOKENS, 2) % 11
        angles = AxialRope(c.head_dim, c.rope_theta)(positions)
    *tapped, out = (y.clone() for y in blocks.run(x.clone(), angles, make_layout(attention), **how))
    return out, tapped


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


@pytest.mark.parametrize("knobs", KNOBS.values(), ids=KNOBS)
def test_fused_blocks_are_the_plain_ones(knobs: dict[str, Any]) -> None:
    blocks = make_blocks(knobs)
    x = torch.randn(TOKENS, SIZES["width"])
    plain, plain_taps = run(blocks, x, fused=False, taps=(0, 2))
    fused, fused_taps = run(blocks, x, fused=True, taps=(0, 2))
    assert relative(fused, plain) < 1e-6
    assert len(plain_taps) == 2
    for tapped, expected in zip(fused_taps, plain_taps, strict=True):
        assert relative(tapped, expected) < 1e-6


@pytest.mark.parametrize("knobs", KNOBS.values(), ids=KNOBS)
@pytest.mark.parametrize("limit", ["bytes of the mlp", "rows", "both"])
def test_slices_of_rows(knobs: dict[str, Any], limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = make_blocks(knobs)
    x = torch.randn(TOKENS, SIZES["width"])
    whole, whole_taps = run(blocks, x, fused=True, taps=(1,))
    normed, products = [], []

    def norm_spy(x: torch.Tensor, *args: Any, **how: Any) -> torch.Tensor:
        normed.append(x.shape[0])
        return normalise(x, *args, **how)

    def accumulate_spy(x: torch.Tensor, part: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        products.append(part.shape[0])
        return accumulate(x, part, weight)

    over_queries = []

    class Noting(SegmentAttention):
        def __call__(self, q: torch.Tensor, *args: Any, out: Any = None) -> torch.Tensor:
            over_queries.append(out.data_ptr() == q.data_ptr())
            return super().__call__(q, *args, out=out)

    normalise, accumulate = packed_blocks.normalise, packed_blocks.accumulate_
    monkeypatch.setattr(packed_blocks, "normalise", norm_spy)
    monkeypatch.setattr(packed_blocks, "accumulate_", accumulate_spy)
    monkeypatch.setattr(packed_blocks, "_ROW_STEP", 5)
    if limit != "rows":
        monkeypatch.setattr(packed_blocks, "_SLICE_BYTES", (80 + 48) * 4 * (TOKENS - 1))
    if limit != "bytes of the mlp":
        monkeypatch.setattr(packed_blocks, "_SLICE_ROWS", TOKENS // 2 - 1)
    sliced, taps = run(blocks, x, fused=True, taps=(1,), attention=Noting())
    assert over_queries == [limit != "bytes of the mlp"] * SIZES["depth"]
    rows = [TOKENS] if limit == "bytes of the mlp" else [10, 10, 4]
    inner = [TOKENS] if limit == "rows" else [15, 9]
    assert normed == [*rows, *inner] * SIZES["depth"]
    assert products == [TOKENS, *inner] * SIZES["depth"]  # what attention leaves is not cut
    assert relative(sliced, whole) < 1e-6
    assert relative(taps[0], whole_taps[0]) < 1e-6


@pytest.mark.parametrize("knobs", KNOBS.values(), ids=KNOBS)
def test_bf16_error_is_not_above_that_of_plain_blocks(knobs: dict[str, Any]) -> None:
    """Biases stay out of the rounded residual, and more is computed in fp32."""
    ratios = []
    for seed in range(5):
        torch.manual_seed(seed)
        blocks = make_blocks(knobs)
        x = torch.randn(TOKENS, SIZES["width"])
        half = make_blocks(knobs, torch.bfloat16)
        half.load_state_dict({k: v.bfloat16() for k, v in blocks.state_dict().items()})
        blocks.load_state_dict({k: v.float() for k, v in half.state_dict().items()})
        exact, _ = run(blocks, x.bfloat16().float(), fused=False)
        plain, _ = run(half, x.bfloat16(), fused=False)
        fused, _ = run(half, x.bfloat16(), fused=True)
        ratios.append(relative(fused, exact) / relative(plain, exact))
    assert sorted(ratios)[2] < 1.05


def test_new_biases_are_seen() -> None:
    """The sum of skipped biases is made by every run."""
    blocks = make_blocks(QWEN)
    x = torch.randn(TOKENS, SIZES["width"])
    run(blocks, x, fused=True)
    for block in blocks:
        block.mlp.linear_fc2.bias += 1
        block.attn.proj.bias -= 2
    assert relative(run(blocks, x, fused=True)[0], run(blocks, x, fused=False)[0]) < 1e-6


def test_cpu_runs_plain_blocks_unless_asked() -> None:
    blocks = make_blocks(QWEN)
    x = torch.randn(TOKENS, SIZES["width"])
    assert torch.equal(run(blocks, x)[0], run(blocks, x, fused=False)[0])


@pytest.mark.parametrize("fused", [False, True])
def test_fp16_is_clamped(fused: bool) -> None:
    blocks = make_blocks({**RADIO, "clamp_fp16": True}).half()
    for block in blocks:
        block.mlp.linear_fc2.weight.fill_(1e4)
    x = torch.randn(TOKENS, SIZES["width"]).half()
    (out,) = blocks.run(x, None, make_layout(BlockMaskAttention()), fused=fused)
    assert torch.isfinite(out).all()
    assert out.abs().max() == 64512  # 65504 - 1000 as fp16 has it


class Scaled(torch.nn.Module):
    """A projection that somebody put in the place of another: its weight is computed."""

    def __init__(self, inner: torch.nn.Linear) -> None:
        super().__init__()
        self.inner = inner
        self.bias = inner.bias

    @property
    def weight(self) -> torch.Tensor:
        return self.inner.weight * 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.weight, self.bias)


def test_a_part_is_what_the_attribute_is() -> None:
    block = make_blocks(GLM_4)[0]
    block.attn.proj = Scaled(block.attn.proj)
    for module, name in (
        (block, "attn"),
        (block.attn.qkv, "weight"),
        (block.attn.qkv, "in_features"),
        (block.attn, "heads"),
    ):
        assert part_of(module, name) is getattr(module, name)
    assert part_of(block.attn.qkv, "bias") is None
    assert torch.equal(part_of(block.attn.proj, "weight"), block.attn.proj.weight)
    with pytest.raises(AttributeError, match="gate"):
        part_of(block, "gate")


@pytest.mark.parametrize("knobs", KNOBS.values(), ids=KNOBS.keys())
def test_what_a_block_is_made_of_is_looked_up_in_every_run(knobs: dict[str, Any]) -> None:
    """Parameters that are rebound, modules that are replaced."""
    blocks = make_blocks(knobs)
    x = torch.randn(TOKENS, SIZES["width"])
    before = run(blocks, x, fused=True)[0]
    attn, mlp = blocks[1].attn, blocks[1].mlp
    gain = torch.nn.Parameter(torch.rand(SIZES["width"]), requires_grad=False)
    changes = [
        lambda: setattr(attn, "proj", Scaled(attn.proj)),
        lambda: setattr(attn, "qkv", Scaled(attn.qkv)),
        lambda: setattr(mlp, "linear_fc1", Scaled(mlp.linear_fc1)),
        lambda: setattr(mlp, "linear_fc2", Scaled(mlp.linear_fc2)),
        lambda: setattr(blocks[1], "norm2", make_blocks(knobs)[0].norm2),
        lambda: setattr(blocks[1].norm1, "weight", gain),
    ]
    for change in changes:
        change()
        after = run(blocks, x, fused=True)[0]
        assert relative(after, run(blocks, x, fused=False)[0]) < 1e-6
        assert relative(after, before) > 1e-3
        before = after


# ---- weights laid out for the kernels ----------------------------------------------------------


def test_an_mlp_width_is_filled_up_and_nothing_changes() -> None:
    mlp = make_blocks(QWEN)[0].mlp
    before = {name: value.clone() for name, value in mlp.state_dict().items()}
    mlp.lay_out_weights(torch.zeros(mlp.room_needed))
    filled = mlp.filled_up()
    assert filled is not None
    assert [t.shape for t in filled] == [(128, 48), (128,), (48, 128)]
    assert not any(t.any() for t in (filled.first[80:], filled.bias[80:], filled.second[:, 80:]))
    for name, value in mlp.state_dict().items():
        assert torch.equal(value, before[name])
    assert mlp.room_needed == 0  # once is enough


@pytest.mark.parametrize("name", ["linear_fc1.weight", "linear_fc1.bias", "linear_fc2.weight"])
def test_filled_up_weights_are_given_up_when_one_is_rebound(name: str) -> None:
    mlp = make_blocks(QWEN)[0].mlp
    mlp.lay_out_weights(torch.zeros(mlp.room_needed))
    parameter = mlp.get_parameter(name)
    parameter.data = parameter.data.clone()
    assert mlp.filled_up() is None


def test_a_cast_lets_go_of_the_memory_that_weights_were_in() -> None:
    mlp = make_blocks(QWEN)[0].mlp
    mlp.lay_out_weights(torch.zeros(mlp.room_needed))
    kept = mlp._filled_up
    mlp.to(torch.float32)
    assert mlp._filled_up is kept is not None
    mlp.to(torch.float16)
    assert mlp._filled_up is None


def test_fused_blocks_read_the_filled_up_weights() -> None:
    """In place updates reach them; a rebound parameter is read where it is."""
    blocks = make_blocks(QWEN)
    x = torch.randn(TOKENS, SIZES["width"])
    for block in blocks:
        block.mlp.lay_out_weights(torch.zeros(block.mlp.room_needed))
    for change in ("nothing", "in place", "rebound"):
        mlp = blocks[1].mlp
        if change == "in place":
            mlp.linear_fc1.weight.mul_(1.5)
            mlp.linear_fc2.weight.add_(0.1)
        elif change == "rebound":
            mlp.linear_fc1.weight.data = mlp.linear_fc1.weight.data * 2
            assert mlp.filled_up() is None
        else:
            mlp.filled_up().first[80:] = 9.0  # seen: it is these that are read
            assert relative(run(blocks, x, fused=True)[0], run(blocks, x, fused=False)[0]) < 1e-6
            mlp.filled_up().second[:, 80:] = 1.0
            assert relative(run(blocks, x, fused=True)[0], run(blocks, x, fused=False)[0]) > 1e-3
            mlp.filled_up().second[:, 80:] = 0.0
        assert relative(run(blocks, x, fused=True)[0], run(blocks, x, fused=False)[0]) < 1e-6


@pytest.mark.parametrize(
    "knobs", [{"mlp_width": 128}, GLM_5, {"mlp_bias": False}], ids=["even", "gated", "no bias"]
)
def test_what_is_not_filled_up(knobs: dict[str, Any]) -> None:
    mlp = make_blocks(knobs)[0].mlp
    assert mlp.room_needed == 0


def test_weights_are_laid_out_where_there_are_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = make_blocks(QWEN)
    blocks.lay_out_weights(CPU)
    assert blocks[0].mlp.filled_up() is None  # CPU
    monkeypatch.setattr(packed_blocks, "has_kernels", lambda *where: True)
    monkeypatch.setattr(packed_blocks, "_MLPS_AT_ONCE", 2)
    blocks.lay_out_weights(CPU)
    filled = [block.mlp.filled_up() for block in blocks]
    assert all(weights is not None for weights in filled)
    storages = {weights.first.untyped_storage().data_ptr() for weights in filled}
    assert len(storages) == 2  # of two blocks, and the third's
    blocks.lay_out_weights(CPU)
    assert [block.mlp.filled_up() for block in blocks] == filled


def test_tables_follow_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are on the host, not on device meta, and ask where an empty tensor would go."""
    asked = []
    apply = Fp32Constant._apply

    def spy(self: Fp32Constant, fn: Any, recurse: bool = True) -> Any:
        asked.append(fn(torch.empty(0)).device.type)
        return apply(self, fn, recurse)

    tower = tower_without_weights(TOWER)
    monkeypatch.setattr(Fp32Constant, "_apply", spy)
    allocate_weights(tower, "meta")
    assert asked
    assert set(asked) == {"meta"}


def test_weights_get_memory_where_they_are_laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is moved, so nothing leaves a hole: an allocation of its own is never freed."""
    monkeypatch.setattr(packed_blocks, "has_kernels", lambda *where: True)
    tower = tower_without_weights(TOWER)
    allocate_weights(tower, CPU)
    places = {name: p.data_ptr() for name, p in tower.named_parameters()}
    assert all(p.device == CPU and not p.requires_grad for p in tower.parameters())
    assert all(block.mlp.filled_up() is not None for block in tower.blocks)
    tower.lay_out_weights()
    assert {name: p.data_ptr() for name, p in tower.named_parameters()} == places
