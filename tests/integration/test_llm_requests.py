# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Requests join, leave, fail and wait without touching each other."""

from __future__ import annotations

import io
import itertools
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile

from tensorrt_llm_ext import LLM, SamplingParams
from tensorrt_llm_ext.engine.encode_queue import EncodeJob
from tensorrt_llm_ext.engine.encoder_cache import EncoderCache
from tensorrt_llm_ext.engine.errors import RequestError

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
VIDEO = "<|vision_start|><|video_pad|><|vision_end|>"


def with_image(image: Any, prompt: str = f"{IMAGE}What?") -> dict[str, Any]:
    return {"prompt": prompt, "multi_modal_data": {"image": image}}


def with_template(**kwargs: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Hi"}], "chat_template_kwargs": kwargs}


def truncated(picture: Image.Image, kind: str) -> Image.Image:
    """A file whose header is fine, opened and not yet decoded."""
    file = io.BytesIO()
    picture.save(file, kind)
    return Image.open(io.BytesIO(file.getvalue()[: len(file.getvalue()) // 2]))


def tokens(n: int, **options: Any) -> SamplingParams:
    return SamplingParams(max_tokens=n, ignore_eos=True, **options)


@pytest.fixture
def bad_requests(picture: Image.Image) -> dict[str, tuple[Any, str]]:
    frames = {"frames": [picture, picture.resize((32, 32))]}
    with Image.open(truncated(picture, "PNG").fp) as closed:
        pass
    half_pair = "broken \ud800 escape"
    user = {"role": "user", "content": "Hi"}
    return {
        "no media": (f"{IMAGE}What?", r"1 <\|image_pad\|> placeholders and the request has 0"),
        "too many": (with_image([picture, picture]), r"has 1 .* the request has 2 image items"),
        "too few": (with_image(picture, IMAGE * 2), r"has 2 .* the request has 1 image items"),
        "typed": (
            {"messages": [{"role": "user", "content": f"tell me about {IMAGE}"}]},
            r"text contains the placeholder token <\|image_pad\|>",
        ),
        "typed video": ("say <|video_pad|>", r"1 <\|video_pad\|> placeholders"),
        "1x1": (with_image(Image.new("RGB", (1, 1))), "1x1 pixel"),
        "1x10000": (
            with_image(Image.new("RGB", (1, 10000))),
            "aspect ratio 10000; the limit is 200",
        ),
        "no frames": (
            {"prompt": VIDEO, "multi_modal_data": {"video": [[]]}},
            "video has 0 frames; give at least 1",
        ),
        "unequal frames": (
            {"prompt": VIDEO, "multi_modal_data": {"video": [frames]}},
            "video frame 1 is 32x32, frame 0 is 160x128",
        ),
        "nan": (with_image(np.full((64, 64, 3), np.nan)), "NaN"),
        "wrong type": (with_image("photo.jpg"), "image is a str; give a PIL image"),
        "empty array": (with_image(np.zeros((0, 64, 3), np.uint8)), r"shape \[0, 64, 3\]"),
        "touching": (
            with_image([picture, picture], "<|image_pad|><|image_pad|>"),
            "side by side",
        ),
        "empty": ("", "prompt is empty"),
        "bad id": ([5, 10**6], "holds 1000000; ids must lie in 0..1535"),
        "audio": (
            {"prompt": "x", "multi_modal_data": {"audio": [1]}},
            "has 'audio'; this model takes image, video",
        ),
        "jpeg": (
            with_image(truncated(picture, "JPEG")),
            "image cannot be decoded: OSError: .*trunc",
        ),
        "png": (with_image(truncated(picture, "PNG")), "image cannot be decoded: .*truncated"),
        "closed": (with_image(closed), "image cannot be decoded: .* or was closed"),
        "second frame": (
            {
                "prompt": VIDEO,
                "multi_modal_data": {"video": [[picture, truncated(picture, "JPEG")]]},
            },
            "video frame 1 cannot be decoded",
        ),
        "video keys": (
            {"prompt": VIDEO, "multi_modal_data": {"video": {"frames": [picture], 5: 1}}},
            r"video mapping has keys \['5', 'frames'\]",
        ),
        "endless rate": (
            {"prompt": VIDEO, "multi_modal_data": {"video": {"frames": [picture], "fps": 10**400}}},
            r"video fps is 10+; give a positive number",
        ),
        "surrogate": (half_pair, r"the prompt holds '\\ud800' at character 7"),
        "surrogate in a message": (
            {"messages": [{"role": "user", "content": half_pair}]},
            r"holds '\\ud800' at",
        ),
        "kwargs": (
            {"messages": [user], "chat_template_kwargs": 5},
            "chat_template_kwargs is 5; it must be a mapping",
        ),
        "kwargs names": (
            {"messages": [user], "chat_template_kwargs": {5: 1}},
            "must be a mapping from names",
        ),
        "tokenize": (with_template(tokenize=True), "has tokenize, which belong to the engine"),
        "generation prompt": (
            with_template(add_generation_prompt=True, chat_template="x"),
            "has add_generation_prompt, chat_template, which belong to the engine",
        ),
        "tools": (with_template(tools=5), "the chat template cannot render .*TypeError"),
        "no tool": (with_template(tools=[print]), "the chat template cannot render"),
        "template": (
            with_template(refuse="roles must alternate"),
            "cannot render .*TemplateError: roles must alternate",
        ),
        "template's bug": (with_template(divisor=0), "cannot render .*ZeroDivisionError"),
        "too long": ("word " * 600, r"more than max_seq_len 512"),
    }


def test_bad_requests_are_clear_and_leave_the_others_alone(
    llm: LLM,
    picture: Image.Image,
    bad_requests: dict[str, tuple[Any, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = llm._engine._tokenizer
    objections = (
        "{% if refuse is defined %}{{ raise_exception(refuse) }}{% endif %}"
        "{% if divisor is defined %}{{ 1 // divisor }}{% endif %}"
    )
    monkeypatch.setattr(tokenizer, "chat_template", objections + tokenizer.chat_template)
    good = [with_image(picture), "The sky"]
    expected = [llm.generate(prompt, tokens(6)).outputs[0].token_ids for prompt in good]
    items = llm.encoder_stats()["image"].items
    mixed = [good[0], *(prompt for prompt, _ in bad_requests.values()), good[1]]
    outs = llm.generate(mixed, tokens(6))
    for out, want in ((outs[0], expected[0]), (outs[-1], expected[1])):
        assert out.error is None
        assert out.outputs[0].token_ids == want
    for out, (name, (_, message)) in zip(outs[1:-1], bad_requests.items(), strict=True):
        assert out.outputs == [], name
        with pytest.raises(RequestError, match=message):
            raise RequestError(out.error)
    assert llm.encoder_stats()["image"].items == items + 1  # no encoder work for a bad request
    for prompt, message in bad_requests.values():
        with pytest.raises(RequestError, match=message):
            llm.generate(prompt)


def test_hopeless_requests_are_refused_before_pixels_are_touched(
    llm: LLM, photo: Image.Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes say enough: nothing is decoded, converted or scanned, not even loaded lazily."""
    lazy = truncated(photo, "JPEG")
    three, frames = [lazy, photo, np.full((427, 640, 3), np.nan)], [lazy, lazy, photo, photo]

    def untouchable(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("pixels were touched")

    for name in ("load", "convert", "tobytes", "getdata"):
        monkeypatch.setattr(Image.Image, name, untouchable)
    monkeypatch.setattr(ImageFile.ImageFile, "load", untouchable)
    monkeypatch.setattr(np, "isfinite", untouchable)
    with pytest.raises(RequestError, match="more than max_seq_len 512"):
        llm.generate(with_image(three, "".join([IMAGE] * 3)))
    video = {"prompt": VIDEO * 2, "multi_modal_data": {"video": [frames, frames]}}
    with pytest.raises(RequestError, match="more than max_seq_len 512"):
        llm.generate(video)


def test_waiting_requests_hold_no_pixel_rows(
    llm: LLM, picture: Image.Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are made for what one step admits, 4 pictures of 80 rows, whatever the queue holds."""
    media = llm._engine.encoders.media
    load, alive, most = media.load, [], []

    def spy(item: Any) -> Any:
        rows = load(item)
        alive.append(weakref.ref(rows["pixel_values"]))
        most.append(sum(ref() is not None for ref in alive))
        return rows

    monkeypatch.setattr(media, "load", spy)
    broken = with_image(truncated(picture, "JPEG"))
    ids = [llm._engine.submit(with_image(picture), tokens(2)) for _ in range(9)]
    ids.append(llm._engine.submit(broken, tokens(2)))
    assert most == []
    events = []
    while not llm._engine.loop.idle:
        events += llm._engine.step()
    assert (len(most), max(most)) == (9, 4)
    assert [e.finish_reason for e in events if e.request_id == ids[-1]] == ["error"]
    outs = [llm._engine.take(i) for i in ids]
    assert "cannot be decoded" in outs.pop().error
    assert len({tuple(out.outputs[0].token_ids) for out in outs}) == 1


def test_longest_prompt_and_one_token(llm: LLM) -> None:
    """511 prompt tokens and 1 generated fit into max_seq_len 512; 512 do not."""
    out = llm.generate([5] * 511, tokens(9))
    assert (len(out.outputs[0].token_ids), out.outputs[0].finish_reason) == (1, "length")
    with pytest.raises(RequestError, match="has 512 tokens"):
        llm.generate([5] * 512, tokens(1))


def test_request_that_never_fits_the_kv_cache(tiny_checkpoint: Path) -> None:
    options = {"device": "cpu", "max_seq_len": 200, "max_num_tokens": 60}
    with LLM(model=tiny_checkpoint, kv_cache_config={"max_tokens": 50}, **options) as llm:
        assert len(llm.generate([7] * 40, tokens(10)).outputs[0].token_ids) == 10
        with pytest.raises(RequestError, match="holds 50; ask for max_tokens <= 10"):
            llm.generate([7] * 40, tokens(11))
        with pytest.raises(RequestError, match="max_num_tokens is 60"):
            llm.generate([7] * 61, tokens(1))


def test_admission_by_padded_kv_tokens(tiny_checkpoint: Path) -> None:
    """A batch costs its size times its longest span; the head of the queue is not overtaken."""
    options = {"device": "cpu", "max_seq_len": 100, "max_batch_size": 3}
    with LLM(model=tiny_checkpoint, kv_cache_config={"max_tokens": 60}, **options) as llm:
        engine = llm._engine
        small, large = [9] * 6, [9] * 26
        alone = [llm.generate(p, tokens(4)).outputs[0].token_ids for p in (small, large)]
        ids = [engine.submit(p, tokens(4)) for p in (small, small, large, small, small)]
        sizes = []
        while not engine.loop.idle:
            engine.step()
            # Two small ones cost 2 * 10; the large one would make it 3 * 30.
            sizes.append([r.id for r in engine.loop._scheduler.running])
        assert sizes[0] == [ids[0], ids[1]]
        assert [ids[2], ids[3]] in sizes  # 2 * 30 = 60 just fits, the last one has to wait
        results = [engine.take(i).outputs[0].token_ids for i in ids]
        assert results == [alone[0], alone[0], alone[1], alone[0], alone[0]]


def test_join_leave_and_cancel_between_steps(
    llm: LLM, picture: Image.Image, picture2: Image.Image
) -> None:
    engine = llm._engine
    prompts = [with_image(picture), "The sky", with_image([picture2, picture], IMAGE + "a" + IMAGE)]
    lengths = [14, 3, 9]
    alone = [
        llm.generate(p, tokens(n)).outputs[0].token_ids
        for p, n in zip(prompts, lengths, strict=True)
    ]
    first = engine.submit(prompts[0], tokens(lengths[0]))
    events = engine.step()
    doomed = engine.submit(with_image(picture2), tokens(20))
    second = engine.submit(prompts[1], tokens(lengths[1]))
    events += engine.step() + engine.step()
    third = engine.submit(prompts[2], tokens(lengths[2]))
    waiting = engine.submit("never starts", tokens(5))
    cancelled = [engine.cancel(doomed), engine.cancel(waiting)]
    assert [event.finish_reason for event in cancelled] == ["cancelled"] * 2
    assert engine.cancel(doomed) is None
    assert engine.cancel(12345) is None
    while not engine.loop.idle:
        events += engine.step()
    assert engine.loop._generator.batch.cache is None
    for request, want in zip((first, second, third), alone, strict=True):
        own = [event for event in events if event.request_id == request]
        assert [event.token_id for event in own] == want
        out = engine.take(request).outputs[0]
        assert "".join(event.text for event in own) == out.text
        assert (out.token_ids, out.finish_reason) == (want, "length")
        assert [e.finish_reason for e in own] == [None] * (len(want) - 1) + ["length"]
    partial = engine.take(doomed).outputs[0]
    assert 0 < len(partial.token_ids) < 20
    assert engine.take(waiting).outputs[0].token_ids == []


def test_one_encode_call_a_step(llm: LLM, picture: Image.Image, clip: np.ndarray) -> None:
    counts: list[int] = []
    calls = llm._engine.encoders.calls
    encode = calls["image"]

    def spy(items: list[Any]) -> Any:
        counts.append(len(items))
        return encode(items)

    calls["image"] = spy
    try:
        video = {"prompt": VIDEO + IMAGE, "multi_modal_data": {"video": [clip], "image": [picture]}}
        llm.generate([with_image(picture), "no picture", video], tokens(2))
        assert counts == [3]
        counts.clear()
        # 4 pictures of 80 rows fill encoder_max_num_tokens=320: the fifth waits for the next step.
        llm.generate([with_image(picture)] * 5, tokens(2))
        assert counts == [4, 1]
        counts.clear()
        # One request above the budget is spread over steps, and the last is filled up by the next.
        llm.generate(
            [
                with_image([picture] * 5, f"{IMAGE}a" * 5),
                with_image([picture] * 2, f"{IMAGE}a" * 2),
            ],
            tokens(2),
        )
        assert counts == [4, 3]
    finally:
        calls["image"] = encode


def test_seeds_do_not_depend_on_batch_mates(llm: LLM, picture: Image.Image) -> None:
    sampled = tokens(10, temperature=1.5, top_p=0.9, seed=11)
    alone = llm.generate(with_image(picture), sampled).outputs[0].token_ids
    assert llm.generate(with_image(picture), sampled).outputs[0].token_ids == alone
    mates = [tokens(4, temperature=2.0, seed=3), sampled, tokens(12)]
    batch = llm.generate(["The sky", with_image(picture), "A much longer prompt than that"], mates)
    assert batch[1].outputs[0].token_ids == alone
    other = tokens(10, temperature=1.5, top_p=0.9, seed=12)
    assert llm.generate(with_image(picture), other).outputs[0].token_ids != alone


def test_stop_strings_cut_the_text(llm: LLM) -> None:
    free = llm.generate("The sky over", tokens(16)).outputs[0]
    stop = free.text[7:10]
    cut = free.text.index(stop)
    out = llm.generate("The sky over", tokens(16, stop=["never there", stop])).outputs[0]
    assert out.finish_reason == "stop"
    assert out.text == free.text[:cut]
    assert out.token_ids == free.token_ids[: len(out.token_ids)]
    assert len(out.token_ids) < 16


def test_params_for_each_prompt(llm: LLM) -> None:
    outs = llm.generate(["a", "b"], [tokens(2), tokens(5)])
    assert [len(out.outputs[0].token_ids) for out in outs] == [2, 5]
    with pytest.raises(ValueError, match="1 sampling_params for 2 prompts"):
        llm.generate(["a", "b"], [tokens(2)])
    with pytest.raises(ValueError, match="holds a dict"):
        llm.generate(["a"], [{"max_tokens": 2}])
    assert llm.generate([]) == []


def test_encode_multimodal(llm: LLM, picture: Image.Image, clip: np.ndarray) -> None:
    out = llm.encode_multimodal({"image": [picture, picture], "video": [clip]})
    assert [tuple(o.features.shape) for o in out["image"]] == [(20, 64)] * 2
    assert [tuple(o.features.shape) for o in out["video"]] == [(18, 64)]
    assert len(out["video"][0].deepstack) == 2
    assert llm.encode_multimodal({"image": [], "video": []}) == {"image": [], "video": []}
    with pytest.raises(RequestError, match="modality 'audio' has no encoder here"):
        llm.encode_multimodal({"audio": []})


def test_failed_step_ends_its_requests_and_the_next_ones_run(
    llm: LLM, picture: Image.Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = llm._engine
    loop = engine.loop
    expected = llm.generate("The sky", tokens(3)).outputs[0].token_ids
    running = engine.submit("The sky", tokens(8))
    engine.step()

    def broken(items: list[Any]) -> Any:
        raise MemoryError("no memory for the encoder")

    with monkeypatch.context() as patch:
        patch.setitem(llm._engine.encoders.calls, "image", broken)
        with pytest.raises(MemoryError):
            llm.generate(with_image(picture), tokens(3))
    lost = engine.take(running)
    assert lost.outputs == []
    assert "step it ran in failed" in lost.error
    assert loop.idle
    assert loop._requests == {}
    assert llm.generate("The sky", tokens(3)).outputs[0].token_ids == expected


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_scores_that_are_no_numbers_end_their_request_alone(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    """A batch mate reads the same tokens as alone, and the engine goes on."""
    prompts = ["alpha", "beta"]
    params = tokens(6, temperature=temperature)
    alone = llm.generate(prompts[1], params).outputs[0].token_ids
    generator = llm._engine.loop._generator
    decode, calls = generator.decode, []

    def broken(requests: Any) -> torch.Tensor:
        calls.append(len(requests))
        logits = decode(requests).clone()
        if len(calls) == 2:
            logits[0, 7] = float("nan")
        return logits

    monkeypatch.setattr(generator, "decode", broken)
    first, second = llm.generate(prompts, params)
    assert first.error == "the model's scores are no numbers"
    assert second.outputs[0].token_ids == alone
    assert calls == [2, 2, 1, 1, 1]
    monkeypatch.undo()
    assert llm.generate(prompts[1], params).outputs[0].token_ids == alone


def test_out_of_memory_ends_only_the_newcomers(
    llm: LLM, picture: Image.Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = llm._engine
    expected = llm.generate("The sky", tokens(8)).outputs[0].token_ids
    running = engine.submit("The sky", tokens(8))
    engine.step()

    def broken(items: list[Any]) -> Any:
        raise torch.OutOfMemoryError("tried to allocate 2 GiB")

    with monkeypatch.context() as patch:
        patch.setitem(engine.encoders.calls, "image", broken)
        lost, other = llm.generate([with_image(picture), "Another one"], tokens(3))
    assert "out of memory while its media were encoded" in lost.error
    assert lost.outputs == []
    assert len(other.outputs[0].token_ids) == 3  # needed no encoder
    while not engine.loop.idle:
        engine.step()
    assert engine.take(running).outputs[0].token_ids == expected


def test_out_of_memory_in_a_prompt_ends_only_the_newcomers(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = llm._engine
    expected = llm.generate("The sky", tokens(8)).outputs[0].token_ids
    running = engine.submit("The sky", tokens(8))
    engine.step()

    def broken(*_: Any) -> Any:
        raise torch.OutOfMemoryError("tried to allocate 2 GiB")

    with monkeypatch.context() as patch:
        patch.setattr(engine.loop._generator, "prefill", broken)
        lost = llm.generate(["One", "Another one"], tokens(3))
    assert all("out of memory while the prompt was read" in out.error for out in lost)
    while not engine.loop.idle:
        engine.step()
    assert engine.take(running).outputs[0].token_ids == expected


def test_a_request_with_many_pictures_does_not_stall_the_others(
    llm: LLM, picture: Image.Image
) -> None:
    """Between two tokens of a running request there is one encoder call at most."""
    engine, calls = llm._engine, llm._engine.encoders.calls
    encode, order = calls["image"], []

    def spy(items: list[Any]) -> Any:
        order.append(f"encode {len(items)}")
        return encode(items)

    many = with_image([picture] * 10, f"{IMAGE}a" * 10)  # 800 rows, encoder_max_num_tokens is 320
    expected = llm.generate(many, tokens(3)).outputs[0].token_ids
    calls["image"] = spy
    try:
        running = engine.submit("The sky", tokens(100))
        engine.step()
        big = engine.submit(many, tokens(3))
        late = engine.submit(with_image(picture), tokens(3))
        text = engine.submit("No picture", tokens(3))
        names = {running: "run", big: "big", late: "late", text: "text"}
        while not engine.loop.idle:
            events = engine.step()
            order += [names[e.request_id] for e in events if e.token_id is not None]
    finally:
        calls["image"] = encode
    # The late one is admitted when the rest of the big one leaves room, and shares its last call.
    calls_at = [i for i, what in enumerate(order) if what.startswith("encode")]
    assert [order[i] for i in calls_at] == ["encode 4", "encode 4", "encode 3"]
    assert all("run" in order[i:j] for i, j in itertools.pairwise(calls_at))
    assert order[calls_at[-1] + 1 :][:2] == ["big", "late"]
    assert engine.take(big).outputs[0].token_ids == expected
    for request in (running, late, text):
        engine.take(request)


@pytest.mark.parametrize("cached", [False, True])
def test_a_long_video_does_not_stall_the_others(
    llm: LLM, clip: np.ndarray, cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut between frame pairs, over as many calls as it needs; the same comes out."""
    engine = llm._engine
    if cached:
        cache = EncoderCache(2**20, engine._towers, engine.device)
        monkeypatch.setattr(engine.encoders, "cache", cache)
    long = np.concatenate([clip + i for i in range(6)])  # 30 frames: 15 pairs of 24 rows
    whole = engine.encode_multimodal({"video": [long]})["video"][0]
    if cached:
        engine.clear_encoder_cache()
    rows: list[int] = []
    encode = engine.encoders.calls["image"]

    def spy(items: list[Any]) -> Any:
        rows.append(sum(len(item["pixel_values"]) for item in items))
        return encode(items)

    monkeypatch.setitem(engine.encoders.calls, "image", spy)
    video = {"prompt": VIDEO, "multi_modal_data": {"video": [long]}}
    running = engine.submit("The sky", tokens(200))
    engine.step()
    job = EncodeJob(engine.encoders.plan({"video": [long]}))
    engine.encode_queue.add(job)
    pace = []
    while not job.done:
        assert [event.request_id for event in engine.step()] == [running]
        pace.append(len(rows))
    assert rows == [13 * 24, 2 * 24]
    assert {1, 2} <= set(pace)  # a token came between
    for name, parts in job.outputs["video"][0].items():
        torch.testing.assert_close(parts, whole[name], atol=1e-5, rtol=1e-4)
    doomed = engine.submit(video, tokens(2))
    while len(rows) == 2 and not cached:
        engine.step()
    engine.cancel(doomed)  # between its calls
    engine.cancel(running)
    assert len(llm.generate(video, tokens(2)).outputs[0].token_ids) == 2
    assert rows == ([312, 48] if cached else [312, 48, 312, 312, 48])
    for request in (doomed, running):
        engine.take(request)


def test_slow_pictures_do_not_stall_the_others(
    llm: LLM, picture: Image.Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoding and resizing go on beside the steps; who has nothing else to do waits for them."""
    engine, media = llm._engine, llm._engine.encoders.media
    load, go = media.load, threading.Event()

    def slow(item: Any) -> Any:
        go.wait(20)
        return load(item)

    want = llm.generate(with_image(picture), tokens(2)).outputs[0].token_ids
    monkeypatch.setattr(media, "load", slow)
    running = engine.submit("The sky", tokens(12))
    engine.step()
    shown = engine.submit(with_image(picture), tokens(2))
    doomed = engine.submit(with_image(picture), tokens(2))
    for _ in range(8):
        assert [event.request_id for event in engine.step()] == [running]
    engine.cancel(doomed)  # while a thread loads its picture
    go.set()
    events = []
    while not engine.loop.idle:
        events += engine.step()
    assert [e.token_id for e in events if e.request_id == shown] == want
    assert doomed not in {e.request_id for e in events}
    for request in (running, shown, doomed):
        engine.take(request)


def test_cancel_between_two_encoder_calls(llm: LLM, picture: Image.Image) -> None:
    engine = llm._engine
    many = engine.submit(with_image([picture] * 10, f"{IMAGE}a" * 10), tokens(3))
    engine.step()
    assert engine.loop.num_running == 1
    items = llm.encoder_stats()["image"].items
    engine.cancel(many)
    assert engine.loop.idle
    assert engine.take(many).outputs[0].token_ids == []
    assert len(llm.generate(with_image(picture), tokens(2)).outputs[0].token_ids) == 2
    assert llm.encoder_stats()["image"].items == items + 1


def test_threads_share_one_engine(llm: LLM, picture: Image.Image) -> None:
    prompts: list[Any] = [with_image(picture), "The sky", "Another one"]
    expected = [llm.generate(p, tokens(8)).outputs[0].token_ids for p in prompts]
    got: dict[int, list[int]] = {}

    def serve(i: int) -> None:
        got[i] = llm.generate(prompts[i], tokens(8)).outputs[0].token_ids

    threads = [threading.Thread(target=serve, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert [got[i] for i in range(3)] == expected


def test_eager_engine_gives_the_same_tokens(
    llm: LLM, eager_llm: LLM, picture: Image.Image, clip: np.ndarray
) -> None:
    video = {"prompt": VIDEO, "multi_modal_data": {"video": [clip]}}
    batch = [with_image(picture), video, "text"]
    before = sum(llm.encoder_stats()["image"].replays.values())
    ours = [out.outputs[0].token_ids for out in llm.generate(batch, tokens(8))]
    assert ours == [out.outputs[0].token_ids for out in eager_llm.generate(batch, tokens(8))]
    assert sum(llm.encoder_stats()["image"].replays.values()) > before
    assert eager_llm.encoder_stats()["image"].replays == {}
