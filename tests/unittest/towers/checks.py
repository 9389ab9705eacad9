# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""What every tower has to hold, whatever its items look like."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tensorrt_llm_ext.graphs.buckets import Bucket
from tensorrt_llm_ext.llmapi.mm_config import MultimodalConfig

ORACLE = 1e-5  # relative L2 to transformers, fp32
PADDING = 1e-6  # block mask in a padded bucket, to one attention per segment
CPU = torch.device("cpu")


def tensors(out: Mapping[str, Any]) -> list[torch.Tensor]:
    """Every tensor of an item's output, in an order of their own."""
    flat: list[torch.Tensor] = []
    for name in sorted(out):
        flat += out[name] if isinstance(out[name], list) else [out[name]]
    return flat


def relative_error(ours: torch.Tensor, other: torch.Tensor) -> float:
    """Relative L2 error, in fp64."""
    assert ours.shape == other.shape
    assert torch.isfinite(ours).all()
    ours, other = ours.double(), other.double()
    return float((ours - other).norm() / other.norm())


def worst(ours: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> float:
    """Largest relative error of any output tensor of any item."""
    errors = []
    for own, other in zip(ours, others, strict=True):
        assert sorted(own) == sorted(other)
        errors += [relative_error(a, b) for a, b in zip(tensors(own), tensors(other), strict=True)]
    return max(errors)


def capture(tower: Any, budget: int = 256, **entry: Any) -> Any:
    """Configures and captures a tower; returns the report."""
    tower.setup_attn_metadata(max_num_tokens=budget)
    entry = {"warmup_steps": 1, **entry}
    modality = tower.encoder_cuda_graph_modality
    tower.configure_encoder_cuda_graph(MultimodalConfig(encoder_cuda_graph={modality: entry}))
    report = tower.capture_encoder_cuda_graphs()
    assert report.status == "captured", report.reason
    return report


def poison(tower: Any) -> None:
    """What an earlier request could have left, and worse: NaN, and rows far outside a table."""
    for tensor in tower._runner._inputs.values():
        tensor.fill_(float("nan") if tensor.is_floating_point() else 1 << 30)
    for tensor in tower._runner._outputs.values():
        tensor.fill_(float("nan"))


def check_replays(tower: Any, items: Sequence[Any]) -> Sequence[Any]:
    """Replayed from clean and from dirty buffers: the same bits, and what eager says."""
    before = dict(tower.encoder_stats().eager)
    clean = tower.encode(items)
    poison(tower)
    dirty = tower.encode(items)
    assert tower.encoder_stats().eager == before, "some of it was not replayed"
    assert worst(dirty, clean) == 0.0
    assert worst(clean, tower.encode(items, eager=True)) <= PADDING
    return clean


def check_isolation(tower: Any, items: Sequence[Any]) -> None:
    """Each of seven shuffled items comes out as it does alone."""
    items = list(items)
    assert len(items) == 7
    random.Random(5).shuffle(items)
    for eager in (False, True):
        alone = [tower.encode([item], eager=eager)[0] for item in items]
        assert worst(tower.encode(items, eager=eager), alone) <= ORACLE
        assert worst(tower.encode(items[::-1], eager=eager), alone[::-1]) <= ORACLE


def run_fake(make_tower: Callable[[], Any], bucket: Bucket) -> dict[str, tuple[int, ...]]:
    """Shapes of the captured region's outputs, from tensors that have no values to read."""
    with FakeTensorMode(allow_non_fake_inputs=True):  # computed tables are real
        tower = make_tower()
        adapter = tower.make_io_adapter()
        metadata = tower.make_metadata_provider().build(bucket, adapter.num_segment_slots(bucket))
        inputs = adapter.allocate_inputs(bucket.num_tokens, CPU)
        outputs = dict(tower.encoder_forward(inputs, metadata))
    return {name: tuple(tensor.shape) for name, tensor in outputs.items()}
