# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""All mergers in one product against one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tensorrt_llm_ext import MultimodalConfig
from tensorrt_llm_ext.ops import kernels
from tensorrt_llm_ext.towers import load_tower, qwen3_vl
from tensorrt_llm_ext.towers.loading import allocate_weights, tower_without_weights
from tensorrt_llm_ext.towers.mergers import MergersTogether, PatchMerger

from .small import VISION

CPU = torch.device("cpu")
GRIDS = [(1, 4, 4), (2, 4, 6)]
TOKENS = 64


CONFIG = {"model_type": "qwen3_vl", "vision_config": VISION["qwen3_vl"]}


@pytest.fixture(autouse=True)
def _as_with_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of mergers are laid out on the CPU too."""
    monkeypatch.setattr(qwen3_vl, "has_kernels", lambda device, dtype: True)


def make_tower(family: str = "qwen3_vl", **vision: Any) -> Any:
    return load_tower({**CONFIG, "vision_config": {**VISION[family], **vision}}, init_std=0.05)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of every product of all mergers."""
    made: list[int] = []
    project = MergersTogether.project

    def spy(self: MergersTogether, joined: torch.Tensor) -> torch.Tensor:
        made.append(joined.shape[1])
        return project(self, joined)

    monkeypatch.setattr(MergersTogether, "project", spy)
    return made


def tensors(tower: Any, items: list[dict[str, Any]], **how: Any) -> list[torch.Tensor]:
    outputs = tower.encode(items, **how)
    return [t for out in outputs for t in (out.features, *out.deepstack)]


