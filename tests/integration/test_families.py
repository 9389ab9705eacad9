# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Every family through ``LLM``: prompt, logits and tokens are those of unmodified transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from family_oracle import ENCODERS_ONLY, FamilyOracle
from make_tiny_checkpoint import FAMILIES
from PIL import Image
from real_media import speech, video_frames

from tensorrt_llm_ext import LLM, SamplingParams
from tensorrt_llm_ext.engine.errors import RequestError

TOKENS = 5
PARAMS = SamplingParams(max_tokens=TOKENS, ignore_eos=True)
LIMITS = {"encoder_max_num_tokens": 320, "encoder_max_batch_size": 8, "max_seq_len": 512}
# transformers' linear attention, in chunks in fp32, makes ten times more of the same difference.
TOLERANCE = {"qwen3_5": 5e-5, "qwen3_5_moe": 5e-5, "glm5_next": 5e-5}
# transformers' own forward refuses a picture beside a video: it counts them over one placeholder.
REFUSES_MIXED = ("glm4v", "glm4v_moe", "glm46v", "glm46v_moe", "glm_ocr")
# Qwen3-VL has tests of its own; the thinker alone is the same model under other names.
ELSEWHERE = ("qwen3_vl", "qwen3_omni_thinker", *ENCODERS_ONLY)


@dataclass
class Served:
    """A family, served with encoder graphs and without, and its oracle."""

    family: str
    graphs: LLM
    eager: LLM
    oracle: FamilyOracle
    image: str
    video: str
    audio: str
    clip: np.ndarray

    @property
    def tolerance(self) -> float:
        return TOLERANCE.get(self.family, 1e-5)


def sound(seconds: float, seed: int, rate: int = 16000) -> np.ndarray:
    """Chirps and bursts of noise with pauses, as long and as uneven as spoken words."""
    random = np.random.default_rng(seed)
    time = np.arange(int(seconds * rate)) / rate
    low, high = random.uniform(100, 400), random.uniform(900, 3000)
    chirp = np.sin(2 * np.pi * (low * time + (high - low) * time**2 / (2 * max(seconds, 0.1))))
    words = np.sin(2 * np.pi * random.uniform(2, 5) * time) > -0.3
    noise = random.normal(size=len(time)) * (np.sin(2 * np.pi * 1.3 * time + seed) > 0.8)
    return ((0.5 * chirp * words + 0.2 * noise) * 0.8).astype(np.float32)


@pytest.fixture(scope="module", params=[f for f in FAMILIES if f not in ELSEWHERE])
def served(
    request: pytest.FixtureRequest,
    family_checkpoint: Callable[[str], Path],
    photo: Image.Image,
) -> Iterator[Served]:
    family = FAMILIES[request.param]
    folder = family_checkpoint(request.param)
    graphs: dict[str, Any] = {"image": {"buckets": [[96, 4], [320, 8]], "warmup_steps": 1}}
    if family.audio:
        # Eight chunks are a window, and more than a bucket can be cut from no clip.
        graphs["audio"] = {"max_batch_size": 12, "warmup_steps": 1}
    off = {"encoder_cache_max_bytes": 0}  # what comes again is encoded again
    config = {"encoder_cuda_graph": graphs, **off}
    height = 2 * family.vision["patch_size"]  # frames that need no resizing
    wide = np.asarray(photo.resize((300, 120)))
    frames = [wide[3 * i :, 20 * i :][: 2 * height, : 3 * height] for i in range(5)]
    media = family.vocabulary.media
    with (
        LLM(model=folder, device="cpu", multimodal_config=config, **LIMITS) as captured,
        LLM(model=folder, device="cpu", multimodal_config=off, **LIMITS) as eager,
    ):
        yield Served(
            request.param,
            captured,
            eager,
            FamilyOracle(folder, family.preprocessors),
            media["image"],
            media["video"],
            media.get("audio", ""),
            np.stack(frames),
        )


@pytest.fixture(scope="module")
def pictures(photo: Image.Image, photo2: Image.Image) -> list[Image.Image]:
    """Sizes that are no multiple of any patch, so that both sides have to resize."""
    return [photo.resize((150, 120)), photo2.resize((90, 70))]


