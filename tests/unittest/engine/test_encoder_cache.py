# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The cache of encoder outputs: what an entry owns, what goes first, what is forgotten."""

from __future__ import annotations

import random
import threading
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import nn

from tensorrt_llm_ext.engine.encoder_cache import EncoderCache, Key, Sketch
from tensorrt_llm_ext.towers.output import ItemOutput

CPU = torch.device("cpu")
ONE = 40  # bytes of output(n)


class Towers(dict[str, nn.Sequential]):
    def __init__(self) -> None:
        super().__init__({name: nn.Sequential(nn.Linear(2, 2)) for name in ("image", "audio")})


@pytest.fixture
def towers() -> Towers:
    return Towers()


@pytest.fixture
def cache(towers: Towers) -> EncoderCache:
    """Room for two and a half of the outputs."""
    return EncoderCache(ONE * 5 // 2, towers, CPU)


def key(n: int, tower: str = "image", generation: int = 0) -> Key:
    return Key(Sketch(tower, generation, "recipe", (1,), bytes([n])), b"digest")


def output(n: float, rows: int = 2) -> ItemOutput:
    """Two tensors, one of them in a list: 20 bytes a row."""
    features = torch.full((rows, 3), float(n))
    return ItemOutput(features=features, deepstack=[torch.full((rows, 4), n + 0.5).half()])


def assert_is(found: ItemOutput | None, n: float, rows: int = 2) -> None:
    assert found is not None
    expected = output(n, rows)
    assert type(found) is ItemOutput
    assert found.keys() == expected.keys()
    pairs = [(found.features, expected.features), (found.deepstack[0], expected.deepstack[0])]
    for ours, theirs in pairs:
        assert torch.equal(ours, theirs)
        assert (ours.dtype, ours.device) == (theirs.dtype, theirs.device)


def held(cache: EncoderCache) -> tuple[int, int]:
    stats = cache.stats()
    return stats.entries, stats.bytes


def test_entries_are_copies_both_ways(cache: EncoderCache) -> None:
    given = output(1)
    cache.put({key(1): given})
    for tensor in (given.features, *given.deepstack):
        tensor.zero_()
    first = cache.find(key(1))
    assert_is(first, 1)
    for tensor in (first.features, *first.deepstack):
        tensor.fill_(9)
    first.deepstack.clear()
    assert_is(cache.find(key(1)), 1)


def test_tensors_that_are_not_contiguous(cache: EncoderCache) -> None:
    wide = torch.arange(24.0).reshape(3, 8)
    cache.put({key(1): ItemOutput(features=wide[:, 1:3], turned=wide.T[4:6])})
    found = cache.find(key(1))
    assert torch.equal(found.features, wide[:, 1:3])
    assert torch.equal(found.turned, wide.T[4:6])
    assert held(cache) == (1, 48)


def test_least_recently_used_go_first_by_bytes(cache: EncoderCache) -> None:
    cache.put({key(1): output(1), key(2): output(2)})
    assert held(cache) == (2, 2 * ONE)  # deepstack counts
    assert_is(cache.find(key(1)), 1)
    cache.put({key(3): output(3)})  # 2 has to go, 1 was used since
    assert cache.find(key(2)) is None
    assert_is(cache.find(key(1)), 1)
    assert_is(cache.find(key(3)), 3)
    assert cache.stats().evictions == 1
    cache.put({key(4): output(4, rows=5)})  # all of it: both go
    assert held(cache) == (1, 100)
    assert_is(cache.find(key(4)), 4, rows=5)
    stats = cache.stats()
    assert (stats.evictions, stats.max_bytes) == (3, 100)


def test_an_output_larger_than_the_cache_evicts_nothing(cache: EncoderCache) -> None:
    cache.put({key(1): output(1), key(2): output(2, rows=6), key(3): output(3)})
    assert cache.find(key(2)) is None
    assert not cache.may_hold(key(2).sketch)
    assert_is(cache.find(key(1)), 1)
    assert_is(cache.find(key(3)), 3)
    assert cache.stats().evictions == 0


def test_the_first_of_two_puts_stays(cache: EncoderCache) -> None:
    """Two threads may encode the same picture at once."""
    cache.put({key(1): output(1)})
    cache.put({key(1): output(2)})
    assert_is(cache.find(key(1)), 1)
    assert held(cache) == (1, ONE)


def test_sketches_are_known_as_long_as_their_entries(cache: EncoderCache) -> None:
    other = Key(key(1).sketch, b"another digest")
    assert not cache.may_hold(key(1).sketch)
    cache.put({key(1): output(1), other: output(2)})
    assert_is(cache.find(other), 2)
    cache.put({key(3): output(3)})
    assert cache.find(key(1)) is None
    assert cache.may_hold(key(1).sketch)  # of the other
    cache.put({key(4): output(4)})
    assert not cache.may_hold(key(1).sketch)
    cache.drop()
    assert not cache.may_hold(key(4).sketch)
    assert not cache._sketches


def test_gaps_between_entries_are_used() -> None:
    """As long as the bytes suffice nothing is evicted, however small the gaps are."""
    cache, model = EncoderCache(1000, Towers(), CPU), OrderedDict[int, int]()
    choose = random.Random(0)
    for n in range(200):
        rows = model[n] = choose.randint(1, 15)
        cache.put({key(n): output(n, rows)})
        while 20 * sum(model.values()) > 1000:
            model.popitem(last=False)
        assert held(cache) == (len(model), 20 * sum(model.values()))
        assert sum(end - start for start, end in cache._arena._gaps) == 1000 - held(cache)[1]
        used = choose.choice(list(model))  # so that entries go in another order than they came
        model.move_to_end(used)
        assert_is(cache.find(key(used)), used, model[used])
    for n, rows in model.items():
        assert_is(cache.find(key(n)), n, rows)
    cache.drop()
    assert cache._arena._gaps == [(0, 1000)]


@pytest.mark.parametrize("change", ["in place", "rebound", "module"])
def test_changed_weights_forget_what_they_made(
    cache: EncoderCache, towers: Towers, change: str
) -> None:
    cache.put({key(1): output(1), key(2, "audio"): output(2)})
    assert (cache.generation("image"), cache.generation("audio")) == (0, 0)
    tower: Any = towers["image"]
    if change == "in place":
        with torch.no_grad():
            tower[0].weight.mul_(2)
    elif change == "rebound":
        tower[0].weight.data = tower[0].weight.data * 2
    else:
        tower[0] = nn.Sequential(tower[0], nn.Linear(2, 2))  # an adapter, say
    assert (cache.generation("image"), cache.generation("audio")) == (1, 0)
    assert held(cache) == (1, ONE)
    assert_is(cache.find(key(2, "audio")), 2)
    cache.put({key(1): output(1)})  # made before the change, finished after it
    assert cache.find(key(1)) is None
    cache.put({key(1, generation=1): output(3)})
    assert_is(cache.find(key(1, generation=1)), 3)
    stats = cache.stats()
    assert (stats.dropped, stats.evictions, stats.entries) == (1, 0, 2)


def test_weights_that_change_while_encoding_store_nothing(
    cache: EncoderCache, towers: Towers
) -> None:
    generation = cache.generation("image")
    with torch.no_grad():
        towers["image"][0].weight.add_(1)
    cache.put({key(1, generation=generation): output(1), key(2, "audio"): output(2)})
    assert cache.find(key(1)) is None
    assert_is(cache.find(key(2, "audio")), 2)


def test_closed_cache_keeps_nothing_and_its_memory_is_gone(cache: EncoderCache) -> None:
    cache.put({key(1): output(1)})
    block = cache._arena._bytes
    cache.close()
    assert cache._arena._bytes is not block
    assert cache._arena._bytes.numel() == 0
    assert cache.find(key(1)) is None
    cache.put({key(1): output(1)})
    assert cache.find(key(1)) is None
    assert held(cache) == (0, 0)
    cache.close()


def test_inference_mode_of_a_caller_does_not_stick(towers: Towers) -> None:
    with torch.inference_mode():
        cache = EncoderCache(100, towers, CPU)
        cache.put({key(1): output(1)})
    found = cache.find(key(1))
    cache.put({key(2): output(2), key(3): output(3)})
    assert_is(found, 1)
    found.features.requires_grad_()  # an inference tensor would refuse
    with torch.inference_mode():
        again = cache.find(key(3))
    again.features.requires_grad_()


def test_threads(towers: Towers) -> None:
    cache = EncoderCache(10 * ONE, towers, CPU)
    wrong: list[Any] = []

    def work(seed: int) -> None:
        choose = random.Random(seed)
        for _ in range(300):
            n = choose.randrange(30)
            found = cache.find(key(n))
            if found is None:
                cache.put({key(n): output(n)})
                cache.count(misses=1)
            else:
                cache.count(hits=1)
                if not torch.equal(found.features, output(n).features):
                    wrong.append((n, found))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stats = cache.stats()
    assert wrong == []
    assert stats.hits + stats.misses == 4 * 300
    assert (stats.entries, stats.bytes) == (10, 10 * ONE)
