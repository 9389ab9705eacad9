# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""What counts as the same media item, and what a known one saves."""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from tensorrt_llm_ext.engine import media_loader
from tensorrt_llm_ext.engine.audio_inputs import AudioInputs
from tensorrt_llm_ext.engine.encoder_cache import EncoderCache
from tensorrt_llm_ext.engine.encoders import Encoders
from tensorrt_llm_ext.engine.errors import RequestError
from tensorrt_llm_ext.engine.media_inputs import MediaInputs
from tensorrt_llm_ext.engine.media_loader import ContentDigest
from tensorrt_llm_ext.engine.patches import Fit
from tensorrt_llm_ext.towers.audio_adapter import ChunkGeometry
from tensorrt_llm_ext.towers.output import ItemOutput

CPU = torch.device("cpu")


class Tower(nn.Module):
    """Gives what it is given, so that any difference before it shows; counts items of each call."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.calls: list[int] = []

    @torch.no_grad()
    def encode(self, items: list[dict[str, Any]]) -> list[ItemOutput]:
        self.calls.append(len(items))
        given = [item.get("pixel_values", item.get("input_features")) for item in items]
        return [ItemOutput(features=rows * self.weight, deepstack=[rows + 1]) for rows in given]


@pytest.fixture(scope="module")
def media(tiny_checkpoint: Path) -> MediaInputs:
    inputs = MediaInputs(tiny_checkpoint)
    inputs.audio = AudioInputs({}, ChunkGeometry(128, 100, 8, True))
    inputs.modalities = ("image", "video", "audio")
    return inputs


def make(media: MediaInputs, *, cached: bool = True) -> Encoders:
    towers = {"image": Tower(), "audio": Tower()}
    encoders = Encoders(media, towers)
    if cached:
        encoders.cache = EncoderCache(64 << 20, towers, CPU)
    return encoders


@pytest.fixture
def encoders(media: MediaInputs) -> Encoders:
    return make(media)


def calls(encoders: Encoders, tower: str = "image") -> list[int]:
    return encoders.calls[tower].__self__.calls


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def sound(samples: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=samples) * 0.1).astype(np.float32)


def same(a: ItemOutput, b: ItemOutput) -> bool:
    return torch.equal(a.features, b.features) and torch.equal(a.deepstack[0], b.deepstack[0])


def counts(encoders: Encoders) -> tuple[int, int]:
    stats = encoders.cache_stats()
    return stats.hits, stats.misses


# ---- what a known item saves ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("modality", "item"),
    [
        ("image", noise(64, 96, 3)),
        ("image", Image.fromarray(noise(64, 96, 3))),
        ("image", torch.from_numpy(noise(64, 96)).float() / 255),
        ("video", noise(5, 64, 96, 3)),
        ("video", {"frames": [Image.fromarray(f) for f in noise(5, 64, 96, 3)], "fps": 2}),
        ("audio", sound(16000)),
        ("audio", (sound(44100), 44100)),
    ],
)
def test_a_known_item_is_neither_prepared_nor_encoded(
    media: MediaInputs, modality: str, item: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoders = make(media)
    (first,) = encoders.encode_multimodal({modality: [item]})[modality]
    (expected,) = make(media, cached=False).encode_multimodal({modality: [item]})[modality]
    assert same(first, expected)
    tower = "audio" if modality == "audio" else "image"

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a known item was prepared")

    monkeypatch.setattr(media, "prepare", refuse)
    monkeypatch.setattr(media, "load", refuse)
    (again,) = encoders.encode_multimodal({modality: [item]})[modality]
    assert same(again, expected)
    assert (calls(encoders, tower), counts(encoders)) == ([1], (1, 1))


def test_changes_of_a_caller_change_no_later_answer(encoders: Encoders) -> None:
    picture = noise(64, 96, 3)
    (first,) = encoders.encode_multimodal({"image": [picture]})["image"]
    expected = first.features.clone()
    first.features.zero_()
    first.deepstack[0].zero_()
    backup = picture.copy()
    picture[:] = 0
    (other,) = encoders.encode_multimodal({"image": [picture]})["image"]
    assert not torch.equal(other.features, expected)
    for _ in range(2):
        (again,) = encoders.encode_multimodal({"image": [backup]})["image"]
        assert torch.equal(again.features, expected)
        assert torch.equal(again.deepstack[0], expected + 1)
        again.features.zero_()
        again.deepstack[0].zero_()
    assert calls(encoders) == [1, 1]


def test_equal_items_of_one_call_are_encoded_once(encoders: Encoders) -> None:
    picture, other = noise(64, 96, 3), noise(64, 96, 3, seed=1)
    given = [picture, other, Image.fromarray(picture), picture.copy()]
    outs = encoders.encode_multimodal({"image": given})["image"]
    assert (calls(encoders), counts(encoders)) == ([2], (2, 2))
    assert same(outs[0], outs[2])
    assert not same(outs[0], outs[1])
    tensors = [t for out in outs for t in (out.features, *out.deepstack)]
    assert len({t.untyped_storage().data_ptr() for t in tensors}) == len(tensors)
    expected = outs[0].features.clone()
    outs[0].features.zero_()
    assert torch.equal(outs[2].features, expected)
    assert torch.equal(outs[3].features, expected)


def test_equal_items_of_several_requests_too(encoders: Encoders) -> None:
    media, loader = encoders.media, encoders.loader()
    picture, film = noise(64, 96, 3), noise(4, 64, 96, 3)

    def planned(**data: list[Any]) -> dict[str, Any]:
        return {m: [media.plan(m, item) for item in items] for m, items in data.items()}

    requests = [
        planned(image=[picture]),
        planned(image=[picture, noise(64, 96, 3, seed=2)], video=[film]),
        planned(),
        planned(video=[film, film]),
    ]
    outs = encoders.encode([loader.load(request) for request in requests])
    assert [{m: len(its) for m, its in out.items()} for out in outs] == [
        {"image": 1},
        {"image": 2, "video": 1},
        {},
        {"video": 2},
    ]
    assert calls(encoders) == [3]
    assert same(outs[0]["image"][0], outs[1]["image"][0])
    assert same(outs[1]["video"][0], outs[3]["video"][1])


def test_equal_items_that_are_too_large_for_the_cache(media: MediaInputs) -> None:
    encoders = make(media)
    encoders.cache = EncoderCache(1000, {"image": Tower()}, CPU)
    picture = noise(64, 96, 3)
    for _ in range(2):
        first, second = encoders.encode_multimodal({"image": [picture] * 2})["image"]
        assert same(first, second)
    assert (calls(encoders), encoders.cache_stats().entries) == ([1, 1], 0)


def test_an_item_of_a_refused_request_serves_the_next(encoders: Encoders) -> None:
    media, loader = encoders.media, encoders.loader()
    picture, broken = noise(64, 96, 3), np.full((64, 96, 3), np.nan)
    with pytest.raises(RequestError, match="NaN"):
        loader.load({"image": [media.plan("image", item) for item in (picture, broken)]})
    inputs = loader.load({"image": [media.plan("image", picture)]})
    (out,) = encoders.encode([inputs])[0]["image"]
    assert calls(encoders) == [1]
    (expected,) = make(media, cached=False).encode_multimodal({"image": [picture]})["image"]
    assert same(out, expected)


def test_a_video_that_breaks_in_the_middle_leaves_nothing(encoders: Encoders) -> None:
    frames = [*noise(2, 64, 96, 3), np.full((64, 96, 3), 7.0)]
    for _ in range(2):
        with pytest.raises(RequestError, match="video frame 2 holds values from 7 to 7"):
            encoders.encode_multimodal({"video": [frames]})
    assert (calls(encoders), encoders.cache_stats().entries) == ([], 0)


def test_changed_weights_are_never_answered_from_before(encoders: Encoders) -> None:
    picture, tower = noise(64, 96, 3), encoders.calls["image"].__self__
    (before,) = encoders.encode_multimodal({"image": [picture]})["image"]
    with torch.no_grad():
        tower.weight.mul_(3)
    (after,) = encoders.encode_multimodal({"image": [picture]})["image"]
    assert torch.equal(after.features, before.features * 3)
    tower.weight.data = tower.weight.data * 2
    (after,) = encoders.encode_multimodal({"image": [picture]})["image"]
    assert torch.equal(after.features, before.features * 6)
    tower.weight.data.mul_(0)  # torch does not count this
    encoders.clear_cache()
    (after,) = encoders.encode_multimodal({"image": [picture]})["image"]
    assert torch.equal(after.features, before.features * 0)
    stats = encoders.cache_stats()
    assert (stats.hits, stats.misses, stats.dropped, stats.entries) == (0, 4, 3, 1)


def test_weights_that_change_while_a_tower_runs(encoders: Encoders) -> None:
    picture, tower = noise(64, 96, 3), encoders.calls["image"].__self__
    encode = encoders.calls["image"]

    def and_then_update(items: list[Any]) -> Any:
        outputs = encode(items)
        with torch.no_grad():
            tower.weight.mul_(3)
        return outputs

    encoders.calls["image"] = and_then_update
    (before,) = encoders.encode_multimodal({"image": [picture]})["image"]
    encoders.calls["image"] = encode
    (after,) = encoders.encode_multimodal({"image": [picture]})["image"]
    assert torch.equal(after.features, before.features * 3)


# ---- what makes items different -------------------------------------------------------------


def check_all_differ(media: MediaInputs, modality: str, *items: Any, equal: bool = False) -> None:
    """Each item, given after the others or with them, has the output it has without a cache."""
    encoders, plain = make(media), make(media, cached=False)
    expected = [plain.encode_multimodal({modality: [i]})[modality][0] for i in items]
    assert all(same(expected[0], other) == equal for other in expected[1:])
    for _ in range(2):
        for item, wanted in zip(items, expected, strict=True):
            (out,) = encoders.encode_multimodal({modality: [item]})[modality]
            assert same(out, wanted)
    together = make(media).encode_multimodal({modality: [*items]})[modality]
    assert all(map(same, together, expected))


def test_one_pixel_that_no_glance_falls_on(media: MediaInputs) -> None:
    picture = noise(64, 96, 3)
    other = picture.copy()
    other[63, 95, 2] ^= 1
    assert media_loader._glance_at(picture) == media_loader._glance_at(other)
    check_all_differ(media, "image", picture, other)


def test_pictures_of_equal_bytes_and_another_shape(
    media: MediaInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both become 32 x 32, and where a glance falls, on either, they are black."""
    small = dataclasses.replace(media.image_rule, min_pixels=32 * 32)
    monkeypatch.setattr(media, "image_rule", small)
    flat = noise(24 * 25 * 3)
    index = np.arange(flat.size)
    for shape in ((24, 25, 3), (25, 24, 3)):
        flat[index.reshape(shape)[::2, ::2]] = 0
    tall, wide = flat.reshape(25, 24, 3), flat.reshape(24, 25, 3)
    assert media_loader._glance_at(tall) == media_loader._glance_at(wide)
    assert media.plan("image", tall).fit == media.plan("image", wide).fit
    check_all_differ(media, "image", tall, wide)


