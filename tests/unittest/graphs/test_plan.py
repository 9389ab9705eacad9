# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Plans of a tower on the meta device against what a capture of the same tower does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tensorrt_llm_ext import MultimodalConfig
from tensorrt_llm_ext.graphs.memory_model import memory_events, peak_bytes
from tensorrt_llm_ext.graphs.plan import (
    GRAPH_BYTES,
    EncoderPlan,
    TowerPlan,
    _beside_weights,
    plan_towers,
)
from tensorrt_llm_ext.ops.attention import attention_for
from tensorrt_llm_ext.ops.kernels import running_as_on

from .fakes import FakeAudioTower, FakeTower, captured_tower

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
MIB = 1 << 20


def empty(kind: type[FakeTower] = FakeTower) -> FakeTower:
    return kind().to("meta")


def plan(device=CPU, budget=256, **entry) -> TowerPlan:
    config = MultimodalConfig.model_validate(
        {"encoder_cuda_graph": {"image": entry or {"max_batch_size": 8}}}
    )
    return plan_towers({"image": empty()}, config, budget, device)[0]


def test_cpu_plan_is_what_the_capture_reports() -> None:
    report = captured_tower(256, max_batch_size=8).capture_encoder_cuda_graphs()
    planned = plan(max_batch_size=8)
    assert planned.total_bytes == planned.static_bytes == report.graph_memory_bytes
    assert (planned.arena_bytes, planned.pool_bytes, planned.graph_bytes) == (0, 0, 0)
    assert planned.attention == report.attention
    assert [b.model_dump() for b in planned.buckets] == [
        b.model_dump(include={"num_tokens", "max_segments", "max_segment_len"})
        for b in report.buckets
    ]


def test_nothing_is_planned_where_nothing_is_configured() -> None:
    nothing = EncoderPlan(model="m", device="cpu", dtype="float32")
    assert nothing.total_bytes == 0
    assert "No encoder graphs are configured" in nothing.render()


def test_weights_leave_room_in_their_segments_by_their_bytes() -> None:
    weights: Any = torch.nn.Linear(1024, 1200, bias=False)  # 4.7 of 20 MiB
    assert _beside_weights(weights, [12 * MIB]) == 0
    assert _beside_weights(weights, [16 * MIB]) == 16 * MIB


def test_intermediates_are_those_of_a_real_run() -> None:
    """Fake tensors come and go as real ones do, at the largest bucket."""
    tower = captured_tower(256, max_batch_size=8)
    bucket = tower.planned_buckets()[-1]
    adapter = tower.make_io_adapter()
    metadata = tower.make_metadata_provider().build(bucket, adapter.num_segment_slots(bucket))
    inputs = adapter.allocate_inputs(bucket.num_tokens, CPU)
    with torch.no_grad():
        events = memory_events(lambda: tower.encoder_forward(inputs, metadata))
    assert plan(budget=256, max_batch_size=8).activation_bytes == peak_bytes(events)
    assert peak_bytes(events) > 256**2  # the mask alone is bool [T, T]


class FewTokens(FakeTower):
    """Once its weights are laid out, up to 192 tokens take 32 MiB more."""

    laid_out_on: torch.device | None = None

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[int] = []

    @property
    def few_tokens(self) -> int:
        return 0 if self.laid_out_on is None else 192

    def lay_out_weights(self, device: torch.device | None = None) -> None:
        self.laid_out_on = device

    def encoder_forward(self, inputs: Any, metadata: Any) -> Any:
        tokens = len(inputs["x"])
        self.ran.append(tokens)
        room = torch.empty(32 * MIB * (tokens <= 192), dtype=torch.uint8)
        result = super().encoder_forward(inputs, metadata)
        del room
        return result


@pytest.mark.parametrize(("budget", "ran"), [(256, [256, 192]), (192, [192]), (200, [200, 192])])
def test_another_form_for_few_tokens_is_planned_too(budget: int, ran: list[int]) -> None:
    image = {"image": {"max_batch_size": 8}}
    config = MultimodalConfig.model_validate({"encoder_cuda_graph": image})
    tower: Any = FewTokens().to("meta")
    (planned,) = plan_towers({"image": tower}, config, budget, CUDA)
    assert (tower.ran, tower.laid_out_on) == (ran, CPU)
    assert 32 * MIB < planned.activation_bytes < 33 * MIB
    assert planned.pool_bytes >= 32 * MIB
    assert planned.static_bytes == plan(CUDA, budget, max_batch_size=8).static_bytes
    (planned,) = plan_towers({"image": FewTokens().to("meta")}, config, budget, CPU)
    assert (planned.arena_bytes, planned.pool_bytes, planned.graph_bytes) == (0, 0, 0)


