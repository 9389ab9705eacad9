# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""What a caller may write as a prompt, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers import AutoConfig, AutoTokenizer

from tensorrt_llm_ext.engine.encode_queue import EncodeJob
from tensorrt_llm_ext.engine.errors import RequestError
from tensorrt_llm_ext.engine.families import family_of
from tensorrt_llm_ext.engine.media_inputs import MediaInputs
from tensorrt_llm_ext.engine.prompts import PromptBuilder, as_items, is_token_ids

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
PICTURE = Image.new("RGB", (64, 64))


@pytest.fixture(scope="module")
def builder(tiny_checkpoint: Path) -> PromptBuilder:
    config = AutoConfig.from_pretrained(tiny_checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    return PromptBuilder(tokenizer, MediaInputs(tiny_checkpoint), family_of("qwen3_vl"), config)


def test_types_and_rows(builder: PromptBuilder) -> None:
    clip = [PICTURE] * 3
    prompt = builder.prepare(
        {
            "prompt": f"{IMAGE}<|video_pad|>",
            "multi_modal_data": {"video": [clip], "image": [PICTURE]},
        }
    )
    assert prompt.text == f"{IMAGE}<|video_pad|>"
    image, video = builder.placeholder_ids["image"], builder.placeholder_ids["video"]
    for token, kind in zip(prompt.token_ids, prompt.token_types, strict=True):
        assert kind == {image: 1, video: 2}.get(token, 0)
    assert prompt.token_types.count(1) == 4
    assert prompt.token_types.count(2) == 8  # 2 frame pairs
    assert EncodeJob(prompt.items).loads == {"image": (2, 16 + 32)}
    assert prompt.order == ("image", "video")
    text = builder.tokenizer.decode(prompt.token_ids)
    # fps 24: frames at 0, 1/24 and twice 2/24 of a second.
    assert "<0.0 seconds><|vision_start|>" in text
    assert "<0.1 seconds><|vision_start|>" in text


def test_order_of_items_is_the_prompts(builder: PromptBuilder) -> None:
    sizes = [(64, 64), (96, 64), (128, 64)]
    prompt = builder.prepare(
        {
            "prompt": IMAGE * 3,
            "multi_modal_data": {"image": [Image.new("RGB", size) for size in sizes]},
        }
    )
    runs = "".join(map(str, prompt.token_types)).strip("0").split("0")
    assert [len(run) for run in runs if run] == [4, 6, 8]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (3, "prompt is a int"),
        ({"text": "x"}, r"unknown keys \['text'\]; allowed: prompt, prompt_token_ids, messages"),
        ({}, "prompt has none of"),
        ({"prompt": "x", "prompt_token_ids": [1]}, "give exactly one"),
        ({"prompt": 5}, "prompt is a int; it must be a string"),
        ({"prompt_token_ids": []}, "non-empty list"),
        ({"prompt_token_ids": [True]}, "non-empty list"),
        ({"prompt_token_ids": [-1]}, "holds -1"),
        ({"prompt": "x", "multi_modal_data": [PICTURE]}, "multi_modal_data is a list"),
        ({"messages": []}, "messages must be a non-empty list"),
        ({"messages": "hello"}, "messages must be a non-empty list"),
        ({"messages": ["hello"]}, "not a mapping with a string 'role'"),
        ({"messages": [{"role": "user", "content": 5}]}, "content of a user message"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "u"}]}]},
            "part of type 'image_url' cannot be used; allowed: .*'image'.*'video'",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "part of type 'image' cannot be used",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "<|video_pad|>"}]}
                ]
            },
            r"text contains the placeholder token <\|video_pad\|>",
        ),
        (
            {
                "messages": [{"role": "user", "content": "x"}],
                "multi_modal_data": {"image": PICTURE},
            },
            "put the media into the messages",
        ),
        (
            {"prompt": "<|image_pad|>" * 2, "multi_modal_data": {"image": [PICTURE] * 2}},
            r"two <\|image_pad\|> placeholders stand side by side",
        ),
    ],
)
def test_refused(builder: PromptBuilder, inputs: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        builder.prepare(inputs)


def test_template_options(builder: PromptBuilder) -> None:
    messages = [{"role": "user", "content": "hi"}]
    with_turn = builder.prepare({"messages": messages}).text
    assert with_turn == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    without = builder.prepare({"messages": messages, "add_generation_prompt": False}).text
    assert without == "<|im_start|>user\nhi<|im_end|>\n"


def test_checkpoint_without_a_template(
    builder: PromptBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder.tokenizer, "chat_template", None)
    with pytest.raises(RequestError, match="has no chat template"):
        builder.prepare({"messages": [{"role": "user", "content": "hi"}]})


def test_one_video_or_several() -> None:
    array = np.zeros((4, 32, 32, 3), np.uint8)
    assert as_items("image", PICTURE) == [PICTURE]
    assert as_items("video", [PICTURE] * 3) == [[PICTURE] * 3]
    assert as_items("video", [[PICTURE], [PICTURE]]) == [[PICTURE], [PICTURE]]
    assert len(as_items("video", [array, array])) == 2
    assert len(as_items("video", list(array))) == 1
    assert len(as_items("video", [{"frames": array}, [PICTURE]])) == 2
    assert as_items("video", [[]]) == [[]]
    assert is_token_ids(np.array([1, 2]))
    assert not is_token_ids([])
    assert not is_token_ids(["a"])