def ask(llm: LLM, prompt: str, media: dict[str, Any]) -> tuple[list[int], torch.Tensor, list[int]]:
    """Expanded prompt, prefill logits [vocab] and tokens."""
    generator = llm._engine.loop._generator
    seen: list[torch.Tensor] = []
    original = generator.prefill

    def spy(*args: Any) -> Any:
        result = original(*args)
        seen.append(result[0])
        return result

    generator.prefill = spy
    try:
        given = {m: items for m, items in media.items() if len(items)}
        out = llm.generate({"prompt": prompt, "multi_modal_data": given or None}, PARAMS)
    finally:
        del generator.prefill
    return out.prompt_token_ids, seen[0], out.outputs[0].token_ids


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


def check(
    served: Served, prompt: str, fps: float | None = None, eager: bool = False, **media: Any
) -> None:
    """Graphs on, graphs off where asked for, and transformers agree."""
    videos = media.get("videos", [])
    inputs = served.oracle.inputs(prompt, **media, fps=fps)
    truth = served.oracle.logits(inputs)
    expected = served.oracle.generate(inputs, TOKENS)
    rated = [{"frames": v, "fps": fps} if fps else v for v in videos]
    mine = {"image": media.get("images", []), "video": rated, "audio": media.get("audios", [])}
    for llm in (served.graphs, *[served.eager] * eager):
        ids, logits, tokens = ask(llm, prompt, mine)
        assert ids == inputs["input_ids"][0].tolist()
        assert distance(logits, truth) < served.tolerance
        assert tokens == expected


def test_pictures(served: Served, pictures: list[Image.Image]) -> None:
    check(served, f"a {served.image} b {served.image} c", eager=True, images=pictures)


def test_videos(served: Served) -> None:
    check(served, f"{served.video}What happens?", eager=True, videos=[served.clip])
    clips = [served.clip[:2], served.clip]
    check(served, f"a {served.video} b {served.video} c", fps=4.0, videos=clips)


def test_a_real_film(served: Served) -> None:
    """Frames of a video file, cut to the size that needs no resizing."""
    height, width = served.clip.shape[1:3]
    frames = [frame[80 : 80 + height, 200 : 200 + width] for frame in video_frames(6, 12)]
    check(served, f"Look: {served.video} What happens?", videos=[np.stack(frames)])


def test_text(served: Served) -> None:
    check(served, "The sky over the temple")


def test_pictures_and_videos(served: Served, pictures: list[Image.Image]) -> None:
    i, v = served.image, served.video
    prompt = f"w {v} x {i} y {v} z {i} ."
    clips = [served.clip[:2], served.clip]
    if served.family not in REFUSES_MIXED:
        check(served, prompt, eager=True, images=pictures, videos=clips)
        return
    order = [("video", clips[0]), ("image", pictures[0])]
    order += [("video", clips[1]), ("image", pictures[1])]
    truth, expected = served.oracle.step_by_step(prompt, order, TOKENS)
    for llm in (served.graphs, served.eager):
        _, logits, tokens = ask(llm, prompt, {"image": pictures, "video": clips})
        assert distance(logits, truth) < served.tolerance
        assert tokens == expected


def test_graphs_did_the_work(served: Served, pictures: list[Image.Image]) -> None:
    check(served, f"{served.image}What?", images=pictures[:1])
    stats = served.graphs.encoder_stats()["image"]
    assert sum(stats.replays.values()) > 0
    assert stats.eager == {}
    assert served.eager.encoder_stats()["image"].replays == {}
    assert {t.status for t in served.graphs.startup_report.towers} == {"captured"}


def test_control_other_media_move_the_logits(
    served: Served, pictures: list[Image.Image], photo2: Image.Image
) -> None:
    prompt = f"{served.image}What?"
    _, logits, _ = ask(served.graphs, prompt, {"image": pictures[:1]})
    other = photo2.resize(pictures[0].size)
    assert distance(ask(served.graphs, prompt, {"image": [other]})[1], logits) > 0.1
    prompt = f"{served.video}What?"
    _, logits, _ = ask(served.graphs, prompt, {"video": [served.clip]})
    still = np.stack([served.clip[0]] * len(served.clip))
    assert distance(ask(served.graphs, prompt, {"video": [still]})[1], logits) > 0.1