def test_cuda_plan_is_made_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    tower = empty().to(torch.bfloat16)
    config = MultimodalConfig.model_validate(
        {"encoder_cuda_graph": {"image": {"buckets": [[128, 4], [256, 4]]}}}
    )
    (planned,) = plan_towers({"image": tower}, config, 256, CUDA)
    assert planned.attention == "tiles"
    assert planned.graph_bytes == 2 * GRAPH_BYTES
    assert planned.pool_bytes > 0
    assert planned.total_bytes == planned.arena_bytes + planned.pool_bytes + planned.graph_bytes
    assert attention_for(CPU, torch.bfloat16, captured=True).name == "block_mask"


def test_static_tensors_may_fit_beside_the_weights() -> None:
    """Small ones go where the weights' segments have room; the exact bytes are said anyway."""
    planned = plan(CUDA, budget=256, max_batch_size=8)
    assert planned.arena_bytes == 0
    assert 0 < planned.static_bytes < 2 * MIB
    huge = plan(CUDA, budget=1 << 20, buckets=[[1 << 18, 4]])
    assert huge.arena_bytes >= huge.static_bytes > 8 * MIB


def test_towers_share_a_pool_unless_they_are_capped() -> None:
    entry = {"max_batch_size": 8}

    def pools(**caps: int) -> list[int]:
        graphs = {m: {**entry, **caps} for m in ("image", "audio")}
        config = MultimodalConfig.model_validate({"encoder_cuda_graph": graphs})
        towers = {"image": empty(), "audio": empty(FakeAudioTower)}
        return [p.pool_bytes for p in plan_towers(towers, config, 256, CUDA)]

    first, second = pools()
    assert first > 0
    assert second == 0
    assert pools(max_graph_memory=64 * MIB) == [first, first]


def test_impossible_entry() -> None:
    with pytest.raises(ValueError, match="can never be replayed"):
        plan(buckets=[[33, 2]], enable_padding=False)


@pytest.mark.parametrize(
    ("limit", "exceeds", "said"),
    [
        (None, False, ""),
        (64 * MIB, True, "above max_graph_memory of 67,108,864 bytes"),
        (65 * MIB, False, ""),
        (0.25, False, "max_graph_memory 0.25 of the memory free at capture: not known here"),
    ],
)
def test_limit(limit: int | float | None, exceeds: bool, said: str) -> None:
    planned = plan().model_copy(update={"total_bytes": 65 * MIB, "max_graph_memory": limit})
    assert planned.exceeds_limit is exceeds
    text = EncoderPlan(model="m", device="cuda", dtype="bfloat16", towers=[planned]).render()
    assert said in text
    assert ("max_graph_memory" in text) is bool(said)


def test_render() -> None:
    planned = plan(CUDA, buckets=[[64, 2], [128, 4]])
    whole = EncoderPlan(
        model="dir", device="cuda", dtype="float32", towers=[planned], total_bytes=3 * MIB
    )
    text = whole.render()
    rows = [line.split() for line in text.splitlines()]
    assert ["64", "2", "any"] in rows
    assert ["128", "4", "any"] in rows
    assert "dir on cuda, float32" in text
    assert "2 buckets, block_mask attention" in text
    assert "(exact)" in text
    assert "Total: 3.0 MiB (estimate" in text
    assert EncoderPlan.model_validate_json(whole.model_dump_json()) == whole
    off = EncoderPlan(model="dir", device="cuda", dtype="float32").render()
    assert "nothing is captured or reserved" in off
    assert "Total" not in off


def test_assumed_device_is_for_the_block_only() -> None:
    with running_as_on(CUDA):
        assert attention_for(CPU, torch.bfloat16, captured=True).name == "tiles"
        assert attention_for(CPU, torch.float32, captured=True).name == "block_mask"
        with running_as_on(CPU):
            assert attention_for(CUDA, torch.bfloat16, captured=True).name == "block_mask"
    assert attention_for(CPU, torch.bfloat16, captured=False).name == "segments"