def test_pictures_of_equal_bytes_and_another_palette(media: MediaInputs) -> None:
    grey = Image.fromarray(noise(64, 96))
    palettes = []
    for turn in range(2):
        picture = Image.frombytes("P", grey.size, grey.tobytes())
        picture.putpalette([(i * (1 + 2 * turn)) % 256 for i in range(768)])
        palettes.append(picture)
    check_all_differ(media, "image", grey, *palettes)


def test_pictures_of_equal_bytes_and_another_mode(media: MediaInputs) -> None:
    data = noise(64, 96, 3).tobytes()
    modes = [Image.frombytes(mode, (96, 64), data) for mode in ("RGB", "YCbCr", "HSV", "LAB")]
    check_all_differ(media, "image", *modes)


def test_alpha_and_type_change_nothing_that_is_seen(media: MediaInputs) -> None:
    rgb = Image.fromarray(noise(64, 96, 3))
    seen, clear = rgb.convert("RGBA"), rgb.convert("RGBA")
    clear.putalpha(Image.fromarray(noise(64, 96)))
    array = np.asarray(rgb)
    forms = (rgb, seen, clear, array, array / 255, torch.from_numpy(array / 255).float())
    check_all_differ(media, "image", *forms, equal=True)


def test_a_video_of_a_picture_is_another_item(media: MediaInputs) -> None:
    encoders, plain, picture = make(media), make(media, cached=False), noise(64, 96, 3)
    for modality in ("image", "video", "image", "video"):
        data = {modality: [picture if modality == "image" else picture[None]]}
        (out,) = encoders.encode_multimodal(data)[modality]
        assert same(out, plain.encode_multimodal(data)[modality][0])


