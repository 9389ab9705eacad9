# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The tiny checkpoint is an ordinary folder that transformers loads, and its errors cannot hide."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from family_oracle import PROCESSORS
from make_tiny_checkpoint import FAMILIES, SPECIAL_TOKENS, VOCAB_SIZE, main, make_tiny_checkpoint
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForImageTextToText, AutoTokenizer
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from tensorrt_llm_ext import LLM
from tensorrt_llm_ext.engine.families import FAMILIES as SERVED
from tensorrt_llm_ext.towers import load_tower, modalities_of

# Published in a layout that transformers 5.17 does not read.
OWN_LAYOUT = ("qwen3_asr_original", "nemotron_h_omni")
SECTION_OF = {"image": "vision", "audio": "audio"}


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


@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in ("qwen3_vl", *OWN_LAYOUT)])
def test_every_family_is_an_ordinary_folder(family_checkpoint, family: str, photo) -> None:
    """transformers reads all of it: weights, special tokens, template, preprocessor."""
    folder, made = family_checkpoint(family), FAMILIES[family]
    config = AutoConfig.from_pretrained(folder)
    model_class = getattr(transformers, config.architectures[0])
    _model, report = model_class.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    config = getattr(config, "thinker_config", config)
    for section in made.sections if family != "radio" else ():
        for key, value in getattr(made, section).items():
            if key not in ("rope_parameters", "layer_types"):  # completed and renamed
                assert getattr(getattr(config, f"{section}_config"), key) == value, key
    for name, weight in load_file(folder / "model.safetensors").items():
        if not re.search(r"norm_(mean|std)$|lambda1$|summary_idxs$", name):
            assert 0.01 < float(weight.std()) < 0.3, name
    if made.vocabulary is not None:
        check_vocabulary(AutoTokenizer.from_pretrained(folder), config, made)
    if made.preprocessors in PROCESSORS:
        processor = getattr(transformers, PROCESSORS[made.preprocessors][1]).from_pretrained(folder)
        assert processor.patch_size == config.vision_config.patch_size
        rows = processor(images=photo.resize((1280, 854)), return_tensors="pt")["pixel_values"]
        assert len(rows) * processor.patch_size**2 <= 512 * 512


def check_vocabulary(tokenizer, config, made) -> None:
    for key, token in made.ids.items():
        assert tokenizer.convert_tokens_to_ids(token) == getattr(config, key)
    media = made.vocabulary.media
    assert ("image" in media) == ("video" in media) == bool(made.vision)
    assert ("audio" in media) == bool(made.audio)
    chat = [{"role": "user", "content": [{"type": kind} for kind in media]}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    for tokens in media.values():
        assert text.count(tokens) == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_loaded_and_encodes(family_checkpoint, family: str, photo, photo2) -> None:
    """By ``load_tower`` and by an engine of encoders alone; what it is shown and told matters."""
    folder = family_checkpoint(family)
    sections = FAMILIES[family].sections
    wanted = {name for name, section in SECTION_OF.items() if section in sections}
    assert set(modalities_of(folder)) == wanted != set()
    for modality in wanted:
        assert load_tower(folder, modality=modality).encoder_cuda_graph_modality == modality
    noise = [np.random.default_rng(i).normal(size=9000).astype(np.float32) for i in range(2)]
    media = {"image": [photo.resize((64, 64)), photo2.resize((64, 64))], "audio": noise}
    with LLM(model=folder, device="cpu", mm_encoder_only=True) as llm:
        outs = llm.encode_multimodal({modality: media[modality] for modality in wanted})
        for modality in wanted:
            one, two = (out.features for out in outs[modality])
            assert relative(one, two) > 0.05, modality


def test_every_model_that_the_engine_knows_has_a_family(family_checkpoint) -> None:
    configs = [family_checkpoint(family) / "config.json" for family in FAMILIES]
    assert {json.loads(c.read_text())["model_type"] for c in configs} == SERVED.keys()


def test_command_line(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["make_tiny_checkpoint.py", "--help"])
    with pytest.raises(SystemExit):
        main()
    (listed,) = set(re.findall(r"--family \{(.*?)\}", capsys.readouterr().out))
    assert listed.split(",") == list(FAMILIES)
    arguments = ["--family", "radio", "--out", str(tmp_path / "r"), "--seed", "3"]
    monkeypatch.setattr("sys.argv", ["make_tiny_checkpoint.py", *arguments, "--dtype", "float16"])
    main()
    assert "radio, seed 3" in capsys.readouterr().out
    again = make_tiny_checkpoint(tmp_path / "again", "radio", 3, dtype="float16")
    written, expected = (load_file(f / "model.safetensors") for f in (tmp_path / "r", again))
    assert written.keys() == expected.keys()
    assert all(torch.equal(written[name], expected[name]) for name in written)
    assert {weight.dtype for weight in written.values()} == {torch.float16, torch.int64}


def test_unknown_family_dtype_and_section_are_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"'llava'.*qwen3_vl"):
        make_tiny_checkpoint(tmp_path, family="llava")
    with pytest.raises(ValueError, match=r"'int8'.*bfloat16"):
        make_tiny_checkpoint(tmp_path, dtype="int8")
    with pytest.raises(ValueError, match=r"radio has no section 'text'; it has vision"):
        make_tiny_checkpoint(tmp_path, "radio", text={"hidden_size": 32})
    assert list(tmp_path.iterdir()) == []
