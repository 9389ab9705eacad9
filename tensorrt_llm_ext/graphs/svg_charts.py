# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Charts of the start-up page: SVG elements for an HTML page, coloured by its style sheet.

Every chart has a title and a description for those who cannot see it, and every point says its
values when the pointer rests on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

_WIDTH, _HEIGHT = 560, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 28, 12, 46
_PER_DECADE = (1, 2, 5)


class Point(NamedTuple):
    """A measured value.

    Attributes:
        x: Horizontal value.
        y: Vertical value.
        note: What the pointer is told.
        hollow: Drawn as an outline: measured, but not in use.
    """

    x: float
    y: float
    note: str
    hollow: bool = False


class Series(NamedTuple):
    """Points that belong together.

    Attributes:
        name: In the legend.
        style: Class of the style sheet: ``replay``, ``eager`` or ``waste``.
        points: In order of x.
        square: Markers are squares instead of circles, for eyes that see no difference in colour.
        line: Joined by a line.
        markers: Drawn one by one.
    """

    name: str
    style: str
    points: Sequence[Point]
    square: bool = False
    line: bool = True
    markers: bool = True


class Axis(NamedTuple):
    """A scale.

    Attributes:
        label: With the unit.
        low: Value at the start.
        high: Value at the end.
        ticks: Values with a grid line and a number.
        log: Equal ratios are equally far apart.
        show: Value -> text.
    """

    label: str
    low: float
    high: float
    ticks: Sequence[float]
    log: bool
    show: Callable[[float], str]

    def at(self, value: float, start: float, end: float) -> float:
        """Position of a value between two ends."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return start + (value - low) / (high - low) * (end - start)


def log_axis(label: str, values: Sequence[float], show: Callable[[float], str]) -> Axis:
    """A scale of ratios around positive values, ticks at 1, 2 and 5 times powers of ten."""
    low, high = min(values), max(values)
    steps = [
        digit * 10.0**power
        for power in range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
        for digit in _PER_DECADE
    ]
    first = max(s for s in steps if s <= low)
    last = min(s for s in steps if s >= high and s > first)
    return Axis(label, first, last, [s for s in steps if first <= s <= last], True, show)


def octave_axis(label: str, low: float, high: float, show: Callable[[float], str]) -> Axis:
    """A scale of ratios from one value to another, ticks at powers of two."""
    high = max(high, low * 2)
    powers = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
    every = 1 + len(powers) // 10  # no more than the numbers have room for
    ticks = [2.0**p for p in powers if (powers[-1] - p) % every == 0]
    return Axis(label, low, high, ticks, True, show)


def linear_axis(label: str, high: float, show: Callable[[float], str]) -> Axis:
    """A scale from zero to at least a value, about five ticks."""
    rough = high / 5 or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(d * power for d in (1, 2, 2.5, 5, 10) if d * power >= rough * 0.999)
    count = math.ceil(high / step - 1e-9) or 1
    return Axis(label, 0.0, count * step, [i * step for i in range(count + 1)], False, show)


def line_chart(
    series: Sequence[Series], x: Axis, y: Axis, *, name: str, title: str, description: str
) -> str:
    """Draws series over two scales.

    Args:
        series: What to draw, the last on top.
        x: Horizontal scale.
        y: Vertical scale.
        name: Prefix of the ids of this chart, unique on the page.
        title: Read aloud first.
        description: Read aloud next.

    Returns:
        An ``svg`` element, valid XML; texts are escaped.
    """
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-labelledby="{name}-title {name}-description">',
        f'<title id="{name}-title">{escape(title)}</title>',
        f'<desc id="{name}-description">{escape(description)}</desc>',
    ]
    for tick in y.ticks:
        at = y.at(tick, bottom, _TOP)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(_text(_LEFT - 8, at + 4, y.show(tick), "end"))
    for tick in x.ticks:
        at = x.at(tick, _LEFT, right)
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{bottom}"/>')
        parts.append(_text(at, bottom + 18, x.show(tick), "middle"))
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
    parts.append(_text((_LEFT + right) / 2, _HEIGHT - 8, x.label, "middle", "label"))
    middle = (_TOP + bottom) / 2
    parts.append(
        f'<text class="label" text-anchor="middle" transform="rotate(-90 14 {middle:.1f})" '
        f'x="14" y="{middle:.1f}">{escape(y.label)}</text>'
    )
    for one in series:
        placed = [
            (x.at(p.x, _LEFT, right), y.at(p.y, bottom, _TOP), p.note, p.hollow) for p in one.points
        ]
        if one.line and len(placed) > 1:
            path = " ".join(f"{px:.1f},{py:.1f}" for px, py, *_ in placed)
            parts.append(f'<polyline class="line {one.style}" points="{path}"/>')
        if one.markers:
            parts += [_marker(*at, style=one.style, square=one.square) for at in placed]
    return "".join([*parts, "</svg>"])


def _text(x: float, y: float, text: str, anchor: str, style: str = "tick") -> str:
    return (
        f'<text class="{style}" text-anchor="{anchor}" x="{x:.1f}" y="{y:.1f}">'
        f"{escape(text)}</text>"
    )


def _marker(x: float, y: float, note: str, hollow: bool, *, style: str, square: bool) -> str:
    kind = f'class="mark {style}{" hollow" if hollow else ""}"'
    told = f"<title>{escape(note)}</title>"
    if square:
        size = 6.4
        left, top = x - size / 2, y - size / 2
        shape = f'x="{left:.1f}" y="{top:.1f}" width="{size}" height="{size}"'
        return f"<rect {kind} {shape}>{told}</rect>"
    return f'<circle {kind} cx="{x:.1f}" cy="{y:.1f}" r="3.6">{told}</circle>'


def legend(series: Sequence[Series]) -> str:
    """Names of series with their markers, as an HTML list."""
    entries = []
    for one in series:
        # A line without markers is drawn as one.
        shape = (
            _marker(12, 6, one.name, False, style=one.style, square=one.square)
            if one.markers
            else f'<line class="line {one.style}" x1="2" x2="22" y1="6" y2="6"/>'
        )
        swatch = f'<svg viewBox="0 0 24 12" aria-hidden="true">{shape}</svg>'
        entries.append(f"<li>{swatch}{escape(one.name)}</li>")
    return f'<ul class="legend">{"".join(entries)}</ul>'


def share_bar(parts: Sequence[tuple[str, float, str]], *, name: str, title: str) -> str:
    """One bar cut into shares.

    Args:
        parts: (class of the style sheet, size, what the pointer is told); with class "" a share
            is left blank.
        name: Prefix of the ids, unique on the page.
        title: Read aloud.

    Returns:
        An ``svg`` element, valid XML; texts are escaped.
    """
    total = sum(size for _, size, _ in parts) or 1.0
    drawn = [
        f'<svg class="bar" viewBox="0 0 1000 24" preserveAspectRatio="none" role="img" '
        f'aria-labelledby="{name}-title"><title id="{name}-title">{escape(title)}</title>'
    ]
    start = 0.0
    for style, size, note in parts:
        width = size / total * 1000
        if style:
            drawn.append(
                f'<rect class="share {style}" x="{start:.2f}" y="0" width="{width:.2f}" '
                f'height="24"><title>{escape(note)}</title></rect>'
            )
        start += width
    return "".join([*drawn, "</svg>"])
