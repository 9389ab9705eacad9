# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Cases 37 and 38: fetching, against servers on this machine that behave badly.

Names and connections are given to the fetcher: production looks names up and connects to the very
address that it found to be public, and has no switch that changes it.
"""

from __future__ import annotations

import gzip
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from media_files import picture

from tensorrt_llm_ext.media import MediaDoor, MediaError, MediaLimits, MediaPart
from tensorrt_llm_ext.media.fetch import Fetcher

HOST, OTHER = "media.example.com", "other.example.com"
PUBLIC = "93.184.216.34"
PNG = picture()
OK = b"HTTP/1.1 200 OK\r\n"

Handler = Callable[[socket.socket, bytes], None]


class Server:
    """Serves connections on 127.0.0.1, one after the other, by a function."""

    def __init__(self, handler: Handler, tls: ssl.SSLContext | None = None) -> None:
        self.handler, self.tls = handler, tls
        self.requests: list[bytes] = []
        self.closed = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            try:
                with self.tls.wrap_socket(sock, server_side=True) if self.tls else sock as peer:
                    peer.settimeout(10)
                    request = b""
                    while b"\r\n\r\n" not in request and (part := peer.recv(4096)):
                        request += part
                    self.requests.append(request)
                    self.handler(peer, request)
                    peer.shutdown(socket.SHUT_WR)
                    while peer.recv(4096):
                        pass
            except OSError:
                pass  # the client left
            self.closed.set()


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(handler: Handler | bytes, **options: Any) -> Server:
        answer = handler if callable(handler) else lambda sock, _: sock.sendall(handler)
        servers.append(Server(answer, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.listener.close()


class Net:
    """Names and connections of a made-up network, and what was asked of it."""

    def __init__(self, server: Server, names: dict[str, list[list[str]]] | None = None) -> None:
        self.server, self.names = server, names or {HOST: [[PUBLIC]], OTHER: [[PUBLIC]]}
        self.connected: list[tuple[str, int]] = []

    def resolve(self, host: str, port: int) -> list[str]:
        answers = self.names[host]
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def connect(self, address: str, port: int, seconds: float) -> socket.socket:
        self.connected.append((address, port))
        sock = socket.create_connection(("127.0.0.1", self.server.port), timeout=seconds)
        sock.settimeout(None)  # the fetcher has to set it
        return sock


def door_to(net: Net, tls: ssl.SSLContext | None = None, **limits: Any) -> MediaDoor:
    fields = {"allowed_media_domains": [HOST, OTHER], "fetch_timeout": 30.0, **limits}
    checked = MediaLimits.model_validate(fields)
    fetcher = Fetcher(checked, resolve=net.resolve, connect=net.connect, tls=tls)
    return MediaDoor(checked, fetcher=fetcher)


def part(url: str = f"http://{HOST}/a.png?k=v") -> MediaPart:
    return MediaPart("image", url)


def answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def refused(door: MediaDoor, match: str, status: int = 400, **options: Any) -> float:
    """Seconds that a refusal took."""
    start = time.monotonic()
    with pytest.raises(MediaError, match=match) as caught:
        door.open(part(), **options)
    assert caught.value.status == status
    for text in (PUBLIC, "127.0.0.1", "0x"):
        assert text not in str(caught.value)
    return time.monotonic() - start


def test_a_picture_is_fetched_from_the_address_that_was_checked(serve: Any) -> None:
    net = Net(serve(answer(PNG)))
    assert door_to(net).open(part()).size == (32, 24)
    assert net.connected == [(PUBLIC, 80)]
    request = net.server.requests[0].decode().split("\r\n")
    assert request[0] == "GET /a.png?k=v HTTP/1.1"
    assert f"Host: {HOST}" in request
    assert "Accept-Encoding: identity" in request
    assert not any(line.lower().startswith(("cookie", "authorization")) for line in request)


@pytest.mark.parametrize(
    "addresses",
    [
        *(["127.0.0.1"], ["169.254.169.254"], ["10.1.2.3"], ["::1"], ["::ffff:127.0.0.1"], []),
        *([PUBLIC, "10.0.0.1"], ["100.64.0.1"], ["fd00::1"], ["0.0.0.0"], ["64:ff9b::7f00:1"]),
    ],
    ids=str,
)
def test_case_37_addresses_that_are_not_public_are_never_connected_to(
    addresses: list[str], serve: Any
) -> None:
    net = Net(serve(answer(PNG)), {HOST: [addresses]})
    refused(door_to(net), "has an address that is not public")
    assert net.connected == []


def test_case_37_a_name_is_looked_up_once_so_it_cannot_be_rebound(serve: Any) -> None:
    net = Net(serve(answer(PNG)), {HOST: [[PUBLIC], ["127.0.0.1"]]})
    door_to(net).open(part())
    assert net.connected == [(PUBLIC, 80)]


def test_case_37_production_refuses_this_machine(serve: Any) -> None:
    server = serve(answer(PNG))
    limits = MediaLimits(allowed_media_domains=["localhost"], allowed_media_ports=[server.port])
    with pytest.raises(MediaError, match="not public"):
        MediaDoor(limits).open(part(f"http://localhost:{server.port}/"))
    assert server.requests == []


def test_case_37_proxies_of_the_environment_are_ignored(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = serve(answer(b"proxy"))
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
    door_to(Net(serve(answer(PNG)))).open(part())
    assert proxy.requests == []


def test_case_37_every_redirect_is_checked(serve: Any) -> None:
    def hop(sock: socket.socket, request: bytes) -> None:
        if b"/a.png" in request:
            sock.sendall(answer(b"", f"Location: http://{OTHER}/b", status="302 Found"))
        else:
            sock.sendall(answer(PNG))

    net = Net(serve(hop), {HOST: [[PUBLIC]], OTHER: [["8.8.8.8"]]})
    assert door_to(net).open(part()).size == (32, 24)
    assert net.connected == [(PUBLIC, 80), ("8.8.8.8", 80)]
    net = Net(serve(hop), {HOST: [[PUBLIC]], OTHER: [["192.168.0.1"]]})
    refused(door_to(net), rf"'{OTHER}' has an address that is not public")
    assert net.connected == [(PUBLIC, 80)]
    refused(door_to(Net(serve(hop)), allowed_media_domains=[HOST]), f"'{OTHER}' is not one")
    refused(door_to(Net(serve(hop)), max_redirects=0), "redirects more than 0 times")


def test_case_37_redirect_loops_end(serve: Any) -> None:
    net = Net(serve(answer(b"", "Location: /a.png", status="301 Moved")))
    refused(door_to(net, max_redirects=3), "redirects more than 3 times")
    assert len(net.connected) == 4


def test_case_38_too_many_bytes(serve: Any) -> None:
    def endless(sock: socket.socket, _: bytes) -> None:
        sock.sendall(OK + b"\r\n")
        while True:
            sock.sendall(bytes(65536))

    def chunked(sock: socket.socket, _: bytes) -> None:
        sock.sendall(OK + b"Transfer-Encoding: chunked\r\n\r\n")
        while True:
            sock.sendall(b"10000\r\n" + bytes(65536) + b"\r\n")

    def one_endless_chunk(sock: socket.socket, _: bytes) -> None:
        sock.sendall(OK + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n")
        while True:
            sock.sendall(bytes(65536))

    announced = OK + b"Content-Length: 99999999999\r\n\r\n"
    for handler in (endless, chunked, one_endless_chunk, announced):
        net = Net(serve(handler))
        assert refused(door_to(net, max_part_bytes=300_000), "more (than 300,000 )?bytes", 413) < 20
        assert net.server.closed.wait(5)
    refused(door_to(Net(serve(answer(PNG))), max_part_bytes=len(PNG) - 1), "more than", 413)
    door_to(Net(serve(answer(PNG))), max_part_bytes=len(PNG)).open(part())


def drip(head: bytes) -> Handler:
    """Sends a head, then a byte now and then."""

    def handler(sock: socket.socket, _: bytes) -> None:
        sock.sendall(head)
        for _ in range(200):
            sock.sendall(b"x")
            time.sleep(0.05)

    return handler


@pytest.mark.parametrize(
    "head",
    [OK + b"\r\n", OK + b"X-Drip: ", b"", b"HTTP/1.1 100 Continue\r\n\r\n" + OK],
    ids=["body", "header", "status line", "after 100"],
)
def test_case_38_drips_end_when_the_time_is_over(head: bytes, serve: Any) -> None:
    net = Net(serve(drip(head)))
    assert 0.4 < refused(door_to(net, fetch_timeout=0.5), "took too long", 408) < 8
    assert net.server.closed.wait(5)


def test_case_38_the_callers_deadline_holds_too(serve: Any) -> None:
    door = door_to(Net(serve(drip(OK + b"\r\n"))), fetch_timeout=60.0)
    assert refused(door, "took too long", 408, deadline=time.monotonic() + 0.5) < 8


def test_case_38_a_slow_name_look_up_ends_in_time(serve: Any) -> None:
    net = Net(serve(answer(PNG)))
    net.resolve = lambda host, port: time.sleep(20) or [PUBLIC]  # type: ignore[method-assign]
    assert refused(door_to(net, fetch_timeout=0.3), "took too long", 408) < 8


def test_case_38_less_than_announced(serve: Any) -> None:
    short = OK + b"Content-Length: 5000\r\n\r\n" + PNG
    refused(door_to(Net(serve(short))), "sent less than it announced")
    broken = OK + b"Transfer-Encoding: chunked\r\n\r\n1000\r\nabc"
    refused(door_to(Net(serve(broken))), "no proper answer")


@pytest.mark.parametrize(
    "header",
    ["Content-Encoding: gzip", "Content-Encoding: identity, gzip", "Transfer-Encoding: gzip"],
)
def test_case_38_compressed_answers_are_refused_not_unpacked(header: str, serve: Any) -> None:
    bomb = gzip.compress(bytes(10_000_000))
    refused(door_to(Net(serve(answer(bomb, header)))), "compressed answer")


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"not http\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n"),
        OK + b"A: " + b"x" * 70_000 + b"\r\n\r\n",
        *(OK + b"A: b\r\n" * 200 + b"\r\n", OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"),
        *(OK + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nabc", b"HTTP/9.9 200 OK\r\n\r\n"),
    ],
    ids=lambda c: repr(c[:24]),
)  # fmt: skip
def test_case_38_what_is_not_http(content: bytes, serve: Any) -> None:
    refused(door_to(Net(serve(content))), "no proper answer")


def test_case_38_other_statuses(serve: Any) -> None:
    for status in ("404 Not Found", "206 Partial Content", "500 Oops", "304 Not Modified"):
        refused(door_to(Net(serve(answer(b"", status=status)))), f"status {status[:3]}")


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    def connect(address: str, port_asked: int, seconds: float) -> socket.socket:
        return socket.create_connection(("127.0.0.1", port), timeout=seconds)

    limits = MediaLimits(allowed_media_domains=[HOST])
    for resolve in (lambda h, p: [PUBLIC], _unknown):
        fetcher = Fetcher(limits, resolve=resolve, connect=connect)
        refused(MediaDoor(limits, fetcher=fetcher), "no trusted connection")


def _unknown(host: str, port: int) -> list[str]:
    raise socket.gaierror(-2, "Name or service not known")


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of media.example.com, with its key, signed by itself; made for this run."""
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", f"/CN={HOST}"]
    command += ["-addext", f"subjectAltName=DNS:{HOST}", "-keyout", str(path), "-out", str(path)]
    try:
        done = subprocess.run([*command[:-1], f"{path}.crt"], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("needs the program openssl to make a certificate")
    assert done.returncode == 0, done.stderr
    path.write_text(path.read_text() + Path(f"{path}.crt").read_text())
    return path


def test_certificates_are_checked_against_the_name(certificate: Path, serve: Any) -> None:
    own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    own.load_cert_chain(certificate)
    trusting = ssl.create_default_context(cafile=str(certificate))
    net = Net(serve(answer(PNG), tls=own))
    good = part(f"https://{HOST}/a.png")
    assert door_to(net, trusting).open(good).size == (32, 24)
    assert net.connected == [(PUBLIC, 443)]
    for door, url in (
        (door_to(net, trusting), f"https://{OTHER}/a.png"),  # another name
        (door_to(net), f"https://{HOST}/a.png"),  # by default only what the system trusts
    ):
        with pytest.raises(MediaError, match="no trusted connection"):
            door.open(part(url))


def test_case_38_a_server_that_says_nothing_to_tls_is_left_in_time(serve: Any) -> None:
    net = Net(serve(b""))  # it waits for the end of a request
    start = time.monotonic()
    with pytest.raises(MediaError, match="took too long") as caught:
        door_to(net, fetch_timeout=0.5).open(part(f"https://{HOST}/a.png"))
    assert caught.value.status == 408
    assert time.monotonic() - start < 8
