# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""``benchmarks/serving.py``: its parts, and the whole with tiny models on a CPU."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import serving
from render_results import render
from serving_bench import media, results
from serving_bench.cases import CASES
from serving_bench.checkpoints import MODELS, fill_vocabulary
from serving_bench.client import Answer, ask, chat_body, run_load
from serving_bench.servers import Server, ServerError, by_label, difference
from transformers import AutoTokenizer

from tensorrt_llm_ext.llmapi.llm_args import ServeConfig


@pytest.mark.slow
def test_both_arms_on_a_cpu(tmp_path: Path) -> None:
    options = ["--device", "cpu", "--tiny", "--cases", "qwen3_vl_2b", "--order", "off,on"]
    where = ["--work", str(tmp_path / "work"), "--out", str(tmp_path), "--commit", "0123456"]
    assert serving.main([*options, *where]) == 0
    result = json.loads((tmp_path / "serving_qwen3_vl_2b.json").read_text())
    assert [row["case"] for row in result["rows"]] == ["1 at once", "8 at once"]
    for row, concurrency in zip(result["rows"], (1, 8), strict=True):
        assert row["requests"] == 2 * concurrency
        assert row["wrong token counts"] == 0
        assert row["same answers"] == "100.0%"
        assert 0 < row["TTFT_p50_on_ms"] <= row["TTFT_p99_on_ms"]
        assert row["requests/s on"] > 0
        assert row["items on"] == f"image {2 * concurrency}"
        assert row["replays on"].startswith("image ")
    off, on = result["servers"]
    assert (off["arm"], on["arm"]) == ("off", "on")
    assert (off["exit_code"], on["exit_code"]) == (0, 0)
    assert off["graph_bytes"]["image"] == 0 < on["graph_bytes"]["image"]
    assert off["kv_tokens"] == on["kv_tokens"] == 16384
    for rung in result["rungs"]:
        assert rung["errors"] == []
        eager = sum(rung["eager"].values())
        assert (eager > 0, sum(rung["replays"].values()) > 0) == (
            (True, False) if rung["arm"] == "off" else (False, True)
        )
        assert 0 < min(rung["ttft_ms"]) <= max(rung["total_ms"])
    assert {t["target"] for t in result["targets"]} == {
        "1 at once: wrong token counts",
        "8 at once: wrong token counts",
        "1 at once: same greedy answers",
        "KV tokens on over off, memory: all",
    }
    assert all(target["passed"] for target in result["targets"])
    table = render([result])
    assert "TTFT p50 off (ms) | TTFT p50 on (ms)" in table
    assert "Targets: 4 of 4 met." in table
    assert not (tmp_path / "work" / "qwen3_vl_2b").exists()


# ------------------------------------------------------------------------------------- results


def rung(arm: str, concurrency: int, answers: list[Answer], memory: str = "all") -> results.Rung:
    return {
        "memory": memory,
        "arm": arm,
        "concurrency": concurrency,
        "answers": answers,
        "seconds": 2.0,
        "replays": {"image": 1.0} if arm == "on" else {},
        "items": {"image": float(len(answers))},
    }


def answers(*texts: str, ttft: float = 0.1, tokens: int = 16) -> list[Answer]:
    return [Answer(text, ttft * (i + 1), 1.0, 9 + i, tokens) for i, text in enumerate(texts)]


def test_percentiles_are_values_that_were_measured() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [results.percentile(values, s) for s in (0, 0.5, 0.99, 1)] == [1.0, 3.0, 5.0, 5.0]
    assert results.percentile([7.0], 0.5) == 7.0


def test_a_row_pools_the_runs_of_an_arm() -> None:
    rungs = [
        rung("off", 1, answers("a", "b", ttft=0.1)),
        rung("on", 1, answers("a", "b", ttft=0.05)),
        rung("on", 1, answers("a", "x", ttft=0.07)),
        rung("off", 1, answers("a", "b", ttft=0.3)),
    ]
    (row,) = results.summary(rungs, [], 16)
    assert row == {
        "case": "1 at once",
        "requests": 2,
        "TTFT_p50_off_ms": 200.0,
        "TTFT_p50_on_ms": 70.0,
        "TTFT_p99_off_ms": 600.0,
        "TTFT_p99_on_ms": 140.0,
        "requests/s off": 1.0,
        "requests/s on": 1.0,
        "same answers": "75.0%",
        "same answers in one arm": "75.0%",
        "wrong token counts": 0,
        "replays on": "image 2",
        "items on": "image 4",
    }
    found = {t["target"]: t["passed"] for t in results.targets([row], [], timed=True)}
    assert found == {
        "1 at once: TTFT p50 on over off": True,
        "1 at once: wrong token counts": True,
        "1 at once: same greedy answers": False,
    }


