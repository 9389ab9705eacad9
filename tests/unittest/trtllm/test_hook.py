# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The one wrapped name: which it is, what it does, what happens where it is not as expected."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from torch import nn

from tensorrt_llm_ext.trtllm import hook, lifecycle
from tensorrt_llm_ext.trtllm.config import VARIABLE
from tensorrt_llm_ext.trtllm.hook import choose_hook
from tensorrt_llm_ext.trtllm.probe import ENCODER, MODEL_ENGINE, Missing

from .small import host_tower


class Engine:
    """What matters of upstream's ``PyTorchModelEngine``."""

    def __init__(self, model: nn.Module, **attributes: Any) -> None:
        self.model = model
        self.llm_args = SimpleNamespace(
            multimodal_config=SimpleNamespace(encoder_cuda_graph={"image": {"buckets": [(16, 2)]}}),
            encoder_max_num_tokens=None,
            max_num_tokens=64,
        )
        self.captured_before_sizing: bool | None = None
        vars(self).update(attributes)
        self._init_model_capacity()

    def _init_model_capacity(self) -> None:
        towers = lifecycle.towers_of(self.model)
        self.captured_before_sizing = any(tower.has_graphs for tower in towers.values())


class Mixin:
    def set_attn_max_seq_len(self, max_seq_len: int) -> None: ...


