# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The bounded least-recently-used cache."""

from __future__ import annotations

import pytest

from tensorrt_llm_ext.graphs.cache import BoundedLRU


def test_hit_does_not_make_again():
    cache: BoundedLRU[str] = BoundedLRU(3, len)
    assert cache.get("k", lambda: "ab") == "ab"
    assert cache.get("k", lambda: pytest.fail("made twice")) == "ab"


def test_least_recently_used_goes_first():
    cache: BoundedLRU[str] = BoundedLRU(3, len)
    for key in "abc":
        cache.get(key, lambda key=key: key)
    cache.get("a", lambda: pytest.fail("still there"))
    cache.get("d", lambda: "d")  # "b" goes, not "a"
    assert (len(cache), cache.size) == (3, 3)
    cache.get("a", lambda: pytest.fail("used a moment ago"))
    assert cache.get("b", lambda: "again") == "again"


def test_newest_is_kept_whatever_its_size():
    cache: BoundedLRU[str] = BoundedLRU(3, len)
    cache.get("small", lambda: "s")
    cache.get("big", lambda: "x" * 10)
    assert (len(cache), cache.size) == (1, 10)
    cache.get("next", lambda: "n")
    assert (len(cache), cache.size) == (1, 1)


def test_find_counts_as_use_and_makes_nothing():
    cache: BoundedLRU[str] = BoundedLRU(2, len)
    cache.get("a", lambda: "a")
    cache.get("b", lambda: "b")
    assert cache.find("a") == "a"
    assert cache.find("c") is None
    cache.get("c", lambda: "c")
    assert (cache.find("a"), cache.find("b")) == ("a", None)


def test_room_is_made_by_evicting_only():
    gone: list[str] = []
    cache: BoundedLRU[str] = BoundedLRU(4, len, gone.append)
    for key in ("a", "bb", "c"):
        cache.get(key, lambda key=key: key)
    cache.make_room(0)
    assert gone == []
    cache.make_room(2)
    assert (gone, cache.size) == (["a", "bb"], 1)
    cache.get("dddd", lambda: "dddd")
    assert gone == ["a", "bb", "c"]
    cache.make_room(9)  # nothing is left to go
    assert (len(cache), cache.size) == (0, 0)


def test_removed_values_are_not_evicted():
    gone: list[str] = []
    cache: BoundedLRU[str] = BoundedLRU(9, len, gone.append)
    for key in ("a", "bb", "cc"):
        cache.get(key, lambda key=key: key)
    assert cache.remove(lambda value: len(value) == 2) == ["bb", "cc"]
    assert (len(cache), cache.size, gone) == (1, 1, [])


def test_failed_make_leaves_nothing_behind():
    cache: BoundedLRU[str] = BoundedLRU(3, len)
    with pytest.raises(ZeroDivisionError):
        cache.get("k", lambda: str(1 // 0))
    assert cache.get("k", lambda: "ok") == "ok"
    assert (len(cache), cache.size) == (1, 2)
