# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Plans of batches: how results are laid out, and what cannot be planned."""

from __future__ import annotations

import pytest
import torch

from tensorrt_llm_ext.graphs.adapter import EncoderGraphTensorSpec
from tensorrt_llm_ext.graphs.batch import BatchPlan, BatchPlanner
from tensorrt_llm_ext.graphs.buckets import Bucket
from tensorrt_llm_ext.graphs.layout import EncoderItem
from tensorrt_llm_ext.graphs.packer import Packer

from .fakes import CPU, make_adapter

TWINS = EncoderGraphTensorSpec((2,), torch.float32, 4)
ALONE = EncoderGraphTensorSpec((1,), torch.float32)


def items_of(*lengths: int) -> list[EncoderItem]:
    return [EncoderItem((n,), {}, n) for n in lengths]


def test_each_item_gets_its_rows_of_each_output():
    adapter = make_adapter(output_specs={"a": TWINS, "b": ALONE, "c": TWINS})
    plan = BatchPlan.of(adapter, items_of(8, 4), (), CPU)
    twins, alone = sinks = plan.allocate()
    twins.copy_(torch.arange(12).view(2, 3, 2))
    alone.copy_(torch.arange(12).view(1, 12, 1))
    first, second = plan.split(sinks)
    assert [first[n].tolist() for n in "ac"] == [[[0, 1], [2, 3]], [[6, 7], [8, 9]]]
    assert [second[n].tolist() for n in "ac"] == [[[4, 5]], [[10, 11]]]
    assert first["b"].flatten().tolist() == list(range(8))
    assert second["b"].flatten().tolist() == list(range(8, 12))


def test_replays_need_graphs():
    planner = BatchPlanner(Packer([Bucket(64, 4)]), make_adapter(), None, CPU)
    with pytest.raises(ValueError, match="is to be replayed, but there are no graphs"):
        planner.plan(items_of(8))
