# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The cache of encoder outputs through ``LLM``: same answers, and no work for known media."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from make_tiny_checkpoint import FAMILIES
from PIL import Image

from tensorrt_llm_ext import LLM, SamplingParams
from tensorrt_llm_ext.engine.encoder_cache import EncoderCache
from tensorrt_llm_ext.towers import modalities_of

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
VIDEO = "<|vision_start|><|video_pad|><|vision_end|>"
PARAMS = SamplingParams(max_tokens=8, ignore_eos=True)
LIMITS = {"encoder_max_num_tokens": 320, "encoder_max_batch_size": 8, "max_seq_len": 512}
ON = {"encoder_cuda_graph": {"image": {"buckets": [[96, 4], [320, 8]]}}}


@pytest.fixture
def cached(tiny_checkpoint: Path) -> Iterator[LLM]:
    """Encoder graphs, and the cache as it is by default."""
    with LLM(model=tiny_checkpoint, device="cpu", multimodal_config=ON, **LIMITS) as model:
        yield model


def ask(llm: LLM, prompt: str = IMAGE, **media: Any) -> list[int]:
    """Ids of prompt and answer."""
    out = llm.generate({"prompt": prompt, "multi_modal_data": media}, PARAMS)
    return [*out.prompt_token_ids, *out.outputs[0].token_ids]


def counts(llm: LLM) -> tuple[int, int]:
    stats = llm.encoder_cache_stats()
    return stats.hits, stats.misses


def test_a_known_picture_gives_the_same_logits_without_its_encoder(
    cached: LLM, llm: LLM, picture: Image.Image, clip: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits: list[torch.Tensor] = []
    generator = cached._engine.loop._generator
    prefill = generator.prefill

    def spy(*args: Any) -> Any:
        result = prefill(*args)
        logits.append(result[0])
        return result

    monkeypatch.setattr(generator, "prefill", spy)
    media = {"image": [picture], "video": [clip]}
    first = ask(cached, IMAGE + VIDEO, **media)
    assert first == ask(llm, IMAGE + VIDEO, **media)
    encoded = cached.encoder_stats()["image"]
    assert encoded.items == 2
    for _ in range(2):
        assert ask(cached, IMAGE + VIDEO, **media) == first
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2])
    assert cached.encoder_stats()["image"] == encoded  # neither items nor replays
    stats = cached.encoder_cache_stats()
    # 20 and 18 tokens of 64 values, and two deepstack outputs of the same size.
    assert (stats.hits, stats.misses, stats.entries) == (4, 2, 2)
    assert (stats.bytes, stats.max_bytes) == (38 * 64 * 3 * 4, 128 << 20)


def test_generate_and_encode_multimodal_share_it(
    cached: LLM, llm: LLM, picture: Image.Image
) -> None:
    expected = ask(llm, image=picture)
    (own,) = cached.encode_multimodal({"image": [picture]})["image"]
    backup = own.features.clone()
    own.features.zero_()
    own.deepstack[0].zero_()
    assert ask(cached, image=picture) == expected
    (again,) = cached.encode_multimodal({"image": [picture]})["image"]
    assert torch.equal(again.features, backup)
    assert (cached.encoder_stats()["image"].items, counts(cached)) == (1, (2, 1))


def test_the_same_picture_twice_is_encoded_once(
    cached: LLM, llm: LLM, picture: Image.Image, picture2: Image.Image
) -> None:
    prompt, media = IMAGE + "and" + IMAGE + IMAGE, [picture, picture2, picture.copy()]
    assert ask(cached, prompt, image=media) == ask(llm, prompt, image=media)
    assert cached.encoder_stats()["image"].items == 2
    cached.clear_encoder_cache()
    requests = [{"prompt": IMAGE, "multi_modal_data": {"image": p}} for p in media]
    outs = cached.generate(requests, PARAMS)  # in one step
    assert outs[0].outputs[0].token_ids == outs[2].outputs[0].token_ids
    assert cached.encoder_stats()["image"].items == 4
    assert counts(cached) == (2, 4)


def test_a_known_video_of_another_rate_has_a_prompt_of_its_own(
    cached: LLM, llm: LLM, clip: np.ndarray
) -> None:
    rates = [{"frames": clip, "fps": fps} for fps in (2, 5)]
    got = [ask(cached, VIDEO, video=[video]) for video in rates]
    assert got == [ask(llm, VIDEO, video=[video]) for video in rates]
    assert got[0] != got[1]
    assert counts(cached) == (1, 1)


