# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""A tiny encoder, its oracle, and fake graph backends, written against public names only."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from tensorrt_llm_ext.graphs.adapter import EncoderGraphTensorSpec, PackedEncoderGraphIOAdapter
from tensorrt_llm_ext.graphs.layout import EncoderItem
from tensorrt_llm_ext.graphs.static_backend import StaticGraphBackend
from tensorrt_llm_ext.llmapi.mm_config import MultimodalConfig
from tensorrt_llm_ext.towers.mixin import MultimodalEncoderMixin
from tensorrt_llm_ext.towers.output import ItemOutput

UNIT = 4  # tokens that the merger joins
IN, WIDTH, OUT = 6, 8, 5
CPU = torch.device("cpu")


class FakeTower(MultimodalEncoderMixin, nn.Module):
    """One attention block and a merger; an item is {"x": [T, IN], "segments": lengths, "tag"}."""

    encoder_cuda_graph_modality = "image"

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.embed = nn.Linear(IN, WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.merger = nn.Linear(WIDTH * UNIT, OUT)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=generator) * 0.3)

    def make_io_adapter(self) -> PackedEncoderGraphIOAdapter:
        return make_adapter(self.dtype)

    def pack_item(self, item: Mapping[str, Any]) -> EncoderItem:
        segments = tuple(item["segments"])
        if sum(segments) != len(item["x"]):
            raise ValueError(f"{len(item['x'])} rows for segments {segments}")
        return EncoderItem(segments, {"x": item["x"]}, (segments, item.get("tag", 0)))

    def encoder_forward(
        self, inputs: Mapping[str, torch.Tensor], metadata: Any
    ) -> Mapping[str, torch.Tensor]:
        x = self.embed(inputs["x"]) * inputs["gain"][:, :1] + inputs["gain"][:, 1:]
        x = x + inputs["position"].to(x.dtype)
        q, k, v = self.qkv(x).view(-1, 3, 1, WIDTH).unbind(1)
        prepared = metadata.attention.prepare(metadata, x.shape[0])
        x = x + metadata.attention(q, k, v, metadata, prepared).reshape(x.shape)
        return {"features": self.merger(x.reshape(-1, WIDTH * UNIT)), "tokens": x * 2}

    def make_output(self, item: EncoderItem, tensors: dict[str, torch.Tensor]) -> ItemOutput:
        return ItemOutput(**tensors)


class FakeAudioTower(FakeTower):
    encoder_cuda_graph_modality = "audio"


def fake_layout(layout: Any, first: int, count: int) -> dict[str, np.ndarray]:
    """Different for every token of an item and for every tag, so that a wrong offset shows."""
    lengths, tag = layout
    start, total = sum(lengths[:first]), sum(lengths[first : first + count])
    token = np.arange(start, start + total)
    return {
        "position": (token[:, None] % 13 + tag).astype(np.int32),
        "gain": np.stack([1 + token % 7 * 0.1, token * -0.01 - tag], axis=1).astype(np.float32),
    }


def make_adapter(
    dtype: torch.dtype = torch.float32, **overrides: Any
) -> PackedEncoderGraphIOAdapter:
    spec = EncoderGraphTensorSpec
    kwargs: dict[str, Any] = {
        "row_specs": {"x": spec((IN,), dtype)},
        "layout_specs": {
            "position": spec((1,), torch.int32),
            "gain": spec((2,), torch.float32),
        },
        "output_specs": {
            "features": spec((OUT,), dtype, UNIT),
            "tokens": spec((WIDTH,), dtype),
        },
        "build_layout": fake_layout,
        "unit": UNIT,
    }
    return PackedEncoderGraphIOAdapter(**{**kwargs, **overrides})


def make_item(segments: Sequence[int], tag: int = 0, seed: int = 0) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1000 * seed + tag)
    x = torch.randn(sum(segments), IN, generator=generator)
    return {"x": x, "segments": tuple(segments), "tag": tag}


