# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The start-up report as one HTML page that needs nothing else.

For the person who decides on settings: what the graphs gain, what they cost, what to set.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from html import escape

from .buckets import Bucket, Load
from .report import BucketReport, KvCacheReport, StartupReport, TowerReport
from .report_style import STYLE
from .svg_charts import (
    Point,
    Series,
    legend,
    line_chart,
    linear_axis,
    log_axis,
    octave_axis,
    share_bar,
)

_SETTINGS = (
    ("Less memory for graphs", "max_graph_memory: 256MiB", "keeps the buckets that fit"),
    ("Fewer or smaller buckets", "max_num_tokens: 4096", "larger pictures then run eagerly"),
    ("More pictures in one replay", "max_batch_size: 16", "segments, not requests"),
    ("Exactly these shapes", "buckets: [[1024, 4], [4096, 8]]", "instead of max_batch_size"),
    (
        "No padding",
        "enable_padding: false",
        "only exact token counts replay, the rest runs eagerly",
    ),
    ("Keep slow buckets too", "prune_slower_than_eager: false", "for steady host time"),
    ("No graphs", "remove the modality's entry", "reserves nothing"),
)


def page(report: StartupReport) -> str:
    """Renders a report.

    Args:
        report: What happened at start-up.

    Returns:
        A whole HTML document. It loads nothing and runs no script; texts are escaped.
    """
    parts = [_head(report), *(f'<p class="notice">{escape(n)}</p>' for n in report.notices)]
    for number, tower in enumerate(report.towers):
        parts.append(_tower(tower, f"tower{number}"))
    if report.kv_cache is not None:
        parts.append(_memory(report, report.kv_cache))
    parts += [_phases(report), _settings(report)]
    title = f"Start-up report: {escape(report.model)}"
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{title}</title><style>{STYLE}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


# ---- head ------------------------------------------------------------------------------------


def verdict(report: StartupReport) -> str:
    """What happened, in a sentence or two."""
    captured = [tower for tower in report.towers if tower.status == "captured"]
    failed = [tower for tower in report.towers if tower.status == "eager"]
    if not captured and not failed:
        return "Encoder graphs are off: every encoder runs eagerly and reserves nothing."
    said = []
    for tower in captured:
        kept = sum(b.kept for b in tower.buckets)
        text = f"The {tower.modality} encoder replays {kept} of {len(tower.buckets)} buckets"
        gains = _gains(tower)
        if not tower.accelerated:
            text += f" on {_words(tower.backend)}, which accelerate nothing"
        elif gains:
            text += f", {_span(gains)} as fast as eager"
        said.append(f"{text}.")
    said += [f"The {tower.modality} encoder runs eagerly: {tower.reason}." for tower in failed]
    return " ".join(said)


def _head(report: StartupReport) -> str:
    facts = [("Model", report.model), ("Device", report.device), ("Type", report.dtype)]
    meta = "".join(f"<span>{name} <b>{escape(value)}</b></span>" for name, value in facts)
    tiles = [
        (_size(sum(t.graph_memory_bytes for t in report.towers)), "memory of all encoder graphs"),
        (_seconds(sum(t.capture_seconds for t in report.towers)), "to capture and time them"),
    ]
    gains = [gain for tower in report.towers if tower.accelerated for gain in _gains(tower)]
    if gains:
        tiles.append((f"{statistics.median(gains):.2f}x", "as fast as eager, median full bucket"))
    kv = report.kv_cache
    if kv is not None:
        tiles.append((f"{kv.tokens:,}", "KV tokens" + (", as configured" * kv.explicit)))
        if not kv.explicit:
            lost = kv.tokens_without_graphs - kv.tokens
            share = lost / max(kv.tokens_without_graphs, 1)
            tiles.append((f"{lost:,}", f"KV tokens given up for graphs ({share:.1%})"))
    shown = "".join(f'<li class="tile"><b>{a}</b><span>{b}</span></li>' for a, b in tiles)
    return (
        f'<header><h1>Start-up report</h1><p class="verdict">{escape(verdict(report))}</p>'
        f'<p class="meta">{meta}</p><ul class="tiles">{shown}</ul></header>'
    )