def assert_close(got: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for a, b in zip(got, expected, strict=True):
        assert ((a - b).norm() / b.norm()).item() < 1e-5


def one_by_one(tower: Any, items: list[dict[str, Any]]) -> list[torch.Tensor]:
    kept, tower._together = tower._together, None
    try:
        return tensors(tower, items, eager=True)
    finally:
        tower._together = kept


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen3_omni"])  # taps 0, 1 and 1, 0
def test_the_same_outputs(family: str, make_batch: Callable[..., Any], calls: list[int]) -> None:
    tower = make_tower(family)
    items = make_batch(tower, GRIDS)
    got = tensors(tower, items)
    assert calls == [TOKENS // 4]
    expected = one_by_one(tower, items)
    assert calls == [TOKENS // 4]
    assert_close(got, expected)


def test_moved_weights_keep_their_values() -> None:
    tower = tower_without_weights(CONFIG)
    tower.to_empty(device="cpu")
    for parameter in tower.parameters():
        nn.init.normal_(parameter)
    before = {name: value.clone() for name, value in tower.state_dict().items()}
    tower.lay_out_weights()
    assert tower._together.serves(tower._mergers)
    assert tower.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in tower.state_dict().items())
    places = {name: p.data_ptr() for name, p in tower.named_parameters()}
    tower.lay_out_weights()  # once is enough
    assert {name: p.data_ptr() for name, p in tower.named_parameters()} == places


def test_weights_get_memory_side_by_side_at_once() -> None:
    tower = tower_without_weights(CONFIG)
    allocate_weights(tower, CPU)
    mergers = [*tower.deepstack_merger_list, tower.merger]
    weights = [merger.linear_fc1.weight for merger in mergers]
    assert len({weight.untyped_storage().data_ptr() for weight in weights}) == 1
    assert all(p.device == CPU and not p.requires_grad for p in tower.parameters())


def test_many_tokens_are_merged_one_by_one(
    make_batch: Callable[..., Any], calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tower = make_tower()
    items = make_batch(tower, GRIDS)
    monkeypatch.setattr(qwen3_vl, "_TOGETHER", TOKENS // 4 - 1)
    tensors(tower, items)
    assert calls == []
    monkeypatch.setattr(qwen3_vl, "_TOGETHER", TOKENS // 4)
    tensors(tower, items)
    assert calls == [TOKENS // 4]


def test_plain_layers_and_towers_without_deepstack_have_none(
    make_batch: Callable[..., Any], calls: list[int]
) -> None:
    tower = make_tower()
    tower.fused_layers = False
    tensors(tower, make_batch(tower, GRIDS))
    assert calls == []
    alone = make_tower(deepstack_visual_indexes=[])
    assert alone._together is None
    plain = tower_without_weights(CONFIG)
    plain.fused_layers = False
    allocate_weights(plain, CPU)
    assert plain._together is None


class Doubled(nn.Linear):
    """An adapter: the weight is the base's, what it computes is not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


class DoubledMerger(PatchMerger):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


class Halves(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(-1, 256)[:, :40]


def rebound(tower: Any) -> None:
    weight = tower.deepstack_merger_list[1].linear_fc2.weight
    weight.data = weight.data * 2


def tied(tower: Any) -> None:
    first, second = tower.deepstack_merger_list
    second.linear_fc1.weight = first.linear_fc1.weight
    tower.lay_out_weights()
    first.linear_fc1.weight.mul_(2)


def adapted(tower: Any) -> None:
    tower.merger.linear_fc1.__class__ = Doubled


def derived(tower: Any) -> None:
    tower.merger.__class__ = DoubledMerger


def replaced(tower: Any) -> None:
    tower.merger = Halves()


def without_bias(tower: Any) -> None:
    tower.merger.linear_fc2 = nn.Linear(256, 40, bias=False).requires_grad_(False)


def wider(tower: Any) -> None:
    tower.merger.linear_fc1 = nn.Linear(256, 512).requires_grad_(False)
    tower.merger.linear_fc2 = nn.Linear(512, 40).requires_grad_(False)


def hooked(tower: Any) -> None:
    tower.merger.register_forward_hook(lambda module, inputs, output: 2 * output)


def hooked_inside(tower: Any) -> None:
    tower.merger.linear_fc2.register_forward_pre_hook(lambda module, inputs: (2 * inputs[0],))


@pytest.mark.parametrize(
    "change",
    [rebound, tied, adapted, derived, replaced, without_bias, wider, hooked, hooked_inside],
)
def test_what_is_not_as_it_was_laid_out_goes_one_by_one(
    change: Callable[[Any], None], make_batch: Callable[..., Any], calls: list[int]
) -> None:
    tower = make_tower()
    items = make_batch(tower, GRIDS)
    before = tensors(tower, items)
    change(tower)
    got = tensors(tower, items)
    assert calls == [TOKENS // 4]
    assert_close(got, one_by_one(tower, items))
    assert any((a - b).norm() / b.norm() > 1e-2 for a, b in zip(got, before, strict=True))
    tower.lay_out_weights()  # before a recapture
    assert_close(tensors(tower, items), got)
    assert len(calls) == (2 if change is rebound else 1)


@pytest.mark.parametrize("name", ["tap", "tail"])
def test_a_tower_of_ones_own_has_its_own_outputs(
    name: str, make_batch: Callable[..., Any], calls: list[int]
) -> None:
    tower = make_tower()
    items = make_batch(tower, GRIDS)
    before = tensors(tower, items)
    plain = getattr(qwen3_vl.Qwen3VLVisionTower, name)
    own = type("Own", (type(tower),), {name: lambda self, *args: 2 * plain(self, *args)})
    tower.__class__ = own
    got = tensors(tower, items)
    assert calls == [TOKENS // 4]
    doubled = [name == ("tap" if at % 3 else "tail") for at in range(len(got))]  # features first
    assert_close(got, [b * (2 if twice else 1) for b, twice in zip(before, doubled, strict=True)])


def test_nothing_is_moved_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qwen3_vl, "has_kernels", kernels.has_kernels)
    assert make_tower()._together is None


def test_a_cast_lets_go_of_the_memory_that_weights_were_in() -> None:
    tower = make_tower()
    together = tower._together
    tower.to(torch.float32)
    assert tower._together is together is not None
    tower.to(torch.float16)
    assert tower._together is None
    tower.lay_out_weights()
    assert tower._together.serves(tower._mergers)


def test_graphs_see_what_is_written_in_place(
    make_batch: Callable[..., Any], calls: list[int]
) -> None:
    tower = make_tower()
    entry = {"image": {"buckets": [[TOKENS, 4]]}}
    tower.configure_encoder_cuda_graph(MultimodalConfig(encoder_cuda_graph=entry))
    tower.setup_attn_metadata(max_num_tokens=TOKENS)
    assert tower.capture_encoder_cuda_graphs().status == "captured"
    assert calls
    items = make_batch(tower, GRIDS)
    for _ in range(2):
        calls.clear()
        got = tensors(tower, items)
        assert calls == []  # they are in the graph
        assert_close(got, one_by_one(tower, items))
        tower.deepstack_merger_list[0].linear_fc1.weight.mul_(1.5)
        tower.merger.linear_fc2.bias.add_(0.5)
    assert tower.encoder_stats().replays == {f"{TOKENS}x4": 2}