def test_batch_of_all_kinds_equals_each_alone(served: Served, pictures: list[Image.Image]) -> None:
    requests: list[Any] = [
        "The sky over the temple was",
        {"prompt": f"{served.image}What?", "multi_modal_data": {"image": pictures[:1]}},
        "a",
        {"prompt": f"{served.video}And?", "multi_modal_data": {"video": [served.clip]}},
    ]
    if served.audio:
        clip = (sound(1.3, 5), 16000)
        requests.append({"prompt": f"{served.audio}Who?", "multi_modal_data": {"audio": [clip]}})
    lengths = [TOKENS, 2, 4, TOKENS, 3][: len(requests)]
    params = [SamplingParams(max_tokens=n, ignore_eos=True) for n in lengths]
    alone = [
        served.eager.generate(request, its).outputs[0].token_ids
        for request, its in zip(requests, params, strict=True)
    ]
    calls: list[str] = []
    encoders = served.graphs._engine.encoders
    originals = dict(encoders.calls)

    def spy(tower: str) -> Any:
        def call(items: Any) -> Any:
            calls.append(tower)
            return originals[tower](items)

        return call

    encoders.calls.update({tower: spy(tower) for tower in originals})
    try:
        outs = served.graphs.generate(requests, params)
    finally:
        encoders.calls.update(originals)
    assert [out.outputs[0].token_ids for out in outs] == alone
    assert sorted(calls) == sorted(originals)  # one call a tower
    assert served.graphs._engine.loop._generator.batch.lengths == []


def test_messages_use_the_checkpoints_template(served: Served, pictures: list[Image.Image]) -> None:
    parts: list[dict[str, Any]] = [
        {"type": "image", "image": pictures[1]},
        {"type": "text", "text": "Describe it."},
    ]
    if served.audio:
        parts.append({"type": "audio", "audio": (sound(0.7, 2), 16000)})
    chat = [{"role": "user", "content": parts}]
    text = served.oracle.tokenizer.apply_chat_template(
        chat, tokenize=False, add_generation_prompt=True
    )
    out = served.graphs.generate({"messages": chat}, PARAMS)
    assert out.prompt == text
    audios = {"audios": [sound(0.7, 2)]} if served.audio else {}
    inputs = served.oracle.inputs(text, pictures[1:], **audios)
    assert out.prompt_token_ids == inputs["input_ids"][0].tolist()
    assert out.outputs[0].token_ids == served.oracle.generate(inputs, TOKENS)


def test_encode_multimodal_gives_the_towers_features(
    served: Served, pictures: list[Image.Image]
) -> None:
    data: dict[str, Any] = {"image": pictures, "video": [served.clip]}
    if served.audio:
        data["audio"] = [sound(0.4, 1), sound(2.0, 2)]
    inputs = served.oracle.inputs(
        served.image * 2 + served.video + served.audio * len(data.get("audio", [])),
        pictures,
        [served.clip],
        data.get("audio", []),
    )
    inner = served.oracle.model
    inner = inner if hasattr(inner, "visual") else inner.model
    with torch.no_grad():
        want = {
            "image": inner.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"]),
            "video": inner.get_video_features(
                inputs["pixel_values_videos"], inputs["video_grid_thw"]
            ),
        }
    for llm in (served.graphs, served.eager):
        got = llm.encode_multimodal(data)
        assert {m: len(items) for m, items in got.items()} == {m: len(v) for m, v in data.items()}
        for modality, features in want.items():
            for ours, theirs in zip(got[modality], features.pooler_output, strict=True):
                assert distance(ours.features, theirs) < 1e-5
    if served.audio:
        # One clip a call: transformers' features of a short clip depend on its batch mates.
        for clip, ours in zip(data["audio"], got["audio"], strict=True):
            alone = served.oracle.inputs(served.audio, audios=[clip])
            with torch.no_grad():
                features = inner.get_audio_features(
                    alone["input_features"], alone["feature_attention_mask"]
                ).last_hidden_state
            assert distance(ours.features, features) < 1e-5