# ---- one encoder -----------------------------------------------------------------------------


def _tower(tower: TowerReport, name: str) -> str:
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
            f"{_seconds(tower.capture_seconds)} by <code>{escape(tower.backend)}</code> with "
            f"<code>{escape(tower.attention)}</code> attention, "
            f"{_size(tower.graph_memory_bytes)}. A bucket is a fixed shape; a request replays in "
            "the cheapest one that holds it. Tokens are rows (patches) before the merger.</p>"
        )
    if tower.status == "captured" and not tower.accelerated:
        lines.append(
            f'<p class="notice">The {escape(tower.backend)} backend ran: requests follow the rules '
            "of CUDA graphs, on static buffers, but nothing was accelerated. Its times decide "
            "nothing.</p>"
        )
    charts = [*_time_charts(tower, name), *_waste_chart(tower, kept, name)]
    if charts:
        lines.append(f'<div class="charts">{"".join(charts)}</div>')
    lines.append(_bucket_table(tower, name))
    return "".join([*lines, "</section>"])


def _time_charts(tower: TowerReport, name: str) -> Iterable[str]:
    """Replay against eager; few long segments and many short ones are shapes of their own."""
    timed = [b for b in tower.buckets if b.replay_ms is not None and b.eager_ms is not None]
    long = [b for b in timed if not _is_short(b, tower)]
    short = [b for b in timed if _is_short(b, tower)]
    kinds = [("", long)] if not short else [("Few segments, any length", long),
                                            ("Many short segments", short)]  # fmt: skip
    for number, (kind, buckets) in enumerate(kinds):
        if not buckets:
            continue
        series = [_times(buckets, "eager"), _times(buckets, "replay")]
        values = [p.y for one in series for p in one.points]
        most = max(b.max_segments for b in buckets)
        title = "Time per bucket" + (f": {kind.lower()}" if kind else "")
        chart = line_chart(
            series,
            octave_axis("tokens of the bucket", *_extent(buckets), _tokens),
            log_axis("milliseconds", values, _number),
            name=f"{name}-time{number}",
            title=title,
            description=f"Median replay and eager time of {len(buckets)} full buckets; the table "
            "of buckets has the numbers.",
        )
        caption = f"A full bucket, up to {most} segments. Lower is better; both scales are ratios."
        if any(not b.kept for b in buckets):
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
    twins = [o for o in tower.buckets if o.num_tokens == b.num_tokens]
    return len(twins) > 1 and _longest(b) < max(map(_longest, twins))


def _longest(b: BucketReport) -> int:
    return b.num_tokens if b.max_segment_len is None else b.max_segment_len