def test_videos_that_begin_alike(media: MediaInputs) -> None:
    a, b, c, d = noise(4, 64, 96, 3)
    videos = [[a, b, c, d], [a, c, b, d], [a, b, c], [a, b], [a, b, c, c, d, d]]
    check_all_differ(media, "video", *videos)
    check_all_differ(media, "video", [a, b, c], [a, b, c, c], equal=True)  # as it is filled up


def test_frame_rates_are_none_of_the_encoders_business(media: MediaInputs) -> None:
    frames = noise(4, 64, 96, 3)
    rates = [{"frames": frames, "fps": fps} for fps in (1, 2, 30)]
    check_all_differ(media, "video", *rates, equal=True)


def test_samples_of_another_rate(media: MediaInputs) -> None:
    """Close enough for the same number of frames."""
    clip = sound(16000)
    rates = (16000, 15999, 15998)
    assert len({media.audio.plan((clip, rate)).num_frames for rate in rates}) == 1
    check_all_differ(media, "audio", *[(clip, rate) for rate in rates])


def test_samples_that_no_glance_falls_on(media: MediaInputs) -> None:
    clip = sound(16000)
    other = clip.copy()
    other[8007] += 0.5
    assert media_loader._glance_at(clip) == media_loader._glance_at(other)
    check_all_differ(media, "audio", clip, other)


