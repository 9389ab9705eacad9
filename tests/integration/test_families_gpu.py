# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Every family on a CUDA GPU: real graphs, the eager run, and transformers on the CPU agree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from family_oracle import ENCODERS_ONLY, FamilyOracle
from make_tiny_checkpoint import FAMILIES
from PIL import Image

from tensorrt_llm_ext import LLM, SamplingParams

pytestmark = pytest.mark.gpu

PARAMS = SamplingParams(max_tokens=6, ignore_eos=True)
LIMITS: dict[str, Any] = {
    "device": "cuda",
    "dtype": "float32",
    "encoder_max_num_tokens": 320,
    "max_seq_len": 512,
    "max_num_tokens": 1024,
}


@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in ("qwen3_vl", *ENCODERS_ONLY)])
def test_graphs_eager_and_transformers_agree(
    family: str, family_checkpoint: Callable[[str], Path], photo: Image.Image
) -> None:
    folder, made = family_checkpoint(family), FAMILIES[family]
    media = made.vocabulary.media
    height = 2 * made.vision["patch_size"]
    wide = np.asarray(photo.resize((300, 120)))
    frames = [wide[3 * i :, 20 * i :][: 2 * height, : 3 * height] for i in range(5)]
    picture, clip = photo.resize((150, 120)), np.stack(frames)
    noise = np.random.default_rng(0).normal(size=20000).astype(np.float32) * 0.1
    cases: list[tuple[str, dict[str, Any]]] = [
        ("The sky over the temple", {}),
        (f"{media['image']}What?", {"images": [picture]}),
        (f"{media['video']}What?", {"videos": [clip]}),
    ]
    graphs: dict[str, Any] = {"image": {"buckets": [[96, 4], [320, 8]]}}
    if made.audio:
        graphs["audio"] = {"max_batch_size": 4}
        prompt = f"{media['audio']}then{media['image']}and{media['video']}!"
        cases.append((prompt, {"images": [picture], "videos": [clip], "audios": [noise]}))
    names = {"images": "image", "videos": "video", "audios": "audio"}
    requests = [
        {"prompt": p, "multi_modal_data": {names[k]: v for k, v in m.items()} or None}
        for p, m in cases
    ]
    oracle = FamilyOracle(folder, made.preprocessors)
    expected = [oracle.generate(oracle.inputs(p, **m), PARAMS.max_tokens) for p, m in cases]
    for config in ({"encoder_cuda_graph": graphs}, None):
        with LLM(model=folder, multimodal_config=config, **LIMITS) as llm:
            outs = llm.generate(requests, PARAMS)
            assert [out.outputs[0].token_ids for out in outs] == expected
            if config is not None:
                assert all(t.accelerated for t in llm.startup_report.towers)