def test_memory_settings_have_rows_of_their_own_and_one_arm_has_none() -> None:
    rungs = [rung(arm, 1, answers("a"), m) for m in ("all", "80 GB card") for arm in ("off", "on")]
    rungs.append(rung("off", 10, answers("a")))
    cases = [row["case"] for row in results.summary(rungs, [], 16)]
    assert cases == ["1 at once, all", "1 at once, 80 GB card"]


def test_wrong_numbers_of_tokens_and_errors_are_counted() -> None:
    good = answers("a", "b")
    short = answers("a", "b", tokens=15)
    broken = [good[0], Answer(status=503, error="server_error")]
    other_prompt = [good[0], Answer("b", 0.1, 1.0, 77, 16)]
    for bad, wrong in ((short, 2), (broken, 1), (other_prompt, 1), (good, 0)):
        (row,) = results.summary([rung("off", 1, good), rung("on", 1, bad)], [], 16)
        assert row["wrong token counts"] == wrong


def test_targets() -> None:
    rungs = [rung("off", 8, answers("a")), rung("on", 8, answers("b", ttft=0.2))]
    servers = [
        {"memory": m, "arm": a, "kv_tokens": n}
        for m, a, n in (
            ("all", "off", 100),
            ("all", "on", 98),
            ("80 GB card", "off", 100),
            ("80 GB card", "on", 97),
        )
    ]
    rows = results.summary(rungs, servers, 16)
    assert (rows[0]["KV tokens off"], rows[0]["KV tokens on"]) == (100, 98)
    found = {
        t["target"]: (t["measured"], t["passed"])
        for t in results.targets(rows, servers, timed=True)
    }
    assert found == {
        "8 at once: TTFT p50 on over off": (2.0, False),
        "8 at once: wrong token counts": (0, True),
        "KV tokens on over off, memory: all": (0.98, True),
        "KV tokens on over off, memory: 80 GB card": (0.97, False),
    }


# -------------------------------------------------------------------------------------- client


def client_of(handler: Callable[[httpx.Request], httpx.Response]) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url="http://test", transport=httpx.MockTransport(handler))


def chunk(text: str | None = None, **more: Any) -> str:
    choices = [] if text is None else [{"index": 0, "delta": {"content": text}}]
    return f"data: {json.dumps({'choices': choices, **more})}\n\n"


STREAM = (
    'data: {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}\n\n'
    + ": a comment\n\n"
    + chunk("one ")
    + chunk("two")
    + chunk(usage={"prompt_tokens": 5, "completion_tokens": 2})
    + "data: [DONE]\n\n"
    + chunk("never read")
)


async def once(handler: Callable[[httpx.Request], httpx.Response], **more: Any) -> Answer:
    async with client_of(handler) as client:
        return await ask(client, chat_body("m", [media.text("hi")], 2), **more)


def test_an_answer_is_read_from_its_stream() -> None:
    sent: list[Any] = []

    def serve(request: httpx.Request) -> httpx.Response:
        sent.append((request.url.path, json.loads(request.content)))
        return httpx.Response(200, text=STREAM)

    answer = asyncio.run(once(serve))
    assert (answer.text, answer.prompt_tokens, answer.completion_tokens) == ("one two", 5, 2)
    assert answer.ttft_s is not None
    assert 0 < answer.ttft_s <= answer.total_s
    assert (answer.error, answer.cancelled) == (None, False)
    ((path, body),) = sent
    assert path == "/v1/chat/completions"
    assert (body["temperature"], body["max_completion_tokens"], body["stream"]) == (0, 2, True)


def test_errors_have_their_type() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        return httpx.Response(429, json={"error": {"type": "rate_limit_error", "message": ""}})

    def crash(request: httpx.Request) -> httpx.Response:
        return httpx.Response(500, text="Internal Server Error")

    def midway(request: httpx.Request) -> httpx.Response:
        event = {"error": {"type": "server_error", "message": "going down"}}
        return httpx.Response(200, text=chunk("one") + f"data: {json.dumps(event)}\n\n")

    answer = asyncio.run(once(refuse))
    assert (answer.status, answer.error) == (429, "rate_limit_error")
    answer = asyncio.run(once(crash))
    assert (answer.status, answer.error) == (500, "untyped")
    answer = asyncio.run(once(midway))
    assert (answer.text, answer.error) == ("one", "server_error")


