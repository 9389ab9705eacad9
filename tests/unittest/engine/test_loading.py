# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Reading a checkpoint folder."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoTokenizer

from tensorrt_llm_ext.engine import loading


def test_features_pack_and_unpack() -> None:
    items = [
        SimpleNamespace(
            features=torch.randn(n, 4), deepstack=[torch.randn(n, 4), torch.randn(n, 4)]
        )
        for n in (3, 5)
    ]
    shim = loading.EncodedFeatures(4, 2, torch.float32)
    out = shim(shim.pack(items), grid_thw=torch.ones(2, 3), return_dict=True)
    assert torch.equal(out.pooler_output, torch.cat([i.features for i in items]))
    for j in range(2):
        expected = torch.cat([i.deepstack[j] for i in items])
        assert torch.equal(out.deepstack_features[j], expected)
    bare = [SimpleNamespace(features=items[0].features, deepstack=[])]
    assert shim(shim.pack(bare), grid_thw=torch.ones(1, 3)).deepstack_features == []


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"dtype": "float16"}, torch.float16),
        ({"torch_dtype": "torch.float32", "text_config": {"dtype": "float16"}}, torch.float32),
        ({"thinker_config": {"text_config": {"dtype": "float16"}}}, torch.float16),
        ({"dtype": None, "text_config": {}}, torch.bfloat16),
    ],
)
def test_auto_dtype_is_the_checkpoints(config, expected, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert loading.resolve_dtype("auto", tmp_path) is expected


def test_dtype_and_device(tmp_path: Path) -> None:
    assert loading.resolve_dtype("float16", tmp_path) is torch.float16
    with pytest.raises(ValueError, match="dtype 'int8' is not known; choose one of auto, float32"):
        loading.resolve_dtype("int8", tmp_path)
    assert loading.resolve_device("cpu") == torch.device("cpu")


def test_end_of_text_ids_come_from_the_generation_config(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    config = AutoConfig.from_pretrained(tiny_checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    ids = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    assert loading.eos_token_ids(tiny_checkpoint, config, tokenizer) == tuple(ids)
    assert loading.eos_token_ids(tmp_path, config, tokenizer) == (ids[0],)


def test_models_that_cannot_be_served(tmp_path: Path) -> None:
    def load(**config: Any) -> None:
        (tmp_path / "config.json").write_text(json.dumps(config))
        loading.load_config(tmp_path, trust_remote_code=False)

    with pytest.raises(ValueError, match="does not know model type 'qwen2'; it knows glm46v, "):
        load(model_type="qwen2")
    with pytest.raises(ValueError, match=r"serves RADIO without a language .*mm_encoder_only=True"):
        load(model_type="radio")
    with pytest.raises(ValueError, match=r"without vision_start_token_id in config\.json"):
        load(model_type="qwen3_omni_moe_thinker")
