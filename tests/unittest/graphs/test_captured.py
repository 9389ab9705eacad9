# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""A captured bucket: layouts that it holds already are not brought in again."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tensorrt_llm_ext.graphs.buckets import Bucket
from tensorrt_llm_ext.graphs.captured import CapturedBucket, addresses_of

BUCKET = Bucket(64, 4)


def test_an_equal_layout_is_not_brought_in_again():
    metadata = SimpleNamespace(lengths=torch.zeros(2, dtype=torch.int32))
    addresses = {"lengths": metadata.lengths.data_ptr()}
    bucket = CapturedBucket(None, None, BUCKET, {}, {}, metadata, addresses)
    brought = []

    def refresh(metadata, layout):
        brought.append(layout)
        metadata.lengths.copy_(torch.tensor(layout))

    for layout in [(8, n) for n in (4, 4, 6, 4)]:
        bucket.refresh(layout, refresh)
    assert brought == [(8, 4), (8, 6), (8, 4)]


def test_every_tensor_that_moved_is_named():
    metadata = SimpleNamespace(
        lengths=torch.zeros(2, dtype=torch.int32), tiles=torch.zeros(3, dtype=torch.int32)
    )
    names = ["lengths", "tiles"]
    bucket = CapturedBucket(None, None, BUCKET, {}, {}, metadata, addresses_of(metadata, names))
    bucket.refresh((4, 4), lambda metadata, layout: metadata.tiles.fill_(1))
    for name in names:
        kept = getattr(metadata, name)
        setattr(metadata, name, kept.clone())
        with pytest.raises(RuntimeError, match=f"{name!r} moved between capture and replay"):
            bucket.refresh((8,), lambda metadata, layout: None)
        setattr(metadata, name, kept)