def test_misplaced_media_are_clear_errors(served: Served, pictures: list[Image.Image]) -> None:
    words = {word for word in (served.image, served.video) if word}
    bare = {word: word.split("|>")[1] + "|>" for word in words}  # the placeholder alone
    if served.family.startswith("glm"):
        prompt = f"see {bare[served.video]} now"
        with pytest.raises(RequestError, match=r"has to stand between <.begin_of_video.> and"):
            ask(served.graphs, prompt, {"video": [served.clip]})
        opening = served.video.split("|>")[0] + "|>"
        with pytest.raises(RequestError, match="and a picture outside of them"):
            ask(served.graphs, f"{opening}{served.image}x", {"image": pictures[:1]})
    elif served.audio:
        with pytest.raises(RequestError, match="right in front of every picture and video"):
            ask(served.graphs, f"see {bare[served.image]} now", {"image": pictures[:1]})
        with pytest.raises(RequestError, match="right in front of every picture and video"):
            ask(served.graphs, f"<|vision_start|>{served.image}", {"image": pictures[:1]})
        with pytest.raises(RequestError, match="right in front of every clip"):
            ask(served.graphs, "a <|audio_pad|> b", {"audio": [sound(0.5, 0)]})
        with pytest.raises(RequestError, match="cannot end with a media item"):
            ask(served.graphs, "<|audio_start|><|audio_pad|>", {"audio": [sound(0.5, 0)]})
    else:
        ids, _, tokens = ask(
            served.graphs, f"see {bare[served.image]} now", {"image": pictures[:1]}
        )
        inputs = served.oracle.inputs(f"see {bare[served.image]} now", pictures[:1])
        assert (ids, tokens) == (
            inputs["input_ids"][0].tolist(),
            served.oracle.generate(inputs, TOKENS),
        )


# ---- sound ----------------------------------------------------------------------------------


@pytest.mark.parametrize("served", ["qwen3_omni"], indirect=True)
@pytest.mark.parametrize("lengths", [[2.0], [0.4], [8.3, 1.0, 3.61]])
def test_sound(served: Served, lengths: list[float]) -> None:
    """Clips under a second alone: transformers gives them another result beside longer ones."""
    clips = [sound(seconds, seed) for seed, seconds in enumerate(lengths)]
    prompt = "x".join([served.audio] * len(clips)) + "Who speaks?"
    check(served, prompt, eager=True, audios=clips)


@pytest.mark.parametrize("served", ["qwen3_omni"], indirect=True)
def test_real_speech(served: Served) -> None:
    spoken = speech("The quick brown fox jumps over the lazy dog, twice before breakfast.")
    check(served, f"Hear: {served.audio} What was said?", audios=[spoken])


@pytest.mark.parametrize("served", ["qwen3_omni"], indirect=True)
def test_picture_video_and_sound_together(served: Served, pictures: list[Image.Image]) -> None:
    clips = [sound(1.2, 3), sound(2.5, 4)]
    i, v, a = served.image, served.video, served.audio
    prompt = f"{a} first {i} then {v} and {a}{i} at last"
    check(served, prompt, fps=3.0, images=pictures, videos=[served.clip], audios=clips)
    stats = served.graphs.encoder_stats()["audio"]
    assert sum(stats.replays.values()) > 0
    assert stats.eager == {}


@pytest.mark.parametrize("served", ["qwen3_omni"], indirect=True)
def test_control_another_clip_moves_the_logits(served: Served) -> None:
    prompt = f"{served.audio}Who?"
    _, logits, _ = ask(served.graphs, prompt, {"audio": [sound(1.5, 1)]})
    for other in (sound(1.5, 2), np.zeros(24000, np.float32)):
        assert distance(ask(served.graphs, prompt, {"audio": [other]})[1], logits) > 0.1