def padding_spans(
    buckets: Sequence[BucketReport], *, measured: bool
) -> list[tuple[int, int, BucketReport]]:
    """Which bucket a request that comes alone replays in.

    Args:
        buckets: Those that can be replayed.
        measured: Their times say which is cheaper; else the smaller one is.

    Returns:
        (smallest request, largest request, bucket): ranges of tokens, ascending and without gaps
        up to the largest bucket.
    """

    def cost(b: BucketReport) -> float:
        return b.replay_ms if measured and b.replay_ms is not None else b.num_tokens

    longest = max(map(_longest, buckets), default=1)
    ends = {b.num_tokens for b in buckets} | {min(_longest(b), b.num_tokens) for b in buckets}
    spans: list[tuple[int, int, BucketReport]] = []
    for end in sorted(ends):
        # A request longer than any segment may be (audio) is cut into the longest there are.
        load = Load(end, -(-end // longest), min(end, longest))
        fitting = [b for b in buckets if _shape(b).rejects(load) is None]
        if fitting:
            start = spans[-1][1] + 1 if spans else 1
            spans.append((start, end, min(fitting, key=cost)))
    return spans


def _waste_chart(tower: TowerReport, kept: Sequence[BucketReport], name: str) -> Iterable[str]:
    spans = padding_spans(kept, measured=tower.accelerated)
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
    worst = max((b.num_tokens - f) / b.num_tokens for f, _, b in spans[len(spans) // 2 :])
    caption = (
        f"Share of a replay that is padding, for one request alone. All sizes from 1 to {top:,}: "
        f"{slack / 2 / rows:.1%} of the rows computed; at most {worst:.0%} from "
        f"{spans[len(spans) // 2][0]:,} tokens on. Requests packed together share it. Above "
        f"{top:,} tokens a segment runs eagerly."
    )
    chart = line_chart(
        [Series("padding", "waste", points, markers=False)],
        octave_axis("tokens of the request", low, top, _tokens),
        linear_axis("padding, % of the replay", max(p.y for p in points), _number),
        name=f"{name}-waste",
        title="Padding by request size",
        description=caption,
    )
    yield _figure("Padding by request size", caption, chart)


def _sampled(first: int, last: int) -> list[int]:
    """A range of sizes as a curve: the ends, and what lies between on a scale of ratios."""
    if first > last:
        return []
    steps = {round(first * (last / first) ** (i / 8)) for i in range(9)}
    return sorted(steps | {first, last})


def _bucket_table(tower: TowerReport, name: str) -> str:
    sizes = any(b.memory_bytes is not None for b in tower.buckets)
    heads = ["tokens", "segments", "longest segment", "capture ms", "replay ms", "eager ms", "gain"]
    head = "".join(f'<th scope="col">{h}</th>' for h in [*heads, *["memory"] * sizes])
    rows = []
    for b in tower.buckets:
        cells = [
            f"{b.max_segments:,}",
            "any" if b.max_segment_len is None else f"{b.max_segment_len:,}",
            *(_ms(ms) for ms in (b.capture_ms, b.replay_ms, b.eager_ms)),
            f"{b.eager_ms / b.replay_ms:.2f}x" if b.eager_ms and b.replay_ms else "-",
        ]
        if sizes:
            cells.append("-" if b.memory_bytes is None else _size(b.memory_bytes))
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
        "<caption>Every planned shape, ascending. Gain is eager divided by replay.</caption>"
        f'<thead><tr>{head}<th scope="col" class="text">state</th>'
        f'<th scope="col" class="text">reason</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div></div>"
    )


# ---- the whole engine ------------------------------------------------------------------------


def _memory(report: StartupReport, kv: KvCacheReport) -> str:
    graphs = sum(tower.graph_memory_bytes for tower in report.towers)
    cache = kv.tokens * kv.bytes_per_token
    left = max(kv.free_bytes - cache - kv.reserved_bytes, 0)
    parts = [
        ("graphs", "encoder graphs", graphs),
        ("kv", "KV cache", cache),
        ("kept", "kept for eager encoder runs", kv.reserved_bytes),
        ("left", "left free", left),
    ]
    total = sum(size for *_, size in parts) or 1
    bar = share_bar(
        [(style, size, f"{label}: {_size(size)}") for style, label, size in parts],
        name="memory",
        title="What the memory that was free before capture is for",
    )
    rows = "".join(
        f'<tr><th scope="row" class="text"><span class="swatch {style}"></span>{label}</th>'
        f"<td>{_size(size)}</td><td>{size / total:.1%}</td></tr>"
        for style, label, size in parts
    )
    memory = (
        f'<div class="card"><h3>Where the memory goes</h3>{bar}<table><caption>What was free '
        f'before capture, {_size(total)}.</caption><thead><tr><th scope="col" class="text">use'
        '</th><th scope="col">size</th><th scope="col">share</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )
    most = max(kv.tokens, kv.tokens_without_graphs, 1)
    lines = [("kv", "with graphs", kv.tokens), ("without", "without", kv.tokens_without_graphs)]
    bars = _bar_rows([(style, label, n, f"{n:,}") for style, label, n in lines], most, "kv")
    how = "The size was configured" if kv.explicit else "Sized from the memory left after capture"
    tokens = (
        f'<div class="card"><h3>KV cache, with and without graphs</h3><table><caption>{how}; '
        f"{kv.bytes_per_token:,} bytes a token.</caption><thead><tr>"
        '<th scope="col" class="text">encoder graphs</th><th scope="col" class="text">'
        f'</th><th scope="col">tokens</th></tr></thead><tbody>{bars}</tbody></table></div>'
    )
    return f'<section><h2>Memory</h2><div class="charts">{memory}{tokens}</div></section>'


def _phases(report: StartupReport) -> str:
    if not report.phase_seconds:
        return ""
    most = max(report.phase_seconds.values())
    rows = _bar_rows(
        [("phase0", name, s, _seconds(s)) for name, s in report.phase_seconds.items()],
        most,
        "phase",
    )
    total = _seconds(sum(report.phase_seconds.values()))
    return (
        f'<section><h2>Start-up, {total}</h2><div class="card"><table><caption>In the order they '
        'ran.</caption><thead><tr><th scope="col" class="text">phase</th><th scope="col" '
        f'class="text"></th><th scope="col">time</th></tr></thead><tbody>{rows}</tbody></table>'
        "</div></section>"
    )


def _bar_rows(rows: Sequence[tuple[str, str, float, str]], most: float, name: str) -> str:
    lines = []
    for number, (style, label, value, shown) in enumerate(rows):
        parts = [(style, value, f"{label}: {shown}"), ("none", max(most - value, 0.0), label)]
        bar = share_bar(parts, name=f"{name}{number}", title=f"{label}: {shown}")
        lines.append(
            f'<tr><th scope="row" class="text">{escape(label)}</th>'
            f'<td class="barcell">{bar}</td><td>{escape(shown)}</td></tr>'
        )
    return "".join(lines)


def _settings(report: StartupReport) -> str:
    if not report.towers:
        return ""
    rows = "".join(
        f'<tr><th scope="row" class="text">{want}</th><td class="text"><code>{key}</code></td>'
        f'<td class="text">{note}</td></tr>'
        for want, key, note in _SETTINGS
    )
    return (
        '<section><h2>To change something</h2><div class="card"><table><caption>Under '
        "<code>multimodal_config.encoder_cuda_graph.&lt;modality&gt;</code>; values are "
        'examples.</caption><thead><tr><th scope="col" class="text">you want</th>'
        '<th scope="col" class="text">setting</th><th scope="col" class="text">note</th></tr>'
        f"</thead><tbody>{rows}</tbody></table></div></section>"
    )


# ---- words and numbers -----------------------------------------------------------------------


def _figure(title: str, caption: str, content: str) -> str:
    return (
        f'<figure class="card"><h3>{escape(title)}</h3><figcaption>{escape(caption)}</figcaption>'
        f"{content}</figure>"
    )


def _gains(tower: TowerReport) -> list[float]:
    return [
        b.eager_ms / b.replay_ms for b in tower.buckets if b.kept and b.eager_ms and b.replay_ms
    ]


def _span(gains: Sequence[float]) -> str:
    low, high = f"{min(gains):.2g}", f"{max(gains):.2g}"
    return f"{low} times" if low == high else f"{low} to {high} times"


def _shape(b: BucketReport) -> Bucket:
    return Bucket(b.num_tokens, b.max_segments, b.max_segment_len)


def _label(b: BucketReport) -> str:
    return _shape(b).label


def _extent(buckets: Sequence[BucketReport]) -> tuple[int, int]:
    return min(b.num_tokens for b in buckets), max(b.num_tokens for b in buckets)


def _tokens(value: float) -> str:
    return f"{value:,.0f}"


def _number(value: float) -> str:
    return f"{value:g}"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.1f} MiB" if num_bytes < 2**30 else f"{num_bytes / 2**30:,.2f} GiB"
