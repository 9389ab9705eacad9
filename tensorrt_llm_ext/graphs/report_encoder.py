# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The part of the start-up page about one encoder: what its buckets gain, and what is padding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from .buckets import Bucket, Load
from .costs import replay_times
from .report import BucketReport, TowerReport
from .report_text import show_bytes, show_ms, show_number, show_seconds, show_tokens
from .svg_charts import (
    Point,
    Series,
    legend,
    line_chart,
    linear_axis,
    log_axis,
    octave_axis,
)

_GOOD_ENOUGH = 1 / 8  # padding that the automatic ladder aims at


def encoder_section(tower: TowerReport, name: str) -> str:
    """Renders one encoder.

    Args:
        tower: Its report.
        name: Prefix of the ids of its elements, unique on the page.

    Returns:
        A ``section`` element; texts are escaped.
    """
    heading = f'<section><h2 id="{name}">Encoder: {escape(tower.modality)}</h2>'
    if tower.status == "off":
        return (
            f"{heading}<p>Graphs are off: {escape(tower.reason or 'not configured')}.</p></section>"
        )
    kept = [b for b in tower.buckets if b.kept]
    lines = [heading]
    if tower.status == "eager":
        lines.append(f'<p class="notice">Runs eagerly: {escape(tower.reason)}</p>')
    else:
        lines.append(
            f"<p>{len(kept)} of {len(tower.buckets)} buckets, captured in "
            f"{show_seconds(tower.capture_seconds)} by <code>{escape(tower.backend)}</code> with "
            f"<code>{escape(tower.attention)}</code> attention, "
            f"{show_bytes(tower.graph_memory_bytes)}.</p>"
        )
    if tower.status == "captured" and not tower.accelerated:
        lines.append(
            f'<p class="notice">The {escape(tower.backend)} backend ran: requests follow the rules '
            "of CUDA graphs, on static buffers, but nothing was accelerated. Its times decide "
            "nothing.</p>"
        )
    charts = [
        *_time_charts(tower, name),
        *_memory_chart(tower, name),
        *_waste_chart(tower, kept, name),
    ]
    if charts:
        lines.append(f'<div class="charts">{"".join(charts)}</div>')
    lines.append(_bucket_table(tower, name))
    return "".join([*lines, "</section>"])


def _time_charts(tower: TowerReport, name: str) -> Iterable[str]:
    """Replay against eager; few long segments and many short ones are shapes of their own."""
    timed = [b for b in tower.buckets if b.replay_ms is not None and b.eager_ms is not None]
    long = [b for b in timed if not _is_short(b, tower)]
    short = [b for b in timed if _is_short(b, tower)]
    for kind, buckets in (("few segments of any length", long), ("many short segments", short)):
        if not buckets:
            continue
        series = [_times(buckets, "eager"), _times(buckets, "replay")]
        values = [p.y for one in series for p in one.points]
        most = max(b.max_segments for b in buckets)
        title = f"Time per bucket: {kind}" if short else "Time per bucket"
        chart = line_chart(
            series,
            octave_axis("tokens of the bucket", *_extent(buckets), show_tokens),
            log_axis("milliseconds", values, show_number),
            name=f"{name}-{kind[:3]}",
            title=title,
            description=f"Median replay and eager time of {len(buckets)} full buckets; the table "
            "of buckets has the numbers.",
        )
        caption = f"A full bucket, up to {most} segments. Lower is better; both scales are ratios."
        if not all(b.kept for b in buckets):
            caption += " Outlined: dropped."
        yield _figure(title, caption, chart + legend(series[::-1]))


def _times(buckets: Sequence[BucketReport], which: str) -> Series:
    points = []
    for b in buckets:
        value = b.replay_ms if which == "replay" else b.eager_ms
        if value is not None:
            note = f"{_label(b)}: {which} {value:.3g} ms ({'kept' if b.kept else 'dropped'})"
            points.append(Point(b.num_tokens, max(value, 1e-3), note, hollow=not b.kept))
    return Series(which, which, points, square=which == "eager")


def _is_short(b: BucketReport, tower: TowerReport) -> bool:
    """The variant for many short segments, where a size has two."""
    twins = [o.bucket for o in tower.buckets if o.num_tokens == b.num_tokens]
    return b.bucket.longest_segment < max(twin.longest_segment for twin in twins)


