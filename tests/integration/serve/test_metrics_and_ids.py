# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Metrics and request ids; case 51: what they may hold."""

from __future__ import annotations

import logging
import re
import time
from typing import Any

import httpx
import pytest
from PIL import Image
from running_server import NAME, Running, chat, image_part, serving, until

from tensorrt_llm_ext.serve.metrics import OUTCOMES


def test_what_is_counted(engine: Any, picture: Image.Image) -> None:
    with serving(engine, max_prompt_chars=1000) as server:
        before = server.metrics()
        for body in (
            {"max_completion_tokens": 5},
            {"parts": [image_part(picture)], "max_completion_tokens": 3, "stream": True},
            {"parts": [image_part(picture.resize((800, 640)))], "max_completion_tokens": 1},
            {"bogus": 1},
            {"model": "another"},
            {"text": "x" * 1001},
            {"chat_template_kwargs": {"tools": [{"description": "x" * 1001}]}},
        ):
            server.chat(**body)
        with server.client() as client:
            body = {"model": NAME, "input": [image_part(picture)]}
            assert client.post("/v1/embeddings", json=body).status_code == 200
            both = [client.get(path) for path in ("/metrics", "/prometheus/metrics")]
        assert both[0].headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert {r.status_code for r in both} == {200}
        after = server.metrics()

    def grown(name: str) -> float:
        return after.get(f"trtllm_{name}", 0) - before.get(f"trtllm_{name}", 0)

    assert grown('requests_total{outcome="length"}') == 3
    assert grown('requests_total{outcome="encoded"}') == 1
    assert grown('requests_total{outcome="bad_request"}') == 4
    assert grown('tokens_total{kind="generated"}') == 9
    assert grown('tokens_total{kind="prompt"}') > 60
    for name, count in {
        "time_to_first_token_seconds": 3,
        "e2e_request_latency_seconds": 3,
        "request_queue_time_seconds": 3,
        "time_per_output_token_seconds": 2,  # one token has no time between
    }.items():
        assert grown(f"{name}_count") == count, name
        assert 0 < grown(f"{name}_sum") < 60
    assert grown("request_queue_time_seconds_sum") < grown("time_to_first_token_seconds_sum")
    assert grown("time_to_first_token_seconds_sum") < grown("e2e_request_latency_seconds_sum")
    assert grown('encoder_items_total{modality="image"}') == 3
    # 80 rows in a bucket of 96, twice; 2,000 rows are no bucket's.
    assert grown('encoder_graph_replays_total{bucket="96x4",modality="image"}') == 2
    assert grown('encoder_padding_tokens_total{modality="image"}') == 2 * 16
    eager = [k for k in after if k.startswith("trtllm_encoder_eager_total") and after[k]]
    assert eager == ['trtllm_encoder_eager_total{modality="image",reason="too_many_tokens"}']
    assert grown(eager[0].removeprefix("trtllm_")) == 1
    report = engine.startup_report
    memory = after['trtllm_encoder_graph_memory_bytes{modality="image"}']
    assert memory == report.towers[0].graph_memory_bytes > 0
    seconds = after['trtllm_encoder_capture_seconds{modality="image"}']
    assert seconds == report.towers[0].capture_seconds > 0
    assert after["trtllm_kv_cache_tokens"] == report.kv_cache.tokens
    assert after["trtllm_requests_running"] == after["trtllm_requests_waiting"] == 0


def test_the_cache_is_counted(omni_engine: Any, picture: Image.Image) -> None:
    with serving(omni_engine) as server:
        before = server.metrics()
        for _ in range(3):
            server.chat(parts=[image_part(picture)])
        after = server.metrics()
    names = [f"trtllm_encoder_cache_{name}_total" for name in ("hits", "misses")]
    assert sum(after[n] - before[n] for n in names) == 3
    assert after[names[0]] - before[names[0]] >= 2
    assert after["trtllm_encoder_cache_bytes"] > 0


def test_case_51_labels_come_from_fixed_sets(server: Running, picture: Image.Image) -> None:
    for i in range(5):
        server.chat(model=f"model-{i}", user=f"user-{i}")
        server.chat(f"prompt-{i}")
        with server.client() as client:
            client.get(f"/path-{i}")
    with server.client() as client:
        text = client.get("/metrics").text
    assert not re.search(r"(model|user|prompt|path)-\d", text)
    labels = set(re.findall(r'(\w+)="([^"]*)"', text))
    assert {name for name, _ in labels} <= {"outcome", "kind", "le", "modality", "bucket", "reason"}
    assert {value for name, value in labels if name == "outcome"} == set(OUTCOMES)


def test_an_outcome_that_is_none(server: Running) -> None:
    with pytest.raises(ValueError, match="outcome 'odd' is unknown; allowed: stop, length"):
        server.state.metrics.count_request("odd")


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("abc-1.2:3_X", True),
        ("a" * 128, True),
        ("a" * 129, False),
        ("", False),
        ("two words", False),
        ("{forged: 1}", False),
        (None, False),
    ],
)
def test_request_ids(server: Running, given: str | None, taken: bool) -> None:
    headers = {} if given is None else {"X-Request-Id": given}
    with server.client() as client:
        for path in ("/health", "/nothing"):
            got = client.get(path, headers=headers).headers["x-request-id"]
            assert (got == given) == taken
            assert re.fullmatch(r"[A-Za-z0-9._:-]{1,128}", got)


def test_a_mistake_of_ours_is_500_with_the_id(
    server: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> Any:
        raise KeyError("a secret")

    monkeypatch.setattr(server.state, "check_model", broken)
    with server.client() as client, caplog.at_level(logging.CRITICAL):
        reply = client.post("/v1/chat/completions", json=chat(), headers={"X-Request-Id": "q-7"})
    assert reply.status_code == 500
    assert reply.headers["x-request-id"] == "q-7"
    assert reply.json()["error"]["code"] == "internal_error"
    assert "quote request id q-7" in reply.json()["error"]["message"]
    assert "secret" not in reply.text
    monkeypatch.undo()
    assert server.chat().status_code == 200


def test_lines_of_workers_have_the_id(
    server: Running, picture: Image.Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorrt_llm_ext.serve.middleware import request_id

    seen = []
    door = server.state.intake._door
    open_ = door.open

    def spy(part: Any, **options: Any) -> Any:
        seen.append(request_id.current.get())
        return open_(part, **options)

    monkeypatch.setattr(door, "open", spy)
    with server.client() as client:
        body = chat(parts=[image_part(picture)] * 2)
        client.post("/v1/chat/completions", json=body, headers={"X-Request-Id": "w-1"})
    assert seen == ["w-1", "w-1"]


def test_a_line_for_every_request(
    server: Running, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "tensorrt_llm_ext.serve.requests")
    server.chat()
    server.chat(bogus=1)
    with server.client() as client:
        client.get("/health?token=secret")
    step = server.engine.step
    monkeypatch.setattr(server.engine, "step", lambda: time.sleep(0.05) or step())
    with server.client() as client, pytest.raises(httpx.ReadTimeout):
        client.post("/v1/chat/completions", json=chat(max_completion_tokens=100), timeout=0.3)
    until(lambda: len(caplog.records) == 4)
    records = [vars(record) for record in caplog.records]
    assert [(r["method"], r["path"], r["status"]) for r in records] == [
        ("POST", "/v1/chat/completions", 200),
        ("POST", "/v1/chat/completions", 400),
        ("GET", "/health", 200),
        ("POST", "/v1/chat/completions", 499),
    ]
    assert "secret" not in caplog.text
    assert "The sky" not in caplog.text
