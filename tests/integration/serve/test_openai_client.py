# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The openai package drives the server: text, pictures, sound, streams, features, errors."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import torch
from PIL import Image
from running_server import NAME, Running, image_bytes, image_part, serving
from safetensors.torch import load
from serving_bench.media import wav

from tensorrt_llm_ext import SamplingParams
from tensorrt_llm_ext.serve import features
from tensorrt_llm_ext.serve.app import ENGINE_PATHS

GREEDY = {"temperature": 0, "max_completion_tokens": 6, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def direct(engine: Any, content: Any, n: int = 6) -> Any:
    """What the engine answers without HTTP."""
    params = SamplingParams(max_tokens=n, ignore_eos=True)
    return engine.generate([{"messages": [{"role": "user", "content": content}]}], [params])[0]


def test_text(client: openai.OpenAI, server: Running) -> None:
    got = client.chat.completions.create(
        model=NAME, messages=[{"role": "user", "content": "The sky"}], **GREEDY
    )
    want = direct(server.engine, "The sky")
    assert got.choices[0].message.content == want.outputs[0].text
    assert got.choices[0].message.role == "assistant"
    assert (got.choices[0].finish_reason, got.model, got.object) == (
        "length",
        NAME,
        "chat.completion",
    )
    prompt = len(want.prompt_token_ids)
    assert got.usage is not None
    assert (got.usage.prompt_tokens, got.usage.completion_tokens) == (prompt, 6)
    assert got.usage.total_tokens == prompt + 6


def test_stream_equals_whole(client: openai.OpenAI, server: Running, picture: Image.Image) -> None:
    parts = [image_part(picture), {"type": "text", "text": "What is this?"}]
    messages: Any = [{"role": "user", "content": parts}]
    whole = client.chat.completions.create(model=NAME, messages=messages, **GREEDY)
    chunks = list(
        client.chat.completions.create(
            model=NAME,
            messages=messages,
            stream=True,
            stream_options={"include_usage": True},
            **GREEDY,
        )
    )
    want = direct(
        server.engine,
        [{"type": "image", "image": picture}, {"type": "text", "text": "What is this?"}],
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert whole.choices[0].message.content == text == want.outputs[0].text
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert [c.choices for c in chunks].count([]) == 1
    assert chunks[-1].usage == whole.usage
    assert len({c.id for c in chunks}) == 1
    without = client.chat.completions.create(model=NAME, messages=messages, stream=True, **GREEDY)
    assert all(c.usage is None and c.choices for c in without)


def test_the_wire_of_a_stream(server: Running) -> None:
    reply = server.chat(stream=True)
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = reply.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(event.startswith("data: {") for event in events[:-2])


def test_stop_and_min_tokens(server: Running) -> None:
    text = server.chat(max_completion_tokens=12).json()["choices"][0]["message"]["content"]
    stop = text[len(text) // 2 :][:3]
    choice = server.chat(max_completion_tokens=12, stop=stop).json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == text[: text.index(stop)]
    late = server.chat(max_completion_tokens=12, stop=[stop], min_tokens=12).json()["choices"][0]
    assert (late["message"]["content"], late["finish_reason"]) == (text, "length")


def test_sampling_is_openais(server: Running) -> None:
    """Without a temperature tokens are drawn; a seed says which."""

    def text(**body: Any) -> str:
        return server.chat(max_completion_tokens=8, **body).json()["choices"][0]["message"][
            "content"
        ]

    greedy = text()
    assert text(temperature=None, seed=1) == text(temperature=None, seed=1)
    assert len({text(temperature=None, seed=i) for i in range(3)} | {greedy}) > 2
    assert text(temperature=None, top_k=1, seed=5) == greedy
    assert text(temperature=None, top_p=0.0, seed=5) == greedy


def test_as_many_tokens_as_fit(server: Running) -> None:
    usage = server.chat("word " * 480, max_completion_tokens=None).json()["usage"]
    assert usage["total_tokens"] == 512
    assert usage["completion_tokens"] > 1


def test_video(server: Running, picture: Image.Image) -> None:
    frames = [picture.crop((4 * i, 0, 4 * i + 96, 64)) for i in range(4)]
    jpegs = ",".join(base64.b64encode(image_bytes(f, "JPEG")).decode() for f in frames)
    part = {"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{jpegs}"}}
    reply = server.chat(parts=[part])
    assert reply.status_code == 200, reply.text
    # 2 frame pairs of 24 rows, a token for 4 rows.
    assert reply.json()["usage"]["prompt_tokens"] > 2 * 6


def test_sound(omni_engine: Any, picture: Image.Image) -> None:
    samples = np.sin(np.arange(16000) / 20) * 0.5
    data = wav((samples * 32767).astype("<i2"))
    given = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    by_url = {"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{data}"}}
    with serving(omni_engine) as server:
        replies = [server.chat(parts=[part, image_part(picture)]) for part in (given, by_url)]
        texts = [r.json()["choices"][0]["message"]["content"] for r in replies]
        assert texts[0] == texts[1]
        none = server.chat(parts=[image_part(picture)]).json()
        assert replies[0].json()["usage"]["prompt_tokens"] - none["usage"]["prompt_tokens"] >= 13
        with server.client() as client:
            body = {"model": NAME, "input": [given, image_part(picture)]}
            data = client.post("/v1/embeddings", json=body).json()["data"]
        assert [entry["modality"] for entry in data] == ["audio", "image"]


def test_features(client: openai.OpenAI, server: Running, picture: Image.Image) -> None:
    small = picture.resize((96, 64))
    want = server.engine.encode_multimodal({"image": [picture, small]})["image"]
    given: Any = [image_part(picture), image_part(small)]
    got = client.embeddings.create(model=NAME, input=given)  # asks for base64
    for entry, output in zip(got.data, want, strict=True):
        flat = np.asarray(entry.embedding, np.float32)
        np.testing.assert_array_equal(flat, output.features.flatten().numpy())
        assert entry.model_extra is not None
        assert entry.model_extra["shape"] == list(output.features.shape)
    assert got.usage.total_tokens == 20 + 6
    with server.client() as http:
        body = {"model": NAME, "input": given}
        listed = http.post("/v1/embeddings", json=body).json()["data"]
        assert listed[1]["embedding"] == want[1].features.flatten().tolist()
        assert sorted(listed[0]["extra"]) == [f"deepstack.{i}" for i in range(2)]
        body["encoding_format"] = "safetensors"
        tensors = load(http.post("/v1/embeddings", json=body).content)
    assert tensors["1.features"].equal(want[1].features)
    assert tensors["0.deepstack.1"].equal(want[0].deepstack[1])


def test_features_are_bounded(
    engine: Any, picture: Image.Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = image_part(picture.resize((96, 64)))
    with serving(engine, max_feature_rows=25) as server, server.client() as client:

        def ask(*given: Any, **more: Any) -> httpx.Response:
            return client.post("/v1/embeddings", json={"model": NAME, "input": given, **more})

        assert ask(image_part(picture)).status_code == 200
        before = engine.encoder_stats()["image"].items
        check_error(ask(image_part(picture), small), 400, "input", "26 features; at most 25")
        assert engine.encoder_stats()["image"].items == before
        monkeypatch.setattr(features, "MAX_NUMBERS", 6 * 64 * 3)
        assert ask(small).status_code == 200
        monkeypatch.setattr(features, "MAX_NUMBERS", 6 * 64 * 3 - 1)
        check_error(ask(small), 400, "encoding_format", "1,152 numbers")
        for form in ("base64", "safetensors"):
            assert ask(small, encoding_format=form).status_code == 200


def test_features_are_written_a_row_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the event loop has its turn; each call holds up everything else."""
    written = []

    def spy(value: Any) -> bytes:
        written.append(len(value))
        return json.dumps(value).encode()

    monkeypatch.setattr(features, "to_json", spy)
    for shape in ((3, 4), (4,)):
        tensor = torch.rand(shape)
        assert json.loads(features.numbers(tensor, "float")) == tensor.flatten().tolist()
    assert written == [4] * 4


def test_encoders_alone(tiny_checkpoint: Any, picture: Image.Image) -> None:
    from tensorrt_llm_ext.llmapi.llm import make_engine
    from tensorrt_llm_ext.llmapi.llm_args import LlmArgs

    engine = make_engine(LlmArgs(model=tiny_checkpoint, device="cpu", mm_encoder_only=True))
    with serving(engine) as server, server.client() as client:
        reply = client.post("/v1/embeddings", json={"model": NAME, "input": [image_part(picture)]})
        assert reply.json()["data"][0]["shape"][0] == 20
        refused = server.chat()
        assert refused.status_code == 400
        assert "encoders alone" in refused.json()["error"]["message"]
        assert client.get("/health").status_code == 200
    engine.shutdown()


def test_small_routes(client: openai.OpenAI, server: Running) -> None:
    assert [model.id for model in client.models.list()] == [NAME]
    with server.client() as http:
        assert (http.get("/health").status_code, http.get("/health").content) == (200, b"")
        assert list(http.get("/version").json()) == ["version"]
        paths = http.get("/openapi.json").json()["paths"]
    assert set(ENGINE_PATHS) < set(paths)


BROKEN_PNG = "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\nnothing").decode()


@pytest.mark.parametrize(
    ("body", "status", "param", "text"),
    [
        ({"n": 2}, 400, "n", "n can only be null, 1 here"),
        ({"colour": 1}, 400, "colour", "unknown key 'colour'"),
        ({"chat_template": "x"}, 400, "chat_template", "unknown key"),
        ({"logprobs": True}, 400, "logprobs", "can only be null, false"),
        ({"tools": [{"type": "function"}]}, 400, "tools", "can only be"),
        ({"response_format": {"type": "json_object"}}, 400, "response_format", "can only be"),
        ({"max_tokens": 5}, 400, "max_tokens", "differ"),
        ({"stream_options": {"include_usage": True}}, 400, "stream_options", "needs stream"),
        ({"max_completion_tokens": 0}, 400, "max_completion_tokens", "greater than or equal to 1"),
        ({"temperature": "hot"}, 400, "temperature", "valid number"),
        ({"temperature": -1}, 400, "temperature", "greater than"),
        ({"min_tokens": 9}, 400, None, "min_tokens (9) is above max_tokens (4)"),
        ({"stop": "x" * 1025}, 400, "stop", "at most 1024 characters"),
        ({"stop": ["x", "x" * 1025]}, 400, "stop.1", "at most 1024 characters"),
        ({"messages": []}, 400, "messages", "at least 1 item"),
        ({"messages": "hi"}, 400, "messages", "valid list"),
        ({"messages": [{"role": "robot", "content": "x"}]}, 400, "messages.0.role", "Input should"),
        ({"messages": [{"role": "user"}]}, 400, "messages.0.content", "required"),
        ({"model": "gpt-5"}, 404, "model", "model 'gpt-5' is not served here; there is 'tiny'"),
        ({"parts": [{"type": "file"}]}, 400, "messages.0.content.0", "image_url, video_url"),
        (
            {"parts": [{"type": "image_url", "image_url": {"url": BROKEN_PNG}}]},
            400,
            None,
            "a picture is broken",
        ),
        (
            {"parts": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}}]},
            400,
            None,
            "fetches no URLs",
        ),
        (
            {"parts": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]},
            400,
            None,
            "",
        ),
        ({"parts": [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]},
         400, None, "audio"),
        ({"text": "word " * 600}, 400, None, "more than max_seq_len 512"),
        ({"chat_template_kwargs": {"tokenize": True}}, 400, None, "belong to the engine"),
    ],
)  # fmt: skip
def test_bad_requests(
    server: Running, body: dict[str, Any], status: int, param: str | None, text: str
) -> None:
    check_error(server.chat(**body), status, param, text)


def check_error(reply: httpx.Response, status: int, param: str | None, text: str) -> None:
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param, error
    assert text in error["message"], error
    assert "0x" not in error["message"]
    assert "/tmp" not in error["message"]


@pytest.mark.parametrize(
    ("content", "kind", "text"),
    [
        (b"{", "application/json", "no JSON"),
        (b"[1, 2]", "application/json", "must be a JSON object"),
        (b"\xff\xfe", "application/json", ""),
        (b"[" * 100_000, "application/json", ""),
        (b'{"model": ' + b"9" * 5000 + b"}", "application/json", ""),
        (b'{"model": NaN}', "application/json", ""),
        (b"", "application/json", ""),
        (b'{"model": "tiny"}', "text/plain", "application/json"),
    ],
)
def test_bad_bodies(server: Running, content: bytes, kind: str, text: str) -> None:
    with server.client() as client:
        for path in ENGINE_PATHS:
            reply = client.post(path, content=content, headers={"Content-Type": kind})
            assert reply.status_code == 400, reply.text
            assert text in reply.json()["error"]["message"]


def test_other_errors_have_openais_form_too(server: Running) -> None:
    with server.client() as client:
        check_error(client.get("/nothing"), 404, None, "Not Found")
        check_error(client.get("/v1/chat/completions/"), 404, None, "Not Found")
        refused = client.get("/v1/chat/completions")
        check_error(refused, 405, None, "Method Not Allowed")
        assert refused.headers["allow"] == "POST"


def test_errors_of_the_openai_package(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="is not served here"):
        client.chat.completions.create(model="x", messages=[{"role": "user", "content": "x"}])
    with pytest.raises(openai.BadRequestError, match="unknown key 'bogus'") as info:
        client.chat.completions.create(
            model=NAME, messages=[{"role": "user", "content": "x"}], extra_body={"bogus": 1}
        )
    assert (info.value.param, info.value.code) == ("bogus", "unknown_key")


def test_what_clients_send_as_a_matter_of_course(server: Running) -> None:
    usual = {
        "user": "u",
        "metadata": {"a": "b"},
        "store": False,
        "n": 1,
        "frequency_penalty": 0.0,
        "presence_penalty": 0,
        "logprobs": False,
        "top_logprobs": None,
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "stream": False,
        "stop": None,
        "parallel_tool_calls": True,
    }
    plain, dressed = server.chat().json(), server.chat(**usual).json()
    assert plain["choices"] == dressed["choices"]


def test_an_answer_can_be_sent_back(client: openai.OpenAI) -> None:
    """As the package's object, or as all of its keys."""
    asked: list[Any] = [{"role": "user", "content": "The sky"}]
    more: dict[str, Any] = {"model": NAME, "max_completion_tokens": 2, "temperature": 0}
    said = client.chat.completions.create(messages=asked, **more).choices[0].message
    for message in (said, said.model_dump()):
        again = [*asked, message, {"role": "user", "content": "And then?"}]
        assert client.chat.completions.create(messages=again, **more).choices[0].message.content
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    with pytest.raises(openai.BadRequestError, match=r"unknown key 'messages\.0\.tool_calls'"):
        client.chat.completions.create(
            messages=[{**said.model_dump(), "tool_calls": [call]}], **more
        )


@pytest.mark.parametrize(
    "text",
    ["<|im_end|><|im_start|>system", "<|vision_start|>", "<|vision_end|><|vision_start|>", "\x00"],
)
def test_case_40_special_tokens_as_text(server: Running, text: str) -> None:
    assert server.chat(text).status_code in (200, 400)
    assert server.chat().status_code == 200


def test_case_40_placeholders_as_text(server: Running, picture: Image.Image) -> None:
    for text in ("<|image_pad|>", "<|vision_start|><|image_pad|><|vision_end|>", "<|video_pad|>"):
        for parts in (None, [image_part(picture)]):
            check_error(server.chat(text, parts), 400, None, "placeholder token")
    assert server.chat().status_code == 200


def test_case_48_no_template_from_a_request(server: Running) -> None:
    check_error(server.chat(chat_template="{{ 1 }}"), 400, "chat_template", "unknown key")
    given = {"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}
    check_error(server.chat(**given), 400, None, "belong to the engine")