def padding_spans(costs: Mapping[Bucket, float]) -> list[tuple[int, int, Bucket]]:
    """Which bucket a request that comes alone replays in.

    Args:
        costs: Of the buckets that can be replayed.

    Returns:
        (smallest request, largest request, bucket): ranges of tokens, ascending and without gaps
        up to the largest bucket.
    """
    longest = max((b.longest_segment for b in costs), default=1)
    ends = {size for b in costs for size in (b.num_tokens, b.longest_segment)}
    spans: list[tuple[int, int, Bucket]] = []
    for end in sorted(ends):
        # A request longer than any segment may be (audio) is cut into the longest there are.
        load = Load(end, -(-end // longest), min(end, longest))
        fitting = [b for b in costs if b.rejects(load) is None]
        if fitting:
            start = spans[-1][1] + 1 if spans else 1
            spans.append((start, end, min(fitting, key=costs.__getitem__)))
    return spans


def _waste_chart(tower: TowerReport, kept: Sequence[BucketReport], name: str) -> Iterable[str]:
    spans = padding_spans(replay_times(tower) or {b.bucket: b.num_tokens for b in kept})
    if not spans:
        return
    low = max(1, spans[0][2].num_tokens // 4)
    points = [
        Point(n, (b.num_tokens - n) / b.num_tokens * 100, "")
        for first, last, b in spans
        for n in _sampled(max(first, low), last)
    ]
    top = spans[-1][1]
    slack = sum((last - first + 1) * (2 * b.num_tokens - first - last) for first, last, b in spans)
    rows = sum((last - first + 1) * b.num_tokens for first, last, b in spans)
    caption = (
        "Share of a replay that is padding, for one request alone; requests packed together share "
        f"it. Over all sizes from 1 to {top:,} tokens {slack / 2 / rows:.1%} of the rows computed "
        f"are padding{_good_from(spans)}. A longer segment runs eagerly."
    )
    chart = line_chart(
        [Series("padding", "waste", points, markers=False)],
        octave_axis("tokens of the request", low, top, show_tokens),
        linear_axis("padding, % of the replay", max(p.y for p in points), show_number),
        name=f"{name}-waste",
        title="Padding by request size",
        description=caption,
    )
    yield _figure("Padding by request size", caption, chart)


def _good_from(spans: Sequence[tuple[int, int, Bucket]]) -> str:
    """From which size on the padding stays small, if it does."""
    start = None
    for first, _, b in reversed(spans):
        if (b.num_tokens - first) / b.num_tokens > _GOOD_ENOUGH:
            break
        start = first
    return "" if start is None else f", and at most {_GOOD_ENOUGH:.1%} from {start:,} tokens on"


def _sampled(first: int, last: int) -> list[int]:
    """A range of sizes as a curve: the ends, and what lies between on a scale of ratios."""
    if first > last:
        return []
    steps = {round(first * (last / first) ** (i / 8)) for i in range(9)}
    return sorted(steps | {first, last})


def _memory_chart(tower: TowerReport, name: str) -> Iterable[str]:
    points = [
        Point(b.num_tokens, b.memory_bytes / 2**20, f"{_label(b)}: {show_bytes(b.memory_bytes)}")
        for b in tower.buckets
        if b.memory_bytes is not None
    ]
    if not points:
        return
    title = "Memory per bucket"
    caption = "What each capture added, the largest bucket first: the others reuse its memory."
    chart = line_chart(
        [Series("added", "replay", points, line=False)],
        octave_axis("tokens of the bucket", *_extent(tower.buckets), show_tokens),
        linear_axis("MiB", max(p.y for p in points), show_number),
        name=f"{name}-memory",
        title=title,
        description=caption,
    )
    yield _figure(title, caption, chart)


def _bucket_table(tower: TowerReport, name: str) -> str:
    sizes = any(b.memory_bytes is not None for b in tower.buckets)
    heads = ["tokens", "segments", "longest segment", "capture ms", "replay ms", "eager ms", "gain"]
    head = "".join(f'<th scope="col">{h}</th>' for h in [*heads, *["memory"] * sizes])
    rows = []
    for b in tower.buckets:
        cells = [
            f"{b.max_segments:,}",
            "any" if b.max_segment_len is None else f"{b.max_segment_len:,}",
            *(show_ms(ms) for ms in (b.capture_ms, b.replay_ms, b.eager_ms)),
            f"{b.eager_ms / b.replay_ms:.2f}x"
            if tower.accelerated and b.eager_ms and b.replay_ms
            else "-",
        ]
        if sizes:
            cells.append("-" if b.memory_bytes is None else show_bytes(b.memory_bytes))
        state = "kept" if b.kept else "dropped"
        rows.append(
            f'<tr class="{state}"><th scope="row">{b.num_tokens:,}</th>'
            + "".join(f"<td>{cell}</td>" for cell in cells)
            + f'<td class="text state">{state}</td><td class="text">{escape(b.reason)}</td></tr>'
        )
    if not rows:
        return ""
    return (
        f'<div class="card"><h3 id="{name}-buckets">Buckets</h3>'
        f'<div class="scroll" tabindex="0" role="region" aria-labelledby="{name}-buckets"><table>'
        f"<caption>{len(rows)} planned, {_dropped(tower)}. Gain is eager divided by replay."
        "</caption>"
        f'<thead><tr>{head}<th scope="col" class="text">state</th>'
        f'<th scope="col" class="text">reason</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div></div>"
    )


def _dropped(tower: TowerReport) -> str:
    labels = [_label(b) for b in tower.buckets if not b.kept]
    return f"{len(labels)} dropped: {', '.join(labels)}" if labels else "none dropped"


def _figure(title: str, caption: str, content: str) -> str:
    return (
        f'<figure class="card"><h3>{escape(title)}</h3><figcaption>{escape(caption)}</figcaption>'
        f"{content}</figure>"
    )


def _label(b: BucketReport) -> str:
    return b.bucket.label


def _extent(buckets: Sequence[BucketReport]) -> tuple[int, int]:
    return min(b.num_tokens for b in buckets), max(b.num_tokens for b in buckets)
