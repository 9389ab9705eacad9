# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Generated tokens and prefill logits are those of the unmodified transformers model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import set_seed

from tensorrt_llm_ext import LLM, SamplingParams

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
VIDEO = "<|vision_start|><|video_pad|><|vision_end|>"
TOKENS = 12
PARAMS = SamplingParams(max_tokens=TOKENS, ignore_eos=True)


def prefill_logits(llm: LLM, request: Any) -> torch.Tensor:
    """Logits [vocab] that the engine computes for the last prompt token."""
    loop = llm._engine.loop
    seen: list[torch.Tensor] = []
    original = loop._generator.prefill

    def spy(*args: Any) -> Any:
        result = original(*args)
        seen.append(result[0])
        return result

    loop._generator.prefill = spy
    try:
        llm.generate(request, SamplingParams(max_tokens=1))
    finally:
        del loop._generator.prefill
    (logits,) = seen
    return logits


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.fixture(params=["text", "image", "two images", "video", "videos and images", "odd words"])
def case(
    request: pytest.FixtureRequest,
    picture: Image.Image,
    picture2: Image.Image,
    clip: np.ndarray,
) -> tuple[str, list[Image.Image], list[np.ndarray]]:
    cases: dict[str, Any] = {
        "text": ("The sky over the temple", [], []),
        "image": (f"{IMAGE}What is this?", [picture], []),
        "two images": (f"First {IMAGE} then {IMAGE}: which is larger?", [picture, picture2], []),
        "video": (f"{VIDEO}What happens?", [], [clip]),
        "videos and images": (
            f"{VIDEO} a {IMAGE} b {VIDEO} c {IMAGE} d",
            [picture2, picture],
            [clip[:2], clip],
        ),
        # The timestamp's text touches the prompt's own: expansion must come before tokenization.
        "odd words": ("see <|video_pad|>now<|image_pad|>.", [picture2], [clip[:4]]),
    }
    return cases[request.param]


@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
def test_tokens_and_logits(case: Any, graphs: bool, oracle: Any, request: Any) -> None:
    llm = request.getfixturevalue("llm" if graphs else "eager_llm")
    prompt, images, videos = case
    inputs = oracle.inputs(prompt, images, videos)
    media = {"image": images, "video": videos}
    mine = {"prompt": prompt, "multi_modal_data": {m: v for m, v in media.items() if v}}
    out = llm.generate(mine, PARAMS)
    assert out.prompt_token_ids == inputs["input_ids"][0].tolist()
    assert distance(prefill_logits(llm, mine), oracle.logits(inputs)) < 1e-5
    expected = oracle.generate(inputs, TOKENS, eos_token_id=[])
    assert out.outputs[0].token_ids == expected
    assert out.outputs[0].finish_reason == "length"
    assert out.outputs[0].text == oracle.tokenizer.decode(expected, skip_special_tokens=True)


def test_frame_rate_reaches_the_prompt(llm: LLM, oracle: Any, clip: np.ndarray) -> None:
    slow = {"prompt": VIDEO, "multi_modal_data": {"video": {"frames": clip, "fps": 2}}}
    fast = {"prompt": VIDEO, "multi_modal_data": {"video": [clip]}}
    out = llm.generate([slow, fast], PARAMS)
    assert (
        out[0].prompt_token_ids
        == oracle.inputs(VIDEO, videos=[clip], fps=2)["input_ids"][0].tolist()
    )
    assert out[1].prompt_token_ids == oracle.inputs(VIDEO, videos=[clip])["input_ids"][0].tolist()
    assert out[0].prompt_token_ids != out[1].prompt_token_ids


def test_chat_messages_use_the_checkpoints_template(
    llm: LLM, oracle: Any, picture: Image.Image, clip: np.ndarray
) -> None:
    def content(image: Any, video: Any) -> list[dict[str, Any]]:
        return [
            {"role": "system", "content": "Be brief."},
            {
                "role": "user",
                "content": [
                    {"type": "image", "image": image},
                    {"type": "text", "text": "Compare with"},
                    {"type": "video", "video": video},
                ],
            },
        ]

    text = oracle.tokenizer.apply_chat_template(
        content("", ""), tokenize=False, add_generation_prompt=True
    )
    inputs = oracle.inputs(text, [picture], [clip])
    out = llm.generate({"messages": content(picture, clip)}, PARAMS)
    assert out.prompt == text
    assert out.prompt_token_ids == inputs["input_ids"][0].tolist()
    assert out.outputs[0].token_ids == oracle.generate(inputs, TOKENS, eos_token_id=[])


def test_prompt_token_ids_with_placeholders(llm: LLM, oracle: Any, picture: Image.Image) -> None:
    prompt = f"{IMAGE}What is this?"
    ids = oracle.tokenizer(prompt)["input_ids"]
    media = {"image": [picture]}
    by_ids = llm.generate({"prompt_token_ids": ids, "multi_modal_data": media}, PARAMS)
    by_text = llm.generate({"prompt": prompt, "multi_modal_data": media}, PARAMS)
    assert by_ids.prompt_token_ids == by_text.prompt_token_ids
    assert by_ids.outputs[0].token_ids == by_text.outputs[0].token_ids
    assert llm.generate(ids[-3:], PARAMS).prompt_token_ids == ids[-3:]


