# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Case 37: which URLs are taken, and which addresses count as public."""

from __future__ import annotations

from typing import Any

import pytest

from tensorrt_llm_ext.media import MediaDoor, MediaError, MediaLimits, MediaPart
from tensorrt_llm_ext.media.urls import is_public, parse_url, redirected

HOST = "media.example.com"
LIMITS = MediaLimits(allowed_media_domains=[HOST, "xn--bcher-kva.example", "localhost"])


def test_case_37_remote_media_are_off_by_default() -> None:
    part = MediaPart("image", f"https://{HOST}/a.png")
    with pytest.raises(MediaError, match=r"fetches no URLs.*allowed_media_domains"):
        MediaDoor(MediaLimits()).check([part])
    MediaDoor(LIMITS).check([part])


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (f"https://{HOST}/a/b.png?x=1&y=%20#top", ("https", HOST, 443, "/a/b.png?x=1&y=%20")),
        ("HTTP://MEDIA.Example.COM", ("http", HOST, 80, "/")),
        (f"https://{HOST}:80?q", ("https", HOST, 80, "/?q")),
        (f"https://{HOST}/a@b:c//d", ("https", HOST, 443, "/a@b:c//d")),
        ("https://xn--bcher-kva.example/", ("https", "xn--bcher-kva.example", 443, "/")),
    ],
)
def test_case_37_parts_of_plain_urls(text: str, parts: tuple[Any, ...]) -> None:
    url = parse_url(text, LIMITS)
    assert (url.scheme, url.host, url.port, url.target) == parts


ODD_URLS = [
    *("file:///etc/passwd", "ftp://media.example.com/a", "gopher://media.example.com/", "//host/a"),
    *(f"https://user@{HOST}/", f"https://user:pw@{HOST}/", f"https://evil.com\\@{HOST}/"),
    *(f"https://{HOST}\\.evil.com/", f"https://evil.com#@{HOST}/", f"https://evil.com/?@{HOST}"),
    *("https://127.0.0.1/", "https://127.1/", "https://0x7f000001/", "https://2130706433/"),
    *("https://0177.0.0.1/", "https://127.0.0.0x1/"),
    *("https://[::1]/", "https://[::ffff:127.0.0.1]/"),
    *(f"https://{HOST}./", "https://localhost./", "https://.media.example.com/", "https:///a"),
    *(f"https://{HOST}.evil.com/", f"https://evil.com/{HOST}"),
    *("https://evil.com/", f"https://{HOST}:22/"),
    *(f"https://{HOST}:/", f"https://{HOST}:99999/", f"https://{HOST}:4٤3/"),
    *(f"https:/{HOST}/", f"https:{HOST}"),
    *(f" https://{HOST}/", f"https://{HOST}/ ", f"https://{HOST}/\n"),
    *(f"https://{HOST}\t/", f"https://{HOST}/\0"),
    *(f"https://{HOST}/é", "https://bücher.example/"),
    *("https://medi\u0430.example.com/", f"https://{HOST}%2eevil/"),
    *("http+unix://%2fvar%2frun/", "https://" + "a" * 9000, f"https://{HOST}/" + "a" * 9000),
    *("http://\u017f.example.com/", "https://\u212a.example.com/"),
    *("jar:https://media.example.com!/", "https://"),
    *("https://169.254.169.254/latest/meta-data", "https://metadata.google.internal/", "http:"),
    *("x", ""),
]  # fmt: skip


@pytest.mark.parametrize("text", ODD_URLS, ids=lambda t: ascii(t)[:50])
def test_case_37_odd_urls_are_refused(text: str) -> None:
    with pytest.raises(MediaError) as caught:
        MediaDoor(LIMITS).check([MediaPart("image", text)])
    assert caught.value.status == 400
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize(
    ("location", "target"),
    [
        ("/b", f"https://{HOST}:443/b"),
        ("b?c", f"https://{HOST}:443/a/b?c"),
        (f"//{HOST}/b", f"https://{HOST}:443/b"),
        (f"https://{HOST}:80/b", f"https://{HOST}:80/b"),
    ],
)
def test_case_37_redirects_inside_the_policy(location: str, target: str) -> None:
    assert str(redirected(parse_url(f"https://{HOST}/a/x", LIMITS), location, LIMITS)) == target


@pytest.mark.parametrize(
    "location",
    [
        *("", "https://evil.com/", "//evil.com/", "http://127.0.0.1/", "file:///etc/passwd"),
        *(f"http://{HOST}/", f"https://{HOST}:22/", f"https://a@{HOST}/", "/a b", "/\\evil.com"),
        *("\t//evil.com", "/b\tc", "data:image/png;base64,AAAA", "https://[::1"),
    ],
)
def test_case_37_redirects_out_of_the_policy(location: str) -> None:
    with pytest.raises(MediaError):
        redirected(parse_url(f"https://{HOST}/a", LIMITS), location, LIMITS)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.255.255.254", "0.0.0.0", "0.1.2.3"),
        *("10.0.0.1", "172.16.0.1", "172.31.9.9"),
        *("192.168.1.1", "169.254.169.254", "100.64.0.1"),
        *("100.127.255.255", "192.0.0.1", "192.0.2.1"),
        *("198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1"),
        *("224.0.1.1", "239.1.1.1", "240.0.0.1"),
        *("255.255.255.255", "::", "::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::8.8.8.8"),
        *("64:ff9b::7f00:1", "64:ff9b:1::1", "fe80::1", "fe80::1%eth0"),
        *("fec0::1", "fc00::1", "fd12::1"),
        *("ff02::1", "ff0e::1", "2001:db8::1", "2002:7f00:1::", "2001:0:1::1", "100::1"),
        *("1", "127.1", "0x7f000001", "host", ""),
    ],
)  # fmt: skip
def test_case_37_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address", ["93.184.216.34", "8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "2a00:1450:4001::8a"]
)
def test_case_37_public(address: str) -> None:
    assert is_public(address)
