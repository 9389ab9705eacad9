# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The start-up report as one HTML page that needs nothing else.

For the person who decides on settings: what the graphs gain, what they cost, what to set.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from html import escape

from .report import KvCacheReport, StartupReport, TowerReport
from .report_encoder import encoder_section
from .report_style import STYLE
from .report_text import show_bytes, show_seconds
from .svg_charts import share_bar

_WORDS = (
    "A segment is a run of tokens that attend only to each other: a picture, a pair of video "
    "frames, an audio window. Tokens are rows of the encoder's input (patches), before the merger "
    "makes them fewer. A bucket is a fixed shape, captured once; requests are packed into the "
    "cheapest buckets that hold them, and padded."
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
        parts.append(encoder_section(tower, f"encoder{number}"))
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
        (
            show_bytes(sum(t.graph_memory_bytes for t in report.towers)),
            "memory of all encoder graphs",
        ),
        (show_seconds(sum(t.capture_seconds for t in report.towers)), "to capture and time them"),
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
        f'<p class="meta">{meta}</p><ul class="tiles">{shown}</ul>'
        f'<p class="small words">{escape(_WORDS)}</p></header>'
    )


# ---- the whole engine ------------------------------------------------------------------------


def _memory(report: StartupReport, kv: KvCacheReport) -> str:
    graphs = sum(tower.graph_memory_bytes for tower in report.towers)
    cache = kv.tokens * kv.bytes_per_token
    outputs = report.encoder_cache_bytes
    left = max(kv.free_bytes - cache - kv.reserved_bytes - outputs, 0)
    parts = [
        ("graphs", "encoder graphs", graphs),
        ("kv", "KV cache", cache),
        ("kept", "kept for eager encoder runs", kv.reserved_bytes),
        ("outputs", "encoder output cache", outputs),
        ("left", "left free", left),
    ]
    total = sum(size for *_, size in parts) or 1
    bar = share_bar(
        [(style, size, f"{label}: {show_bytes(size)}") for style, label, size in parts],
        name="memory",
        title="What the memory that was free before capture is for",
    )
    rows = "".join(
        f'<tr><th scope="row" class="text"><span class="swatch {style}"></span>{label}</th>'
        f"<td>{show_bytes(size)}</td><td>{size / total:.1%}</td></tr>"
        for style, label, size in parts
    )
    memory = (
        f'<div class="card"><h3>Where the memory goes</h3>{bar}<table><caption>What was free '
        f'before capture, {show_bytes(total)}.</caption><thead><tr><th scope="col" class="text">use'
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
        [("phase0", name, s, show_seconds(s)) for name, s in report.phase_seconds.items()],
        most,
        "phase",
    )
    total = show_seconds(sum(report.phase_seconds.values()))
    return (
        f'<section><h2>Start-up, {total}</h2><div class="card"><table><caption>In the order they '
        'ran.</caption><thead><tr><th scope="col" class="text">phase</th><th scope="col" '
        f'class="text"></th><th scope="col">time</th></tr></thead><tbody>{rows}</tbody></table>'
        "</div></section>"
    )


def _bar_rows(rows: Sequence[tuple[str, str, float, str]], most: float, name: str) -> str:
    lines = []
    for number, (style, label, value, shown) in enumerate(rows):
        parts = [(style, value, f"{label}: {shown}"), ("", max(most - value, 0.0), "")]
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


def _gains(tower: TowerReport) -> list[float]:
    return [
        b.eager_ms / b.replay_ms for b in tower.buckets if b.kept and b.eager_ms and b.replay_ms
    ]


def _span(gains: Sequence[float]) -> str:
    low, high = f"{min(gains):.2g}", f"{max(gains):.2g}"
    return f"{low} times" if low == high else f"{low} to {high} times"


def _words(name: str) -> str:
    return name.replace("_", " ")