def test_pictures_that_come_too_often_for_a_small_cache(
    tiny_checkpoint: Path, llm: LLM, picture: Image.Image, picture2: Image.Image
) -> None:
    """Room for the large one (20 tokens) or the small one (6), not for both."""
    expected = [ask(llm, image=p) for p in (picture, picture2)]
    config = {"encoder_cache_max_bytes": 20 * 64 * 3 * 4}
    with LLM(model=tiny_checkpoint, device="cpu", multimodal_config=config, **LIMITS) as small:
        for _ in range(3):
            assert [ask(small, image=p) for p in (picture, picture2)] == expected
        stats = small.encoder_cache_stats()
        assert (stats.hits, stats.misses, stats.evictions, stats.entries) == (0, 6, 5, 1)
        assert ask(small, image=picture2) == expected[1]
        assert counts(small) == (1, 6)


def test_off(llm: LLM, picture: Image.Image) -> None:
    before = llm.encoder_stats()["image"].items
    for _ in range(2):
        llm.encode_multimodal({"image": [picture, picture]})
    assert llm.encoder_stats()["image"].items == before + 4
    assert not any(llm.encoder_cache_stats().model_dump().values())
    assert llm.startup_report.encoder_cache_bytes == 0
    llm.clear_encoder_cache()


def test_weights_written_in_place_are_seen(cached: LLM, picture: Image.Image) -> None:
    tower = cached._engine._towers["image"]
    (before,) = cached.encode_multimodal({"image": [picture]})["image"]
    with torch.no_grad():
        for parameter in tower.parameters():
            parameter.mul_(1.1)
    (after,) = cached.encode_multimodal({"image": [picture]})["image"]
    assert not torch.equal(before.features, after.features)
    (again,) = cached.encode_multimodal({"image": [picture]})["image"]
    assert torch.equal(after.features, again.features)
    tower.recapture()
    cached.encode_multimodal({"image": [picture]})
    stats = cached.encoder_cache_stats()
    assert (stats.hits, stats.misses, stats.dropped) == (2, 2, 1)


def test_out_of_memory_for_a_copy_ends_only_its_request(
    cached: LLM, picture: Image.Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = ask(cached, image=picture)

    def broken(self: EncoderCache, key: Any) -> Any:
        raise torch.OutOfMemoryError("tried to allocate 2 GiB")

    requests = [{"prompt": IMAGE, "multi_modal_data": {"image": picture}}, "The sky"]
    with monkeypatch.context() as patch:
        patch.setattr(EncoderCache, "find", broken)
        lost, fine = cached.generate(requests, PARAMS)
    assert "out of memory while its media were loaded" in lost.error
    assert fine.error is None
    assert len(fine.outputs[0].token_ids) == 8
    assert ask(cached, image=picture) == expected


def test_shutdown_gives_the_memory_back(tiny_checkpoint: Path, picture: Image.Image) -> None:
    with LLM(model=tiny_checkpoint, device="cpu", mm_encoder_only=True) as llm:
        llm.encode_multimodal({"image": [picture]})
        assert llm.startup_report.encoder_cache_bytes == 128 << 20
        cache = llm._engine.encoders.cache
        assert cache._arena._bytes.numel() == 128 << 20
    assert cache._arena._bytes.numel() == 0
    stats = llm.encoder_cache_stats()
    assert (stats.misses, stats.entries) == (1, 0)


@pytest.mark.parametrize("family", list(FAMILIES))
def test_every_family(
    family: str, family_checkpoint: Callable[[str], Path], photo: Image.Image, photo2: Image.Image
) -> None:
    """A second time nothing is encoded, and the outputs are the same bits."""
    folder, data, graphs = family_checkpoint(family), dict[str, Any](), dict[str, Any]()
    towers = modalities_of(folder)
    if "image" in towers:
        data["image"] = [photo.resize((150, 120)), photo2.resize((90, 70))]
        data["video"] = [[photo.resize((112, 112)), photo2.resize((112, 112))] * 2]
        graphs |= ON["encoder_cuda_graph"]
    if "audio" in towers:
        noise = np.random.default_rng(0).normal(size=30000).astype(np.float32) * 0.1
        data["audio"] = [noise[:16000], (noise[16000:], 8000)]
        graphs["audio"] = {"max_batch_size": 2, "warmup_steps": 1}
    config = {"encoder_cuda_graph": graphs}
    options = {"device": "cpu", "encoder_max_num_tokens": 320, "mm_encoder_only": True}
    with LLM(model=folder, multimodal_config=config, **options) as llm:
        first = llm.encode_multimodal(data)
        encoded = llm.encoder_stats()
        again = llm.encode_multimodal(data)
        assert llm.encoder_stats() == encoded
        total = sum(map(len, data.values()))
        assert counts(llm) == (total, total)
    for modality, outputs in first.items():
        for ours, theirs in zip(outputs, again[modality], strict=True):
            assert ours.keys() == theirs.keys()
            for name, value in ours.items():
                pairs = zip(value, theirs[name], strict=True)  # rows, or deepstack outputs
                assert all(torch.equal(a, b) for a, b in pairs)