Upstream = Callable[..., SimpleNamespace]


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> Upstream:
    """Modules of upstream with an engine, and whatever a test puts there."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(lifecycle, "_captured", None)

    def make(engine: Any = Engine, mixin: Any = Mixin, **names: Any) -> SimpleNamespace:
        for name in (MODEL_ENGINE, ENCODER):
            parts = name.split(".")
            for end in range(1, len(parts) + 1):
                path = ".".join(parts[:end])
                monkeypatch.setitem(sys.modules, path, ModuleType(path))
        copy = type("PyTorchModelEngine", (engine,), dict(vars(engine))) if engine else None
        made = {"PyTorchModelEngine": copy} if copy else {}
        for name, value in {**made, **names}.items():
            setattr(sys.modules[MODEL_ENGINE], name, value)
        if mixin:
            sys.modules[ENCODER].MultimodalEncoderMixin = mixin  # type: ignore[attr-defined]
        return SimpleNamespace(engine=copy, module=sys.modules[MODEL_ENGINE])

    return make


def model() -> nn.Module:
    return nn.Sequential(host_tower())


def test_before_20213_the_engines_constructor(upstream: Upstream) -> None:
    there = upstream()
    found = choose_hook()
    assert (found.kind, found.name, found.notes) == ("capacity", "_init_model_capacity", ())
    assert not found.installed
    found.install()
    wrapped = there.engine._init_model_capacity
    found.install()
    choose_hook().install()
    assert there.engine._init_model_capacity is wrapped  # once
    assert there.engine(model()).captured_before_sizing is True
    assert there.engine(nn.Linear(1, 1)).captured_before_sizing is False


def test_a_draft_model_engine_captures_nothing(upstream: Upstream) -> None:
    there = upstream()
    choose_hook().install()
    assert there.engine(model(), is_draft_model=True).captured_before_sizing is False


def test_after_20213_upstreams_set_up(upstream: Upstream) -> None:
    calls = []

    def setup_mm_encoder_cuda_graphs(model: Any, llm_args: Any, tokens: int) -> str:
        calls.append(model)
        return "upstream's"

    there = upstream(setup_mm_encoder_cuda_graphs=setup_mm_encoder_cuda_graphs)
    found = choose_hook()
    assert (found.kind, found.owner) == ("setup", there.module)
    found.install()
    args = Engine(nn.Linear(1, 1)).llm_args
    ours, other = model(), nn.Linear(1, 1)
    assert there.module.setup_mm_encoder_cuda_graphs(ours, args, 64) is None
    assert calls == []  # never both
    assert lifecycle.towers_of(ours)["image"].has_graphs
    assert there.module.setup_mm_encoder_cuda_graphs(other, args, tokens=64) == "upstream's"
    assert calls == [other]


def test_after_20213_the_configured_budget(upstream: Upstream) -> None:
    def setup_mm_encoder_cuda_graphs(
        model: Any, multimodal_config: Any, encoder_max_num_tokens: int
    ) -> None: ...

    there = upstream(setup_mm_encoder_cuda_graphs=setup_mm_encoder_cuda_graphs)
    choose_hook().install()
    ours = model()
    config = SimpleNamespace(encoder_cuda_graph={"image": {"max_batch_size": 1}})
    there.module.setup_mm_encoder_cuda_graphs(ours, config, encoder_max_num_tokens=16)
    tower = lifecycle.towers_of(ours)["image"].tower
    assert max(bucket.num_tokens for bucket in tower.planned_buckets()) == 16


def test_after_20213_the_model_says_how_many_ranks_there_are(upstream: Upstream) -> None:
    """The set-up may not be given it; nothing here lets two ranks agree."""

    def setup_mm_encoder_cuda_graphs(model: nn.Module, multimodal_config: Any) -> None: ...

    there = upstream(setup_mm_encoder_cuda_graphs=setup_mm_encoder_cuda_graphs)
    choose_hook().install()
    vlm = model()
    config = SimpleNamespace(encoder_cuda_graph={"image": {"buckets": [(16, 2)]}})
    vlm.model_config = SimpleNamespace(mapping=SimpleNamespace(world_size=2, rank=0))
    with pytest.raises(ValueError, match="2 ranks build this engine"):
        there.module.setup_mm_encoder_cuda_graphs(vlm, config)
    vlm.model_config.mapping.world_size = 1
    there.module.setup_mm_encoder_cuda_graphs(vlm, config)
    assert vlm[0].has_graphs


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("after", [True, False])
def test_only_ranks_of_our_models_are_asked(upstream: Upstream, ours: bool, after: bool) -> None:
    """Those of another model may never have imported this package."""

    def setup_mm_encoder_cuda_graphs(model: Any, multimodal_config: Any, dist: Any) -> str:
        return "upstream's"

    asked: list[Any] = []

    def allgather(said: Any) -> list[Any]:
        asked.append(said)
        return [said, said]

    class Text(nn.Linear):
        model_config = SimpleNamespace(mapping=SimpleNamespace(world_size=2, rank=0))

    if ours:
        setattr(Text, hook.MARK, True)
    there = upstream(
        **({"setup_mm_encoder_cuda_graphs": setup_mm_encoder_cuda_graphs} if after else {})
    )
    choose_hook().install()
    dist, model = SimpleNamespace(allgather=allgather), Text(1, 1)
    if after:
        config = SimpleNamespace(encoder_cuda_graph=None)
        assert there.module.setup_mm_encoder_cuda_graphs(model, config, dist) == "upstream's"
    else:
        there.engine(model, dist=dist, mapping=Text.model_config.mapping)
    assert bool(asked) is ours


class ChangedSignature(Engine):
    def _init_model_capacity(self, again: bool = False) -> None: ...


class NoMethod:
    pass


@pytest.mark.parametrize(
    ("engine", "note"),
    [
        (ChangedSignature, "takes more than self"),
        (NoMethod, "PyTorchModelEngine._init_model_capacity is not there"),
        (None, "PyTorchModelEngine._init_model_capacity is not there"),
    ],
)
def test_fallback_are_the_towers(upstream: Upstream, engine: Any, note: str) -> None:
    upstream(engine=engine)
    found = choose_hook()
    assert (found.kind, found.owner, found.installed) == ("towers", None, True)
    assert note in found.notes[0]
    found.install()  # nothing to wrap


def test_nowhere_to_capture_is_a_refusal(upstream: Upstream) -> None:
    upstream(engine=None, mixin=None)
    found = choose_hook()
    assert isinstance(found, Missing)
    assert "_init_model_capacity is not there" in found.reason
    assert "MultimodalEncoderMixin" in found.reason
    upstream(engine=None, mixin=NoMethod)
    assert isinstance(choose_hook(), Missing)


def test_upstreams_set_up_that_we_cannot_read_is_a_refusal(upstream: Upstream) -> None:
    """Beside it, ours in another place would capture the same towers twice."""

    def setup_mm_encoder_cuda_graphs(engine: Any) -> None: ...

    upstream(setup_mm_encoder_cuda_graphs=setup_mm_encoder_cuda_graphs)
    found = choose_hook()
    assert isinstance(found, Missing)
    assert "setup_mm_encoder_cuda_graphs(engine: 'Any')" in found.reason


def test_tower_captures_at_the_last_call(upstream: Upstream) -> None:
    upstream(engine=None)
    host = host_tower()
    anchor = nn.Sequential(host)
    host.at_last_call = partial(hook.capture_at_last_call, weakref.ref(host), weakref.ref(anchor))
    entry: dict[str, Any] = {"max_batch_size": 1}
    host.multimodal_config = SimpleNamespace(encoder_cuda_graph={"image": entry})
    with pytest.raises(ValueError, match="set max_num_tokens beside it, use buckets"):
        host.set_attn_max_seq_len(64)
    entry["max_num_tokens"] = 16
    host.set_attn_max_seq_len(64)
    assert host.has_graphs
    host.set_attn_max_seq_len(64)  # twice changes nothing
    assert host.max_seq_len == 64
    del anchor
    assert not host.has_graphs  # at once: nothing keeps the model
    host.set_attn_max_seq_len(64)
    assert not host.has_graphs
