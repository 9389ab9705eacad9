# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The tiny checkpoint is an ordinary folder that transformers loads, and its errors cannot hide."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from make_tiny_checkpoint import FAMILIES, SPECIAL_TOKENS, VOCAB_SIZE, make_tiny_checkpoint
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForImageTextToText, AutoTokenizer
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoint: Path):
    return AutoTokenizer.from_pretrained(tiny_checkpoint)


@pytest.fixture(scope="module")
def model(tiny_checkpoint: Path):
    return AutoModelForImageTextToText.from_pretrained(tiny_checkpoint).eval()


def picture_inputs(folder: Path, tokenizer, image: Image.Image) -> dict[str, torch.Tensor]:
    """What transformers' own processor would feed the model (it needs torchvision, we do not)."""
    pixels = Qwen2VLImageProcessorPil.from_pretrained(folder)(images=image, return_tensors="pt")
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What?"}]}]
    prompt = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    count = int(pixels["image_grid_thw"].prod()) // 4
    prompt = prompt.replace("<|image_pad|>", "<|image_pad|>" * count)
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    is_image = ids == tokenizer.convert_tokens_to_ids("<|image_pad|>")
    assert int(is_image.sum()) == count > 0
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "mm_token_type_ids": is_image.int(),
        **pixels,
    }


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / a.norm())


def test_special_ids_match_the_config(tiny_checkpoint, tokenizer) -> None:
    config = json.loads((tiny_checkpoint / "config.json").read_text())
    assert len(tokenizer) == config["text_config"]["vocab_size"] == VOCAB_SIZE
    for key, token in {
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
    }.items():
        assert tokenizer.convert_tokens_to_ids(token) == config[key]
    assert tokenizer.convert_tokens_to_ids(SPECIAL_TOKENS[0]) == VOCAB_SIZE - len(SPECIAL_TOKENS)
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.pad_token == "<|endoftext|>"


@pytest.mark.parametrize(
    "text", ["def main() -> None:\n", "What is in this picture?", "你好, naïve 🙂"]
)
def test_tokenizer_is_lossless_and_trained(tokenizer, text: str) -> None:
    ids = tokenizer(text).input_ids
    assert tokenizer.decode(ids) == text
    assert len(ids) < len(text.encode())  # one id a byte is what an untrained BPE gives


def test_chat_template(tokenizer) -> None:
    chat = [
        {"role": "system", "content": "Be short."},
        {
            "role": "user",
            "content": [
                {"type": "image", "image": "a.jpg"},
                {"type": "text", "text": "and"},
                {"type": "video", "video": "b.mp4"},
            ],
        },
    ]
    assert tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nBe short.<|im_end|>\n"
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>and"
        "<|vision_start|><|video_pad|><|vision_end|><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_unknown_content_part_is_refused(tokenizer) -> None:
    chat = [{"role": "user", "content": [{"type": "smell"}]}]
    with pytest.raises(Exception, match="neither text, image nor video"):
        tokenizer.apply_chat_template(chat, tokenize=False)


def test_generates_from_text(tokenizer, model) -> None:
    inputs = tokenizer("def main(", return_tensors="pt")
    out = model.generate(**inputs, max_new_tokens=4, do_sample=False)
    assert out.shape[1] == inputs.input_ids.shape[1] + 4


def test_generates_from_a_picture(tiny_checkpoint, tokenizer, model, photo) -> None:
    inputs = picture_inputs(tiny_checkpoint, tokenizer, photo)
    out = model.generate(**inputs, max_new_tokens=8, do_sample=False)
    new = out[0, inputs["input_ids"].shape[1] :].tolist()
    assert len(new) == 8
    assert len(set(new)) > 2  # not one token over and over: equal texts must mean something


@torch.no_grad()
def test_logits_depend_on_picture_and_deepstack(
    tiny_checkpoint, tokenizer, model, photo, photo2
) -> None:
    inputs = picture_inputs(tiny_checkpoint, tokenizer, photo)
    other = picture_inputs(tiny_checkpoint, tokenizer, photo2)
    logits = model(**inputs).logits[0, -1]
    assert relative(logits, model(**other).logits[0, -1]) > 0.1
    blank = {**inputs, "pixel_values": torch.zeros_like(inputs["pixel_values"])}
    assert relative(logits, model(**blank).logits[0, -1]) > 0.1
    for merger in model.model.visual.deepstack_merger_list:
        hook = merger.register_forward_hook(lambda module, args, output: output * 0)
        assert relative(logits, model(**inputs).logits[0, -1]) > 0.1
        hook.remove()


def test_every_parameter_is_random(tiny_checkpoint) -> None:
    for name, weight in load_file(tiny_checkpoint / "model.safetensors").items():
        assert 0.02 < float(weight.std()) < 0.2, name


def test_same_seed_same_weights(tiny_checkpoint, tmp_path) -> None:
    again = make_tiny_checkpoint(tmp_path / "again")
    for file in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (again / file).read_bytes() == (tiny_checkpoint / file).read_bytes(), file
    other = make_tiny_checkpoint(tmp_path / "other", seed=1, text={"num_hidden_layers": 3})
    assert (other / "model.safetensors").read_bytes() != (
        tiny_checkpoint / "model.safetensors"
    ).read_bytes()
    assert json.loads((other / "config.json").read_text())["text_config"]["num_hidden_layers"] == 3


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"qwen3_vl"}))
def test_every_family_is_an_ordinary_folder(family_checkpoint, family: str) -> None:
    """transformers reads all of it: weights, special tokens, template, preprocessor."""
    folder = family_checkpoint(family)
    config = AutoConfig.from_pretrained(folder)
    config = getattr(config, "thinker_config", config)
    _model, report = AutoModelForImageTextToText.from_pretrained(
        folder, config=config, output_loading_info=True
    )
    assert not any(report.values()), report
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for key, token in FAMILIES[family].ids.items():
        assert tokenizer.convert_tokens_to_ids(token) == getattr(config, key)
    kinds = list(FAMILIES[family].vocabulary.media)
    chat = [{"role": "user", "content": [{"type": kind} for kind in kinds]}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    for kind in kinds:
        assert text.count(FAMILIES[family].vocabulary.media[kind]) == 1
    for name, weight in load_file(folder / "model.safetensors").items():
        assert 0.01 < float(weight.std()) < 0.3, name
    preprocessor = json.loads((folder / "preprocessor_config.json").read_text())
    assert preprocessor["patch_size"] == config.vision_config.patch_size


def test_unknown_family_and_dtype_are_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"'llava'.*qwen3_vl"):
        make_tiny_checkpoint(tmp_path, family="llava")
    with pytest.raises(ValueError, match=r"'int8'.*bfloat16"):
        make_tiny_checkpoint(tmp_path, dtype="int8")
