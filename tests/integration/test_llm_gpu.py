# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The engine on a CUDA GPU: real graphs, driver memory, half precision."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tensorrt_llm_ext import LLM, SamplingParams

pytestmark = pytest.mark.gpu

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
VIDEO = "<|vision_start|><|video_pad|><|vision_end|>"
GRAPHS = {"encoder_cuda_graph": {"image": {"buckets": [[96, 4], [320, 8]]}}}
LIMITS = {
    "device": "cuda",
    "encoder_max_num_tokens": 320,
    "max_seq_len": 512,
    "max_num_tokens": 1024,
}


def batch(picture: Image.Image, clip: np.ndarray) -> list[Any]:
    return [
        {"prompt": f"{IMAGE}What?", "multi_modal_data": {"image": picture}},
        "The sky",
        {"prompt": f"{VIDEO}And?", "multi_modal_data": {"video": [clip]}},
    ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_graphs_give_the_eager_tokens(
    tiny_checkpoint: Path, picture: Image.Image, clip: np.ndarray, dtype: str
) -> None:
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    prompts = batch(picture, clip)
    with LLM(model=tiny_checkpoint, dtype=dtype, multimodal_config=GRAPHS, **LIMITS) as llm:
        graphs = [out.outputs[0].token_ids for out in llm.generate(prompts, params)]
        kept = [b.num_tokens for t in llm.startup_report.towers for b in t.buckets if b.kept]
        assert sum(llm.encoder_stats()["image"].replays.values()) > 0 or not kept
        assert llm.startup_report.towers[0].accelerated
    with LLM(model=tiny_checkpoint, dtype=dtype, **LIMITS) as llm:
        assert [out.outputs[0].token_ids for out in llm.generate(prompts, params)] == graphs


def test_float32_tokens_are_the_oracles(
    tiny_checkpoint: Path, picture: Image.Image, clip: np.ndarray, oracle: Any
) -> None:
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    with LLM(model=tiny_checkpoint, dtype="float32", multimodal_config=GRAPHS, **LIMITS) as llm:
        outs = llm.generate(batch(picture, clip), params)
    expected = [
        oracle.inputs(f"{IMAGE}What?", [picture]),
        oracle.inputs("The sky"),
        oracle.inputs(f"{VIDEO}And?", videos=[clip]),
    ]
    for out, inputs in zip(outs, expected, strict=True):
        assert out.outputs[0].token_ids == oracle.generate(inputs, 12, eos_token_id=[])


def test_kv_cache_is_sized_from_driver_memory(tiny_checkpoint: Path) -> None:
    with LLM(model=tiny_checkpoint, multimodal_config=GRAPHS, **LIMITS) as llm:
        kv = llm.startup_report.kv_cache
        assert kv is not None
        free, total = torch.cuda.mem_get_info()
        assert kv.free_bytes <= total
        assert kv.free_bytes == pytest.approx(free, rel=0.05)
        assert kv.reserved_bytes > 0
        assert kv.tokens <= kv.tokens_without_graphs


def test_memory_comes_back_after_shutdown(tiny_checkpoint: Path) -> None:
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    llm = LLM(model=tiny_checkpoint, multimodal_config=GRAPHS, **LIMITS)
    report = llm.startup_report
    assert report.towers[0].backend == "cuda_graph"
    assert report.kv_cache is not None
    assert report.kv_cache.tokens < report.kv_cache.tokens_without_graphs
    llm.shutdown()
    llm.shutdown()
    del llm
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() - before < 64 << 20
