# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Cases 44 and 45 of the reference list: how a server starts, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from running_server import chat, image_part, until

from tensorrt_llm_ext.graphs.static_backend import StaticGraphBackend
from tensorrt_llm_ext.llmapi.llm_args import ServeConfig
from tensorrt_llm_ext.serve import HttpOptions, run
from tensorrt_llm_ext.serve import server as server_module

GRAPHS = {"encoder_cuda_graph": {"image": {"buckets": [[96, 4], [320, 8]]}}}


class Process:
    """``run`` on the main thread, with the shared engine, and what a test does on another.

    Args:
        engine: The engine.
        patch: Undoes it.
    """

    def __init__(self, engine: Any, patch: pytest.MonkeyPatch) -> None:
        self.engine = engine
        self.servers: list[Any] = []
        self.shutdowns = 0
        self.step_seconds = 0.0
        made, step = server_module.Server, engine.step

        def remember(*args: Any) -> Any:
            self.servers.append(made(*args))
            return self.servers[-1]

        def shutdown() -> None:
            self.shutdowns += 1

        def slow_step() -> Any:
            time.sleep(self.step_seconds)
            return step()

        patch.setattr(server_module, "Server", remember)
        patch.setattr(server_module, "make_engine", lambda args: engine)
        patch.setattr(server_module, "configure_logging", lambda options: None)
        patch.setattr(engine, "shutdown", shutdown)
        patch.setattr(engine, "step", slow_step)

    def run(self, meanwhile: Callable[[str], None], **options: Any) -> int:
        """Exit code of the server; ``meanwhile`` is given its URL and has to end it."""
        errors: list[BaseException] = []

        def work() -> None:
            try:
                until(lambda: self.servers and self.servers[-1].started)
                port = self.servers[-1].servers[0].sockets[0].getsockname()[1]
                meanwhile(f"http://127.0.0.1:{port}")
            except BaseException as error:  # noqa: BLE001 (raised again below)
                errors.append(error)
                for _ in range(2):
                    self.servers[-1].handle_exit(signal.SIGTERM, None)

        thread = threading.Thread(target=work)
        thread.start()
        http = HttpOptions(host="127.0.0.1", port=0, served_model_name="tiny", **options)
        code = run(ServeConfig(model="somewhere"), http)
        thread.join(20)
        assert not thread.is_alive()
        if errors:
            raise errors[0]
        assert self.engine.loop.idle
        return code


@pytest.fixture
def process(engine: Any, monkeypatch: pytest.MonkeyPatch) -> Process:
    return Process(engine, monkeypatch)


def post(url: str, **body: Any) -> httpx.Response:
    with httpx.Client(timeout=30, trust_env=False) as client:
        return client.post(f"{url}/v1/chat/completions", json=chat(**body))


class Posted:
    """A request on a thread of its own."""

    def __init__(self, url: str, **body: Any) -> None:
        self.reply: httpx.Response | None = None
        self.seconds = 0.0
        self._thread = threading.Thread(target=self._post, args=(url, body))
        self._thread.start()

    def _post(self, url: str, body: Any) -> None:
        began = time.monotonic()
        self.reply = post(url, **body)
        self.seconds = time.monotonic() - began

    def join(self) -> httpx.Response:
        self._thread.join(20)
        assert self.reply is not None
        return self.reply


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_case_44_running_requests_finish(process: Process, signum: int) -> None:
    process.step_seconds = 0.01

    def meanwhile(url: str) -> None:
        loop = process.engine.loop
        posted = [Posted(url, max_completion_tokens=40, stream=s) for s in (True, False)]
        until(lambda: loop.num_running == 2)
        idle = httpx.Client(base_url=url, trust_env=False)
        assert idle.get("/health").status_code == 200
        os.kill(os.getpid(), signum)
        until(lambda: process.servers[-1].should_exit)
        time.sleep(0.25)
        assert loop.num_running == 2  # still at it
        with pytest.raises(httpx.TransportError):  # nobody new
            httpx.get(f"{url}/health", trust_env=False)
        idle.close()
        stream, whole = (p.join() for p in posted)
        assert stream.text.endswith("data: [DONE]\n\n")
        assert '"finish_reason": "length"' in stream.text
        assert whole.json()["choices"][0]["finish_reason"] == "length"

    assert process.run(meanwhile, shutdown_grace_period=20) == 0
    assert process.shutdowns == 1