def test_mixed_batch_equals_each_alone(
    llm: LLM, oracle: Any, picture: Image.Image, picture2: Image.Image, clip: np.ndarray
) -> None:
    prompts: list[tuple[str, list[Any], list[Any]]] = [
        ("The sky over the temple was", [], []),
        (f"{IMAGE}What?", [picture], []),
        ("a", [], []),
        (f"{VIDEO}And {IMAGE}", [picture2], [clip]),
    ]
    requests = [
        {"prompt": p, "multi_modal_data": {"image": i, "video": v} if i or v else None}
        for p, i, v in prompts
    ]
    params = [
        SamplingParams(max_tokens=n, ignore_eos=True) for n in (TOKENS, TOKENS - 5, TOKENS + 6, 3)
    ]
    outs = llm.generate(requests, params)
    for (prompt, images, videos), out, its in zip(prompts, outs, params, strict=True):
        inputs = oracle.inputs(prompt, images, videos)
        assert out.outputs[0].token_ids == oracle.generate(inputs, its.max_tokens, eos_token_id=[])


def test_end_of_text_and_min_tokens(llm: LLM, oracle: Any, picture: Image.Image) -> None:
    """Make the third greedy token an end-of-text token and see both sides stop, or not."""
    prompt = f"{IMAGE}What is this?"
    inputs = oracle.inputs(prompt, [picture])
    free = oracle.generate(inputs, TOKENS, eos_token_id=[])
    end = free[4]
    loop = llm._engine.loop
    original, loop._eos = loop._eos, (end,)
    try:
        mine = {"prompt": prompt, "multi_modal_data": {"image": picture}}
        stopped = llm.generate(mine, SamplingParams(max_tokens=TOKENS)).outputs[0]
        assert stopped.token_ids == oracle.generate(inputs, TOKENS, eos_token_id=[end])
        assert stopped.finish_reason == "stop"
        assert len(stopped.token_ids) <= 5
        later = llm.generate(mine, SamplingParams(max_tokens=TOKENS, min_tokens=8)).outputs[0]
        assert later.token_ids == oracle.generate(
            inputs, TOKENS, eos_token_id=[end], min_new_tokens=8
        )
        assert len(later.token_ids) >= 8
        assert llm.generate(mine, PARAMS).outputs[0].token_ids == free
    finally:
        loop._eos = original


def test_prompt_that_ends_with_a_picture(llm: LLM, oracle: Any, picture2: Image.Image) -> None:
    """Decoding continues after the picture's largest position, as a forward without cache does.

    transformers' generate() adds 1 to the last token's position instead, so it is not the oracle.
    """
    prompt = "see <|image_pad|>"
    inputs = oracle.inputs(prompt, [picture2])
    mine = {"prompt": prompt, "multi_modal_data": {"image": [picture2]}}
    tokens = llm.generate(mine, PARAMS).outputs[0].token_ids
    for token in tokens:
        assert token == int(oracle.logits(inputs).argmax())
        for key, value in (("input_ids", token), ("mm_token_type_ids", 0)):
            inputs[key] = torch.cat([inputs[key], torch.tensor([[value]])], dim=1)


def test_sampling_draws_what_transformers_draws(
    llm: LLM, oracle: Any, picture: Image.Image
) -> None:
    prompt = f"{IMAGE}What is this?"
    mine = {"prompt": prompt, "multi_modal_data": {"image": picture}}
    params = SamplingParams(
        max_tokens=TOKENS, temperature=1.7, top_k=40, top_p=0.95, seed=5, ignore_eos=True
    )
    set_seed(5)
    expected = oracle.generate(
        oracle.inputs(prompt, [picture]),
        TOKENS,
        eos_token_id=[],
        do_sample=True,
        temperature=1.7,
        top_k=40,
        top_p=0.95,
    )
    assert llm.generate(mine, params).outputs[0].token_ids == expected


# ---- controls: the tests above can see what they claim to see ----


def test_control_the_picture_moves_the_logits(
    llm: LLM, oracle: Any, picture: Image.Image, photo2: Image.Image
) -> None:
    prompt = f"{IMAGE}What is this?"
    truth = oracle.logits(oracle.inputs(prompt, [picture]))
    others = {
        "another picture": photo2.resize(picture.size),
        "grey": Image.new("RGB", picture.size, (128, 128, 128)),
    }
    for name, other in others.items():
        mine = {"prompt": prompt, "multi_modal_data": {"image": other}}
        assert distance(prefill_logits(llm, mine), truth) > 0.1, name


@pytest.mark.parametrize("what", ["pixels", "deepstack 0", "deepstack 1"])
def test_control_each_output_moves_the_logits(
    llm: LLM, oracle: Any, picture: Image.Image, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = f"{IMAGE}What is this?"
    mine = {"prompt": prompt, "multi_modal_data": {"image": picture}}
    encode = llm._engine.encoders.calls["image"]

    def damaged(items: list[dict[str, Any]]) -> Any:
        if what == "pixels":
            return encode([{**item, "pixel_values": item["pixel_values"] * 0} for item in items])
        outputs = encode(items)
        for out in outputs:
            out.deepstack[int(what[-1])].zero_()
        return outputs

    monkeypatch.setitem(llm._engine.encoders.calls, "image", damaged)
    truth = oracle.logits(oracle.inputs(prompt, [picture]))
    assert distance(prefill_logits(llm, mine), truth) > 0.1
