# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Fetches a URL: within a time and a size, from public addresses alone, hop by hop."""

from __future__ import annotations

import http.client
import io
import queue
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from ..llmapi.media_limits import MediaLimits
from .clock import Clock
from .errors import MediaError
from .urls import MediaUrl, is_public, redirected

_REDIRECTS = {301, 302, 303, 307, 308}
_CHUNK = 64 * 1024
_FRAMING = 2**20
"""Bytes for headers and the marks between chunks."""
_HEADERS = {
    "Accept": "*/*",
    "Accept-Encoding": "identity",  # or a small body could unpack to a huge one
    "Connection": "close",
    "User-Agent": "tensorrt_llm_ext",
}

Resolve = Callable[[str, int], Sequence[str]]
"""(host, port) -> its addresses, as numbers. Raises OSError."""
Connect = Callable[[str, int, float], socket.socket]
"""(address, port, seconds) -> a connection to it. Raises OSError."""


def resolve(host: str, port: int) -> list[str]:
    """All addresses of a host.

    Raises:
        OSError: It has none.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(info[4][0]) for info in found]


def connect(address: str, port: int, seconds: float) -> socket.socket:
    """Connect to an address; nothing is looked up, and no proxy is asked.

    Raises:
        OSError: There is no connection after the given time.
    """
    return socket.create_connection((address, port), timeout=seconds)


class Fetcher:
    """Fetches URLs by one policy. Thread-safe.

    Args:
        limits: The policy.
        resolve: Looks up names. Whatever it returns, only public addresses are connected to.
        connect: Connects to an address that was found to be public.
        tls: Checks certificates; left out, against those that the system trusts.
    """

    def __init__(
        self,
        limits: MediaLimits,
        *,
        resolve: Resolve = resolve,
        connect: Connect = connect,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._limits = limits
        self._resolve, self._connect = resolve, connect
        self._given_tls = tls

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return self._given_tls or ssl.create_default_context()  # reads all certificates: slow

    def fetch(self, url: MediaUrl, most: int, deadline: float | None = None) -> bytes:
        """Fetch what a URL names; that the URL itself is taken was checked when it was parsed.

        Args:
            url: Where.
            most: Bytes that it may have.
            deadline: Value of ``time.monotonic()`` after which to give up, where that is before
                the limits' own time is over.

        Returns:
            The body.

        Raises:
            MediaError: It cannot be fetched within time and size, or redirects to what is not
                taken.
        """
        clock = Clock(self._limits.fetch_timeout, deadline)
        try:
            for _ in range(self._limits.max_redirects + 1):
                body = self._hop(url, most, clock)
                if isinstance(body, bytes):
                    return body
                url = body
        except MediaError:
            raise
        except TimeoutError:
            raise MediaError(f"fetching from {url.host!r} took too long", 408) from None
        except (OSError, http.client.HTTPException, ValueError):  # ValueError: a negative length
            raise MediaError(
                f"fetching from {url.host!r} failed: no trusted connection, or no proper answer"
            ) from None
        raise MediaError(f"the URL redirects more than {self._limits.max_redirects} times")

    def _hop(self, url: MediaUrl, most: int, clock: Clock) -> bytes | MediaUrl:
        """One request: the body, or where it redirects to."""
        connection = http.client.HTTPConnection(url.host, url.port)
        with self._socket(url, clock) as sock:
            # Only what HTTPConnection uses of a socket, with the time left on every operation.
            connection.sock = _BoundedSocket(sock, clock, 2 * most + _FRAMING)
            connection.putrequest("GET", url.target, skip_host=True, skip_accept_encoding=True)
            for name, value in {"Host": url.host_header, **_HEADERS}.items():
                connection.putheader(name, value)
            connection.endheaders()
            with connection.getresponse() as response:
                if response.status in _REDIRECTS:
                    return redirected(url, response.getheader("Location", ""), self._limits)
                return _body(response, url, most)

    def _socket(self, url: MediaUrl, clock: Clock) -> socket.socket:
        addresses = self._addresses(url, clock)
        failure: OSError = OSError("no address")
        for address in addresses:
            try:
                sock = self._connect(address, url.port, clock.left())
                break
            except OSError as error:
                failure = error
        else:
            raise failure
        if url.scheme == "http":
            return sock
        try:
            sock.settimeout(clock.left())
            return self._tls.wrap_socket(sock, server_hostname=url.host)
        except OSError:
            sock.close()
            raise

    def _addresses(self, url: MediaUrl, clock: Clock) -> Sequence[str]:
        """Addresses of a host, all of them public."""
        addresses = _in_time(lambda: self._resolve(url.host, url.port), clock.left())
        if not addresses or not all(is_public(address) for address in addresses):
            raise MediaError(f"host {url.host!r} has an address that is not public")
        return addresses


class _BoundedSocket:
    """A socket whose operations all together end in time, and that receives so much at most.

    What reads from it need not be trusted to stop: `http.client` takes a chunk of length -1 for
    everything that will ever come.
    """

    def __init__(self, sock: socket.socket, clock: Clock, most: int) -> None:
        self._sock, self._clock, self._most = sock, clock, most

    def sendall(self, data: Any) -> None:
        """Send all of it."""
        self._sock.settimeout(self._clock.left())
        self._sock.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        """What is received, as a file."""
        return io.BufferedReader(_BoundedReader(self._sock, self._clock, self._most))

    def close(self) -> None:
        """Leave closing to whoever opened it."""


class _BoundedReader(io.RawIOBase):
    def __init__(self, sock: socket.socket, clock: Clock, most: int) -> None:
        self._sock, self._clock, self._left = sock, clock, most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(self._clock.left())
        count = self._sock.recv_into(buffer)
        self._left -= count
        if self._left < 0:
            raise MediaError("the URL sends more bytes than a file may have", 413)
        return count


def _body(response: http.client.HTTPResponse, url: MediaUrl, most: int) -> bytes:
    """The body of an answer, read to its end; its length is counted, not believed."""
    if response.status != 200:
        raise MediaError(f"host {url.host!r} answered with status {response.status}")
    coding = response.getheader("Content-Encoding", "identity").strip().lower()
    transfer = response.getheader("Transfer-Encoding", "chunked").strip().lower()
    if coding not in ("identity", "") or transfer != "chunked":
        raise MediaError(f"host {url.host!r} sent a compressed answer, which was not asked for")
    too_large = MediaError(f"the file has more than {most:,} bytes; send a smaller one", 413)
    if response.length is not None and response.length > most:
        raise too_large
    body = bytearray()
    while chunk := response.read(min(_CHUNK, most + 1 - len(body))):
        body += chunk
        if len(body) > most:
            raise too_large
    if response.length:
        raise MediaError(f"host {url.host!r} sent less than it announced")
    return bytes(body)


def _in_time(call: Callable[[], Sequence[str]], seconds: float) -> Sequence[str]:
    """Result of a call that cannot be given a time; one that takes longer is left behind."""
    results: queue.Queue[Sequence[str] | OSError] = queue.Queue(1)

    def run() -> None:
        try:
            results.put(call())
        except (OSError, UnicodeError) as error:  # UnicodeError: a label that IDNA refuses
            results.put(OSError(str(error)))

    threading.Thread(target=run, name="media-resolve", daemon=True).start()
    try:
        result = results.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError from None
    if isinstance(result, OSError):
        raise result
    return result