RULES = [
    {"mean": (0.1, 0.2, 0.3)},
    {"std": (0.1, 0.2, 0.3)},
    {"resample": int(Image.Resampling.NEAREST)},
    {"rescale_factor": 1 / 127},
    {"raster": True},
    {"do_normalize": False},
]


@pytest.mark.parametrize("change", RULES, ids=lambda change: next(iter(change)))
@pytest.mark.parametrize("modality", ["image", "video"])
def test_another_rule(
    media: MediaInputs, modality: str, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = noise(70, 100, 3)
    data = {modality: [picture if modality == "image" else picture[None]]}
    encoders, plain = make(media), make(media, cached=False)
    (first,) = encoders.encode_multimodal(data)[modality]
    rule = media.rule_of(modality)
    monkeypatch.setattr(media, f"{modality}_rule", dataclasses.replace(rule, **change))
    (second,) = encoders.encode_multimodal(data)[modality]
    assert not same(first, second)
    assert same(second, plain.encode_multimodal(data)[modality][0])
    monkeypatch.undo()
    assert same(first, encoders.encode_multimodal(data)[modality][0])
    assert calls(encoders) == [1, 1]


def test_another_fit(encoders: Encoders) -> None:
    """The same grid, but less of it is the picture, as on GLM-5.3's canvas."""
    item = encoders.media.plan("image", noise(64, 96, 3))
    smaller = dataclasses.replace(item, fit=Fit(item.fit.canvas, (40, 60)))
    first, second = (
        encoders.encode([encoders.loader().load({"image": [it]})])[0]["image"][0]
        for it in (item, smaller)
    )
    assert not same(first, second)
    assert calls(encoders) == [1, 1]


@pytest.mark.parametrize(
    ("settings", "shortest"), [({"n_fft": 512}, 0), ({"hop_length": 200}, 0), ({}, 20000)]
)
def test_another_feature_extractor(
    media: MediaInputs,
    settings: dict[str, Any],
    shortest: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoders, data = make(media), {"audio": [sound(16000)]}
    encoders.encode_multimodal(data)
    other = AudioInputs(settings, ChunkGeometry(128, 100, 8, True), shortest=shortest)
    monkeypatch.setattr(media, "audio", other)
    (out,) = encoders.encode_multimodal(data)["audio"]
    assert same(out, make(media, cached=False).encode_multimodal(data)["audio"][0])
    assert calls(encoders, "audio") == [1, 1]


# ---- hashing --------------------------------------------------------------------------------


def test_the_digest_is_blake2b_of_the_content(encoders: Encoders) -> None:
    film = noise(4, 64, 96, 3)
    item = encoders.media.plan("video", film[:, ::-1])  # frames that are not contiguous
    (loaded,) = encoders.loader().load({"video": [item]})["video"]
    whole = np.ascontiguousarray(film[:, ::-1])
    assert loaded.key is not None
    assert loaded.key.digest == hashlib.blake2b(whole.tobytes(), digest_size=32).digest()


def test_new_items_wait_for_no_hash(encoders: Encoders, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before their encoder has run; only what may be known already is hashed at once."""
    may_hash, hashed = threading.Event(), list[bool]()
    add, encode = ContentDigest.add, encoders.calls["image"]

    def slow(self: ContentDigest, part: np.ndarray) -> None:
        here = threading.current_thread() is threading.main_thread()
        hashed.append(here)
        if not here:
            assert may_hash.wait(30)
        add(self, part)

    def then_hash(items: list[Any]) -> Any:
        may_hash.set()
        return encode(items)

    monkeypatch.setattr(ContentDigest, "add", slow)
    encoders.calls["image"] = then_hash
    data = {"image": [noise(64, 96, 3), noise(64, 96, 3, seed=1)], "video": [noise(3, 64, 96, 3)]}
    encoders.encode_multimodal(data)
    assert hashed == [False] * 6
    encoders.encode_multimodal(data)
    assert hashed[6:] == [True] * 6
    assert counts(encoders) == (3, 3)


def test_the_hashing_thread_ends(encoders: Encoders) -> None:
    def alive() -> list[str]:
        names = [thread.name for thread in threading.enumerate()]
        return [name for name in names if name.startswith("media-digest")]

    gc.disable()
    try:
        loader = encoders.loader()
        inputs = loader.load({"image": [encoders.media.plan("image", noise(64, 96, 3))]})
        assert len(alive()) == 1
        encoders.encode([inputs])
        del loader, inputs
        deadline = time.monotonic() + 10
        while alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert alive() == []
    finally:
        gc.enable()


def test_without_a_cache_nothing_is_hashed(
    media: MediaInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("hashed")

    monkeypatch.setattr(media_loader, "ContentDigest", refuse)
    monkeypatch.setattr(media_loader, "_glance_at", refuse)
    encoders = make(media, cached=False)
    picture = noise(64, 96, 3)
    first, second = encoders.encode_multimodal({"image": [picture] * 2})["image"]
    assert same(first, second)
    assert calls(encoders) == [2]
    assert not any(encoders.cache_stats().model_dump().values())
    encoders.clear_cache()


def test_glances_are_short(media: MediaInputs) -> None:
    shapes: list[tuple[int, ...]] = [(1, 2, 3), (17, 33, 3), (4000, 3000, 3), (5,), (480000,)]
    for shape in shapes:
        assert 1 <= len(media_loader._glance_at(np.zeros(shape, np.uint8))) <= 16 * 16 * 3
