# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Which URLs are taken, and to which addresses a connection may go.

A URL is taken apart once, strictly; the fetcher works with the parts and never sees the text. So no
second parser can read it in another way.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from urllib.parse import urljoin

from ..llmapi.media_limits import MediaLimits
from .errors import MediaError

MAX_URL_LENGTH = 8192
_PORTS = {"http": 80, "https": 443}
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>[a-z0-9_.-]+)(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>/[^?#]*)?(?P<query>\?[^#]*)?(?:#.*)?",
    re.IGNORECASE | re.ASCII,
)
# What RFC 3986 lets stand in a URL: nothing that another parser drops or reads as a separator.
_CLEAN = re.compile(r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]*")
# The part of IPv6 that is given out, less the transition ranges that carry an IPv4 address.
_GLOBAL_V6 = IPv6Network("2000::/3")
_TUNNELS_V6 = (IPv6Network("2001::/32"), IPv6Network("2002::/16"))


@dataclass(frozen=True)
class MediaUrl:
    """A URL in the parts that a fetch needs.

    Attributes:
        scheme: ``"http"`` or ``"https"``.
        host: In lower case.
        port: From 1 to 65535.
        target: Path and query.
    """

    scheme: str
    host: str
    port: int
    target: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}{self.target}"

    @property
    def host_header(self) -> str:
        """Value of the header Host."""
        usual = self.port == _PORTS[self.scheme]
        return self.host if usual else f"{self.host}:{self.port}"


def parse_url(text: str, limits: MediaLimits) -> MediaUrl:
    """Take a URL apart and hold it against the policy.

    Raises:
        MediaError: It is not taken; the message says why.
    """
    if not limits.allowed_media_domains:
        raise MediaError(
            "this server fetches no URLs; send the bytes as a data URL, or have the operator set "
            "media_limits.allowed_media_domains"
        )
    if len(text) > MAX_URL_LENGTH:
        raise MediaError(f"the URL has {len(text):,} characters; at most {MAX_URL_LENGTH:,}")
    found = _URL.fullmatch(text) if _CLEAN.fullmatch(text) else None
    if found is None:
        raise MediaError(
            "the URL is not one of the plain form https://host[:port]/path[?query], in ASCII, "
            "without user name, backslash or spaces"
        )
    scheme, host = found["scheme"].lower(), found["host"].lower()
    # All listed ones are plain names: an address, in whatever form, is none of them.
    if host not in limits.allowed_media_domains:
        raise MediaError(
            f"host {host!r} is not one that this server fetches from; send the bytes as a data URL"
        )
    port = _PORTS[scheme] if found["port"] is None else int(found["port"])
    if port not in limits.allowed_media_ports:
        raise MediaError(f"port {port} is not one that this server fetches from")
    return MediaUrl(scheme, host, port, (found["path"] or "/") + (found["query"] or ""))


def redirected(url: MediaUrl, location: str, limits: MediaLimits) -> MediaUrl:
    """Where a redirect leads, held against the same policy.

    Raises:
        MediaError: It is not followed.
    """
    nowhere = MediaError("a redirect of the URL leads nowhere that is taken")
    if not location or not _CLEAN.fullmatch(location):
        raise nowhere
    try:
        absolute = urljoin(str(url), location)
    except ValueError:  # brackets that do not match
        raise nowhere from None
    target = parse_url(absolute, limits)
    if (url.scheme, target.scheme) == ("https", "http"):
        raise MediaError("a redirect of the URL leads from https to http; that is not followed")
    return target


def is_public(address: str) -> bool:
    """Whether an IP address is one of the public Internet.

    Not so are, among others, loopback, private, link-local and carrier-grade NAT addresses,
    multicast, and every IPv6 address that carries an IPv4 one.

    Args:
        address: As a number, such as ``"93.184.216.34"``.
    """
    try:
        ip: IPv4Address | IPv6Address = ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, IPv6Address) and (
        ip not in _GLOBAL_V6 or any(ip in network for network in _TUNNELS_V6)
    ):
        return False
    return ip.is_global and not (ip.is_multicast or ip.is_reserved)
