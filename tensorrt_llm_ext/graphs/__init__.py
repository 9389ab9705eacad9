# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Buckets, packer, static buffers, runner, lifecycle, report: no model, no host, no HTTP.

The names below are what a tower is written against.
"""

from .adapter import (
    EncoderGraphIOAdapter,
    EncoderGraphTensorSpec,
    EncoderMetadataProvider,
    PackedEncoderGraphIOAdapter,
)
from .buckets import Bucket
from .layout import EncoderItem, SegmentRun
from .report import EncoderStats, TowerReport
from .runner import CaptureError, MultimodalEncoderGraphRunner

__all__ = [
    "Bucket",
    "CaptureError",
    "EncoderGraphIOAdapter",
    "EncoderGraphTensorSpec",
    "EncoderItem",
    "EncoderMetadataProvider",
    "EncoderStats",
    "MultimodalEncoderGraphRunner",
    "PackedEncoderGraphIOAdapter",
    "SegmentRun",
    "TowerReport",
]
