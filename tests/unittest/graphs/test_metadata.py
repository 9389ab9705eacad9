# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Metadata of captured packed attention: sized from its bucket, refreshed in place."""

from __future__ import annotations

import pytest
import torch

from tensorrt_llm_ext.graphs.buckets import Bucket
from tensorrt_llm_ext.ops.attention import BlockMaskAttention
from tensorrt_llm_ext.towers.metadata import PackedMetadataProvider

from .fakes import CPU


@pytest.fixture
def provider():
    return PackedMetadataProvider(BlockMaskAttention(), CPU)


@pytest.mark.parametrize(
    ("bucket", "slots", "longest"), [(Bucket(64, 4), 9, 64), (Bucket(64, 4, 16), 5, 16)]
)
def test_sized_from_the_bucket(provider, bucket, slots, longest):
    metadata = provider.build(bucket, slots)
    assert metadata.cu_seqlens.dtype is torch.int32
    assert metadata.cu_seqlens.tolist() == [0] * (slots + 1)
    assert metadata.max_segment_len == longest


def test_refresh_writes_into_the_same_tensor(provider):
    metadata = provider.build(Bucket(64, 4), 6)
    tensor, address = metadata.cu_seqlens, metadata.cu_seqlens.data_ptr()
    provider.refresh_in_place(metadata, (16, 16, 16, 8, 4, 4))
    assert tensor.tolist() == [0, 16, 32, 48, 56, 60, 64]
    provider.refresh_in_place(metadata, (60, 4))
    # Unused slots repeat the last offset: empty, and never back to 0.
    assert tensor.tolist() == [0, 60, 64, 64, 64, 64, 64]
    assert metadata.cu_seqlens is tensor
    assert tensor.data_ptr() == address
    assert metadata.segment_lengths == (60, 4)
    provider.refresh_in_place(metadata, ())
    assert tensor.tolist() == [0] * 7


@pytest.mark.parametrize(
    ("lengths", "what"),
    [
        ((4,) * 7, "7 segments do not fit metadata for 6"),
        ((20, 4), "segment of 20 tokens is longer than .* 16"),
    ],
)
def test_refresh_refuses_what_does_not_fit(provider, lengths, what):
    metadata = provider.build(Bucket(64, 4, 16), 6)
    provider.refresh_in_place(metadata, (16, 8))
    with pytest.raises(ValueError, match=what):
        provider.refresh_in_place(metadata, lengths)
    assert metadata.cu_seqlens.tolist() == [0, 16, 24, 24, 24, 24, 24]


def test_block_mask_isolates_slack_and_empty_slots(provider):
    metadata = provider.build(Bucket(8, 2), 5)
    provider.refresh_in_place(metadata, (3, 1, 2, 2))
    mask = metadata.attention.prepare(metadata, 8)
    segment = torch.tensor([0, 0, 0, 1, 2, 2, 3, 3])
    assert torch.equal(mask, segment[:, None] == segment[None, :])
    assert provider.graph_critical_attrs == ("cu_seqlens",)