def test_case_44_those_that_do_not_finish_get_an_error(process: Process) -> None:
    process.step_seconds = 0.02

    def meanwhile(url: str) -> None:
        posted = [Posted(url, max_completion_tokens=450, stream=s) for s in (True, False)]
        until(lambda: process.engine.loop.num_running == 2)
        os.kill(os.getpid(), signal.SIGTERM)
        began = time.monotonic()
        stream, whole = (p.join() for p in posted)
        assert 0.3 < time.monotonic() - began < 3
        *_, error, done, _empty = stream.text.split("\n\n")
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == "shutting_down"
        assert done == "data: [DONE]"
        assert (whole.status_code, whole.headers["retry-after"]) == (503, "5")
        assert whole.json()["error"]["code"] == "shutting_down"

    assert process.run(meanwhile, shutdown_grace_period=0.5) == 0


def test_case_44_a_second_signal_forces(process: Process) -> None:
    process.step_seconds = 0.02

    def meanwhile(url: str) -> None:
        with httpx.Client(timeout=30, trust_env=False) as client:
            body = chat(max_completion_tokens=450, stream=True)
            with client.stream("POST", f"{url}/v1/chat/completions", json=body) as stream:
                lines = stream.iter_lines()
                next(lines)
                os.kill(os.getpid(), signal.SIGTERM)
                until(lambda: process.servers[-1].should_exit)
                time.sleep(0.3)
                began = time.monotonic()
                os.kill(os.getpid(), signal.SIGTERM)
                rest = list(lines)
                assert "shutting_down" in rest[-4]
                assert time.monotonic() - began < 2

    assert process.run(meanwhile, shutdown_grace_period=60) == 128 + signal.SIGTERM
    assert process.shutdowns == 1


def test_no_new_request_on_an_old_connection_while_draining(process: Process) -> None:
    process.step_seconds = 0.02

    def meanwhile(url: str) -> None:
        posted = Posted(url, max_completion_tokens=30)
        until(lambda: process.engine.loop.num_running == 1)
        port = int(url.rsplit(":", 1)[1])
        with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
            text = json.dumps(chat()).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(text)}"
            sock.sendall(f"{head}\r\nContent-Type: application/json\r\n".encode())
            until(lambda: len(process.servers[-1].server_state.connections) == 2)
            process.servers[-1].state.draining = True
            sock.sendall(b"\r\n" + text)
            assert sock.recv(999).startswith(b"HTTP/1.1 503")
        assert httpx.get(f"{url}/health", trust_env=False).status_code == 503
        os.kill(os.getpid(), signal.SIGTERM)
        assert posted.join().status_code == 200

    assert process.run(meanwhile, shutdown_grace_period=20) == 0


@pytest.mark.parametrize("during", ["capture", "warm-up"])
def test_case_44_sigterm_while_capturing(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, during: str
) -> None:
    """What is captured by then is released on the way out."""
    released: list[str] = []
    capture = StaticGraphBackend.capture
    calls = 0

    def interrupted(self: Any, body: Any, *, warmup_steps: int) -> Any:
        nonlocal calls
        calls += 1
        if calls < 2:
            return capture(self, body, warmup_steps=warmup_steps)

        def killed() -> None:
            body()
            os.kill(os.getpid(), signal.SIGTERM)

        return capture(self, killed, warmup_steps=2 if during == "warm-up" else 0)

    from tensorrt_llm_ext.towers.mixin import MultimodalEncoderMixin

    release = MultimodalEncoderMixin.release_encoder_cuda_graphs

    def spy(self: Any) -> None:
        released.append(self.encoder_cuda_graph_modality)
        release(self)

    monkeypatch.setattr(StaticGraphBackend, "capture", interrupted)
    monkeypatch.setattr(MultimodalEncoderMixin, "release_encoder_cuda_graphs", spy)
    monkeypatch.setattr(server_module, "configure_logging", lambda options: None)
    config = ServeConfig(
        model=tiny_checkpoint, device="cpu", max_seq_len=256, multimodal_config=GRAPHS
    )
    http = HttpOptions(host="127.0.0.1", port=0)
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    assert run(config, http) == 128 + signal.SIGTERM
    assert calls == 2
    assert released == ["image"]
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize("what", ["port", "name", "model", "memory"])
def test_case_45_what_stops_the_start_is_one_line(
    tiny_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    what: str,
) -> None:
    loaded = []
    make = server_module.make_engine
    monkeypatch.setattr(server_module, "make_engine", lambda args: loaded.append(1) or make(args))
    monkeypatch.setattr(server_module, "configure_logging", lambda options: None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1] if what == "port" else 0
        host = "no-such-host.invalid" if what == "name" else "127.0.0.1"
        model = tmp_path / "nothing" if what == "model" else tiny_checkpoint
        kv = {"free_gpu_memory_fraction": 1e-9} if what == "memory" else {}
        config = ServeConfig(
            model=model, device="cpu", max_seq_len=64 if what == "memory" else None,
            kv_cache_config=kv,
        )  # fmt: skip
        assert run(config, HttpOptions(host=host, port=port)) == 1
    out, err = capsys.readouterr()
    assert out == ""
    lines = [line for line in err.splitlines() if line and "Loading weights" not in line]
    assert len(lines) == 1, err
    assert lines[0].startswith("error: ")
    assert bool(loaded) == (what in ("model", "memory"))


