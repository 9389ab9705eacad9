# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""What is encoded: pictures as (t, h, w) patches, clips as mel frames."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from typing import NamedTuple

Grid = tuple[int, int, int]
Shapes = tuple[Grid, ...] | tuple[int, ...]

CHUNK = 100  # mel frames that the audio tower convolves at once
_SIDES = {64: 8, 256: 16, 1024: 32, 4096: 64}
_TINY = 4  # sides of pictures are divided by it


class Budget(NamedTuple):
    """What a tower is configured with: the largest bucket."""

    max_batch_size: int
    max_num_tokens: int


class Case(NamedTuple):
    """A batch.

    Attributes:
        name: Names it in results and on the command line.
        shapes: One per item.
        compiled: torch.compile runs it too: each costs a minute or more.
    """

    name: str
    shapes: Shapes
    compiled: bool = False


class SweepPoint(NamedTuple):
    """A batch of the sweep: tokens in segments as equal as can be."""

    tokens: int
    segments: int
    shapes: Shapes


def grids_of(shapes: Shapes) -> list[Grid]:
    """Pictures; nothing for clips."""
    return [shape for shape in shapes if not isinstance(shape, int)]


def frames_of(shapes: Shapes) -> list[int]:
    """Clips; nothing for pictures."""
    return [shape for shape in shapes if isinstance(shape, int)]


# ---- pictures --------------------------------------------------------------------------------


def vision_cases(temporal_patch: int, *, tiny: bool = False) -> list[Case]:
    """Batches of pictures; a name like 8x256 is pictures x patches of each.

    Args:
        temporal_patch: Frames that share a row of patches.
        tiny: Pictures of a 16th of the patches, under the same names.
    """
    compiled = {"1x256", "8x256", "1x1024"}
    cases = [
        Case(f"{count}x{patches}", ((1, _SIDES[patches], _SIDES[patches]),) * count)
        for count, patches in [
            *((1, patches) for patches in _SIDES),
            *((count, 256) for count in (8, 32, 64, 128)),
        ]
    ]
    mixed = tuple((1, 8 + 2 * i, 40 - 2 * i) for i in range(16))
    cases += [Case("mixed16", mixed), Case("video8", ((8 // temporal_patch, 24, 24),))]
    return [
        Case(name, _shrunk(shapes) if tiny else shapes, name in compiled)
        for name, shapes, _ in cases
    ]


def _shrunk(shapes: Shapes) -> Shapes:
    return tuple((t, _even(h // _TINY), _even(w // _TINY)) for t, h, w in grids_of(shapes))


def _even(side: int) -> int:
    return max(2, side // 2 * 2)


def vision_budget(*, tiny: bool = False) -> Budget:
    """The ladder that the memory targets are stated for."""
    return Budget(16, 256) if tiny else Budget(64, 16384)


def vision_sweep(*, tiny: bool = False) -> list[SweepPoint]:
    """40 points, on buckets and between them."""
    tokens = [256, 400, 640, 1000, 1600, 2500, 4096, 6400, 10000, 16384]
    if tiny:
        tokens = [64, 100]
    segments = (1, 4, 16, 64)
    return [
        SweepPoint(n, s, tuple(_grid(cells) for cells in _shares(n // 4, s)))
        for n in tokens
        for s in segments
        if n // 4 >= s
    ]


def _shares(total: int, parts: int) -> list[int]:
    """A total in parts that differ by one at most."""
    return [total // parts + (i < total % parts) for i in range(parts)]


def _grid(cells: int) -> Grid:
    """The squarest picture of a number of 2x2 cells."""
    side = next(n for n in range(math.isqrt(cells), 0, -1) if cells % n == 0)
    return (1, 2 * side, 2 * (cells // side))


def picture_batches(count: int, share: int, shares: int, *, tiny: bool = False) -> Iterator[Shapes]:
    """Batches of unequal pictures of at most 256 patches, no two batches alike for long.

    Args:
        count: Pictures of a batch, 1 or even.
        share: Which part of the sizes they are drawn from: parts have none in common.
        shares: Into how many parts the sizes are dealt.
        tiny: Smaller pictures, which do repeat.
    """
    sides = [(2 * i, 2 * j) for i in range(2, 33) for j in range(2, 64 // i + 1)]
    random.Random(0).shuffle(sides)
    dealt = sides[share::shares]
    dealt = dealt[: len(dealt) - (len(dealt) % 2 == 0)]  # odd: batches do not start over together
    sizes = itertools.cycle(dealt)
    while True:
        grids = tuple((1, h, w) for h, w in itertools.islice(sizes, count))
        yield _shrunk(grids) if tiny else grids


# ---- sound -----------------------------------------------------------------------------------


def audio_cases() -> list[Case]:
    """Batches of clips: seconds of sound, and lengths (frames) that end on a chunk or do not."""
    compiled = {"1s", "30s", "4x30s"}
    clips: dict[str, tuple[int, ...]] = {
        "1s": (100,),
        "30s": (3000,),
        "4x30s": (3000,) * 4,
        "6000": (6000,),
        "3001": (3001,),
        "6001": (6001,),
        "4x3001": (3001,) * 4,
    }
    return [Case(name, frames, name in compiled) for name, frames in clips.items()]


def audio_budget(chunk_tokens: int, *, tiny: bool = False) -> Budget:
    """Contexts are chunks."""
    chunks = 8 if tiny else 128
    return Budget(chunks, chunks * chunk_tokens)


def audio_sweep(chunk_tokens: int, window_chunks: int, *, tiny: bool = False) -> list[SweepPoint]:
    """40 points, the last chunk of every second one short."""
    totals = (4, 6, 10, 16, 24, 36, 52, 74, 100, 128)
    points = []
    for index, chunks in enumerate(totals[: 2 if tiny else None]):
        for clips in (1, 2, 3, 4):
            short = 37 * (index % 2)
            frames = tuple(n * CHUNK - short for n in _shares(chunks, clips))
            windows = sum(-(-n // window_chunks) for n in _shares(chunks, clips))
            points.append(SweepPoint(chunks * chunk_tokens, windows, frames))
    return points


def clip_batches(frames: tuple[int, ...], seed: int) -> Iterator[Shapes]:
    """Clips of as many chunks, with other lengths every time."""
    draw = random.Random(seed)
    while True:
        yield tuple(-(-n // CHUNK) * CHUNK - draw.randrange(CHUNK - 1) for n in frames)


def layout_names() -> list[str]:
    """Names of all cases, pictures first."""
    return [case.name for case in (*vision_cases(2), *audio_cases())]


STAGED: dict[str, tuple[int, ...]] = {
    "3000": (3000,),
    "6000": (6000,),
    "3001": (3001,),
    "6001": (6001,),
    "4x3001": (3001,) * 4,
}
"""Clips whose way into the arena is timed alone."""
