# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Outputs of one spec in one block."""

from __future__ import annotations

import torch

from tensorrt_llm_ext.graphs.adapter import EncoderGraphTensorSpec
from tensorrt_llm_ext.graphs.outputs import OutputBlock, output_blocks

from .fakes import CPU, make_adapter

MERGED = EncoderGraphTensorSpec((5,), torch.float32, 4)
TOKENS = EncoderGraphTensorSpec((3,), torch.float32)
SPECS = {"a": MERGED, "b": TOKENS, "c": MERGED, "d": EncoderGraphTensorSpec((5,), torch.half, 4)}


def test_outputs_of_one_spec_are_together():
    assert output_blocks(SPECS) == (
        OutputBlock(MERGED, ("a", "c")),
        OutputBlock(TOKENS, ("b",)),
        OutputBlock(SPECS["d"], ("d",)),
    )


def test_one_allocation_a_block():
    outputs = make_adapter(output_specs=SPECS).allocate_outputs(16, CPU)
    assert {n: (tuple(t.shape), t.dtype) for n, t in outputs.items()} == {
        "a": ((4, 5), torch.float32),
        "b": ((16, 3), torch.float32),
        "c": ((4, 5), torch.float32),
        "d": ((4, 5), torch.half),
    }
    assert not any(t.any() for t in outputs.values())
    storage = {n: t.untyped_storage().data_ptr() for n, t in outputs.items()}
    assert storage["a"] == storage["c"]
    assert len(set(storage.values())) == 3


def test_a_buckets_outputs_lie_without_gaps():
    """One copy, as plain as can be, takes all results of a full bucket."""
    adapter = make_adapter(output_specs=SPECS)
    arena = adapter.allocate_outputs(64, CPU)
    views = adapter.view_outputs(arena, 16)
    for value, name in enumerate(SPECS, start=1):
        views[name].fill_(value)
    block = adapter.output_blocks[0].behind(views, 16)
    assert block.shape == (2, 4, 5)
    assert block.is_contiguous()
    assert block[:, 0, 0].tolist() == [1, 3]
    assert block.data_ptr() == arena["a"].data_ptr()
    assert arena["c"].eq(0).all()  # the arena's own begins further on
    whole = adapter.output_blocks[0].behind(arena, 64)
    assert whole.data_ptr() == arena["a"].data_ptr()
    assert whole[1].data_ptr() == arena["c"].data_ptr()