@torch.no_grad()
def oracle(tower: FakeTower, item: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The item alone, segment by segment, without any of the package's machinery."""
    lengths = item["segments"]
    layout = fake_layout((lengths, item.get("tag", 0)), 0, len(lengths))
    gain, position = torch.from_numpy(layout["gain"]), torch.from_numpy(layout["position"])
    x = tower.embed(item["x"].to(tower.dtype)) * gain[:, :1] + gain[:, 1:] + position.float()
    parts = []
    for part in x.split(list(lengths)):
        q, k, v = tower.qkv(part).view(-1, 3, WIDTH).unbind(1)
        parts.append(part + torch.softmax(q @ k.T / WIDTH**0.5, dim=-1) @ v)
    x = torch.cat(parts) if parts else x
    return {"features": tower.merger(x.reshape(-1, WIDTH * UNIT)), "tokens": x * 2}


def close(got: Mapping[str, torch.Tensor], want: Mapping[str, torch.Tensor]) -> None:
    """Same names and shapes, finite, relative L2 error of each at most 1e-5."""
    assert got.keys() == want.keys()
    for name, tensor in want.items():
        assert got[name].shape == tensor.shape, name
        assert torch.isfinite(got[name]).all(), name
        assert (got[name] - tensor).norm() <= 1e-5 * tensor.norm(), name


def assert_outputs(tower: FakeTower, items: Sequence[Mapping[str, Any]], outs: Any) -> None:
    for item, out in zip(items, outs, strict=True):
        close(out, oracle(tower, item))


def graph_config(modality: str = "image", **entry: Any) -> MultimodalConfig:
    return MultimodalConfig.model_validate({"encoder_cuda_graph": {modality: entry}})


def captured_tower(budget: int = 256, backend: Any = None, **entry: Any) -> FakeTower:
    tower = FakeTower()
    tower.configure_encoder_cuda_graph(graph_config(**(entry or {"max_batch_size": 8})))
    tower.setup_attn_metadata(max_num_tokens=budget)
    tower.capture_encoder_cuda_graphs(backend)
    return tower


class SpyBackend(StaticGraphBackend):
    """Static buffers, with chosen timings and memory, that notes what was captured."""

    name = "spy"

    def __init__(
        self,
        *,
        accelerated: bool = False,
        times: Callable[[int], tuple[float, float]] | None = None,
        bytes_per_token: int = 0,
        fail_at: int | None = None,
    ) -> None:
        super().__init__()
        self.accelerated = accelerated  # type: ignore[misc]
        self.captured: list[Any] = []
        self.replays = 0
        self.sessions = 0
        self.times = times
        self._bytes_per_token = bytes_per_token
        self.fail_at = fail_at
        self._replay_tokens: dict[Callable[[], None], int] = {}
        self.alive: list[int] = []  # tokens of each graph that was not reset

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        with super().session():
            self.sessions += 1
            yield

    def capture(self, body: Callable[[], None], *, warmup_steps: int) -> Any:
        if self.fail_at is not None and len(self.captured) == self.fail_at:
            raise RuntimeError("no memory for this one")
        graph = super().capture(body, warmup_steps=warmup_steps)
        tokens = _tokens_of(body)
        self.captured.append(tokens)
        self.alive.append(tokens)
        reset, replay = graph.reset, graph.replay

        def spy_reset() -> None:
            if tokens in self.alive:
                self.alive.remove(tokens)
            reset()

        def spy_replay() -> None:
            self.replays += 1
            replay()

        graph.reset, graph.replay = spy_reset, spy_replay  # type: ignore[method-assign]
        self._replay_tokens[spy_replay] = tokens
        return graph

    def time_ms(self, body: Callable[[], None], *, repeats: int) -> float:
        measured = super().time_ms(body, repeats=1)
        if self.times is None:
            return measured
        replayed = self._replay_tokens.get(body)
        return self.times(_tokens_of(body))[1] if replayed is None else self.times(replayed)[0]

    def memory_in_use(self, *, settled: bool = True) -> int:
        return 10_000 + self._bytes_per_token * max(self.alive, default=0)


def _tokens_of(body: Any) -> int:
    """Rows of the first static input that a body closes over: tokens, but for other encoders."""
    cells = {
        name: cell.cell_contents
        for name, cell in zip(body.__code__.co_freevars, body.__closure__, strict=True)
    }
    return len(next(iter(cells["inputs"].values())))