def test_a_client_hangs_up_after_so_many_pieces() -> None:
    answer = asyncio.run(once(lambda request: httpx.Response(200, text=STREAM), hang_up_after=1))
    assert (answer.text, answer.cancelled) == ("one ", True)


def test_a_load_keeps_so_many_in_flight_and_the_order_of_requests() -> None:
    flying, most = 0, 0

    async def serve(request: httpx.Request) -> httpx.Response:
        nonlocal flying, most
        flying += 1
        most = max(most, flying)
        number = json.loads(request.content)["messages"][0]["content"][0]["text"]
        await asyncio.sleep(0.02 if number == "0" else 0.001)
        flying -= 1
        return httpx.Response(200, text=chunk(number) + "data: [DONE]\n\n")

    bodies = [chat_body("m", [media.text(str(number))], 1) for number in range(10)]

    async def run(**more: Any) -> list[str]:
        async with client_of(serve) as client:
            return [answer.text for answer in (await run_load(client, bodies, 3, **more)).answers]

    assert asyncio.run(run()) == [str(number) for number in range(10)]
    assert most == 3
    assert asyncio.run(run(go_on=lambda sent: sent < 4)) == ["0", "1", "2", "3"]


# --------------------------------------------------------------------------------------- plan


def test_the_first_server_settles_how_many_requests_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(serving.time, "perf_counter", lambda: now)
    case = CASES["qwen3_vl_2b"]
    plan = serving.Plan(case, servers=4, end=180.0)
    # 3 more servers take 6 + 4 seconds to start, 50 are left: for 4 servers of 4 rungs.
    assert plan.seconds_a_rung(6.0) == pytest.approx(50 / 16)
    go_on = plan.go_on(8, 3.0)
    now = 102.0
    assert go_on(47)
    assert not go_on(48)
    now = 104.0
    assert go_on(7)
    assert not go_on(8)
    plan.settled[8] = 20
    later = plan.go_on(8, 0.0)
    assert later(19)
    assert not later(20)
    unlimited = serving.Plan(case, servers=4, end=None)
    assert unlimited.go_on(1, unlimited.seconds_a_rung(6.0))(15)


# ------------------------------------------------------------------------------------ servers


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with Server(tmp_path / "log", {}) as server:
        with pytest.raises(ServerError, match=r"ended with 1\n(.|\n)*error: no model"):
            server.serve(["serve", "--port", "0"], 100)
        assert server.stop() == 1


def test_series_by_label() -> None:
    before = {("replays", (("bucket", "a"), ("modality", "image"))): 2.0, ("kv", ()): 5.0}
    after = {
        ("replays", (("bucket", "a"), ("modality", "image"))): 3.0,
        ("replays", (("bucket", "b"), ("modality", "image"))): 4.0,
        ("kv", ()): 5.0,
    }
    counted = difference(before, after)
    assert by_label(counted, "replays", "modality") == {"image": 5.0}
    assert by_label(counted, "replays", "modality", "bucket") == {"image/a": 1.0, "image/b": 4.0}


# -------------------------------------------------------------------------- checkpoints, cases


def test_every_token_of_a_filled_vocabulary_has_a_text_of_its_own(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    for path in tiny_checkpoint.iterdir():
        if path.suffix != ".safetensors":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    before = AutoTokenizer.from_pretrained(tmp_path)
    fill_vocabulary(tmp_path / "tokenizer.json", 5000)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert len(tokenizer) == 5000
    text = "What is in <|image_pad|> this picture?"
    assert tokenizer(text)["input_ids"] == before(text)["input_ids"]
    assert tokenizer.decode([1700, 4999]) == " w1700 w4999"


@pytest.mark.parametrize("name", CASES)
def test_configurations_are_valid_and_differ_in_graphs_alone(name: str) -> None:
    for case in (CASES[name], CASES[name].small()):
        off, on = (case.yaml_config(graphs=graphs) for graphs in (False, True))
        for config in (off, on):
            ServeConfig.model_validate(config)
        del on["multimodal_config"]["encoder_cuda_graph"]
        assert on == off
    assert set(case.graphs) <= set(MODELS[case.model].sections) | {"image"}