RUNNER = """
import sys, warnings
from transformers.utils import logging
from tensorrt_llm_ext.llmapi.llm_args import ServeConfig
from tensorrt_llm_ext.serve import HttpOptions, run, server
config = ServeConfig(model=sys.argv[1], device="cpu", max_seq_len=512)
http = HttpOptions(host="127.0.0.1", port=0, log_format="json", shutdown_grace_period=20)
def load(args):
    warnings.warn("of some library")
    logging.get_logger("transformers.generation").warning("of transformers")
    return make_engine(args)
make_engine, server.make_engine = server.make_engine, load
sys.exit(run(config, http))
"""
SECRET = "velociraptor"


def test_a_whole_process(tiny_checkpoint: Path, photo: Image.Image) -> None:
    """Starts, says where, serves, drains, leaves nothing; case 51: what its log says."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"}
    child = subprocess.Popen(
        [sys.executable, "-c", RUNNER, str(tiny_checkpoint)],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=Path(__file__).parents[3],
    )
    assert child.stderr is not None
    lines = []
    for line in child.stderr:
        lines.append(line)
        if "serving tiny_qwen3_vl on http://127.0.0.1:" in line:
            break
    url = json.loads(lines[-1])["message"].split()[-1]
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        part = image_part(photo.resize((96, 64)))
        body = chat(SECRET, [part], model="tiny_qwen3_vl", max_completion_tokens=3)
        headers = {"X-Request-Id": "mine-1", "Authorization": f"Bearer {SECRET}"}
        path = f"/v1/chat/completions?token={SECRET}"
        reply = client.post(path, json=body, headers=headers)
        assert reply.status_code == 200
        assert reply.headers["x-request-id"] == "mine-1"
        assert client.post(path, json={**body, SECRET: 1}).status_code == 400
        broken = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{SECRET}"}}
        assert (
            client.post(path, json=chat(SECRET, [broken], model="tiny_qwen3_vl")).status_code == 400
        )
    child.send_signal(signal.SIGTERM)
    out, err = child.communicate(timeout=30)
    assert child.returncode == 0, err
    assert out == ""
    before = [json.loads(line) for line in lines]  # no line is anything else
    for text in ("of some library", "of transformers"):
        assert any(text in r["message"] for r in before)
    records = [json.loads(line) for line in err.splitlines()]
    answered = [r for r in records if r["logger"] == "tensorrt_llm_ext.serve.requests"]
    assert [(r["request_id"], r["status"]) for r in answered[:1]] == [("mine-1", 200)]
    assert {r["path"] for r in answered} == {"/v1/chat/completions"}
    assert all({"time", "level", "message", "seconds", "method"} <= set(r) for r in answered)
    log = "".join(lines) + err
    assert SECRET not in log
    assert part["image_url"]["url"][40:80] not in log
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health", trust_env=False)
    with socket.create_server(("127.0.0.1", int(url.rsplit(":", 1)[1]))):
        pass  # the port is free
