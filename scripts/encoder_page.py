# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The encoder benchmarks as one HTML page that needs nothing else: charts, targets, numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from tensorrt_llm_ext.graphs.report_style import STYLE
from tensorrt_llm_ext.graphs.report_text import show_number, show_tokens
from tensorrt_llm_ext.graphs.svg_charts import (
    Axis,
    Point,
    Series,
    legend,
    line_chart,
    linear_axis,
    log_axis,
    octave_axis,
)

# Light and dark; ours is the blue of a replay and eager the orange of the start-up page.
_COLOURS = {
    "transformers": ("#8a6d1f", "#d9b95c"),
    "packed": ("#7a4fb5", "#b995ee"),
    "compiled": ("#b3261e", "#f28b82"),
    "eager": ("#c2570a", "#f5a05c"),
    "plain": ("#1d8a67", "#54c79d"),
    "ours": ("#1f6fd0", "#6cabf7"),
    "floor": ("#56606e", "#a4aeba"),
}
_SEGMENT_STYLES = ("transformers", "plain", "packed", "ours")
_SQUARE = {"packed", "eager", "plain"}
_WORDS = {"target", "case", "arm", "items", "layout", "clips", "lengths"}  # heads of texts
_TEXT = ' class="text"'
_MET = {True: "met", False: "missed", None: "not measured"}


def page(results: Sequence[Mapping[str, Any]]) -> str:
    """Renders the results of ``benchmarks/encoder.py``.

    Args:
        results: One object per tower.

    Returns:
        A whole HTML document. It loads nothing and runs no script; texts are escaped.
    """
    sections = "".join(_section(result, f"t{i}") for i, result in enumerate(results))
    arms = "".join(
        f"<tr><th scope='row' class='text'>{escape(arm)}</th><td class='text'>{escape(words)}</td>"
        "</tr>"
        for arm, words in dict(p for r in results for p in r["arms"].items()).items()
    )
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>Encoder benchmarks</title><style>{STYLE}{_style()}</style></head><body><main>"
        f'<header><h1>Encoder benchmarks</h1><p class="verdict">{escape(_verdict(results))}</p>'
        '<p class="small words">A time is the median wall clock from a call to an idle device, '
        "inputs on the device; the arms took turns, call by call. The floor is the larger of "
        "arithmetic and memory traffic at what the machine sustains. Error is relative L2 of the "
        "worst output against transformers in fp32. Kernel times come from a process of their own."
        f'</p><div class="card"><table><tbody>{arms}</tbody></table></div></header>'
        f"{sections}</main></body></html>\n"
    )


def _style() -> str:
    rules = []
    for index, scheme in enumerate(("light", "dark")):
        body = "".join(
            f".line.{name}, .mark.{name} {{ stroke: {colours[index]}; }}"
            f".mark.{name} {{ fill: {colours[index]}; }}"
            for name, colours in _COLOURS.items()
        )
        rules.append(f"@media (prefers-color-scheme: {scheme}) {{ {body} }}")
    rules.append(
        ".line.floor { stroke-dasharray: 5 4; } .missed { font-weight: 600; } "
        "td { white-space: nowrap; } td.text { white-space: normal; }"
    )
    return "\n".join(rules)


def _verdict(results: Sequence[Mapping[str, Any]]) -> str:
    targets = [target for result in results for target in result["targets"]]
    counts = {word: sum(_MET[t["passed"]] == word for t in targets) for word in _MET.values()}
    shown = [f"{n} {word}" for word, n in counts.items() if n]
    return f"{len(targets)} targets: {', '.join(shown)}." if targets else "No targets were stated."


def _section(result: Mapping[str, Any], name: str) -> str:
    facts = [
        result["device"],
        f"torch {result['torch']}",
        f"transformers {result['transformers']}",
        f"triton {result['triton']}",
        f"commit {str(result['commit'])[:10]}",
        result["date"],
    ]
    meta = "".join(f"<span>{escape(str(fact))}</span>" for fact in facts)
    charts = [*_case_charts(result, name), *_sweep_chart(result, name)]
    return (
        f'<section><h2>{escape(result["title"])}</h2><p class="meta">{meta}</p>'
        f"{_targets(result)}"
        f'<div class="charts">{"".join(charts)}</div>'
        f"{_capture(result)}{_cases(result, name)}{_other(result, 'host', ('items', 'layout'))}"
        f"{_other(result, 'staging', ('clips', 'lengths'))}</section>"
    )


# ---- charts ----------------------------------------------------------------------------------


def _case_charts(result: Mapping[str, Any], name: str) -> Iterable[str]:
    """Cases that are one series: single pictures by size, equal pictures by number, clips."""
    cases = list(result.get("cases", ()))
    single = [c for c in cases if re.fullmatch(r"1x\d+", c["case"])]
    equal = [c for c in cases if re.fullmatch(r"\d+x256", c["case"])]
    clips = [] if single or equal else cases
    tokens = "tokens"
    for key, title, members, label in (
        ("one", "One picture", single, tokens),
        ("many", "Pictures of 256 patches", equal, "pictures"),
        ("clips", "Clips", clips, tokens),
    ):
        if len(members) < 2:
            continue
        members = sorted(members, key=lambda c: c["items" if label == "pictures" else tokens])
        x = [c["items"] if label == "pictures" else c[tokens] for c in members]
        series = list(_arm_series(result["arms"], members, x))
        values = [p.y for one in series for p in one.points]
        chart = line_chart(
            series,
            octave_axis(label, min(x), max(x), show_tokens),
            log_axis("milliseconds", values, show_number),
            name=f"{name}-{key}",
            title=title,
            description=f"Median time of {len(members)} batches in every arm; the table below has "
            "the numbers.",
        )
        caption = "Lower is better; both scales are ratios."
        yield _figure(title, caption, chart + legend(series[::-1]))


def _arm_series(
    arms: Mapping[str, str], cases: Sequence[Mapping[str, Any]], x: Sequence[float]
) -> Iterable[Series]:
    floors = [
        Point(at, max(c["floor_flops_us"], c["floor_bytes_us"]) / 1e3, "")
        for at, c in zip(x, cases, strict=True)
    ]
    yield Series("floor", "floor", floors, markers=False)
    for arm in arms:
        points = []
        for at, case in zip(x, cases, strict=True):
            if arm in case["arms"]:
                took = case["arms"][arm]["median_us"] / 1e3
                points.append(Point(at, took, f"{case['case']}: {arm} {took:.3g} ms"))
        if points:
            yield Series(arm, arm, points, square=arm in _SQUARE)


def _sweep_chart(result: Mapping[str, Any], name: str) -> Iterable[str]:
    points = [p for p in result.get("sweep", ()) if p["ratio"] is not None]
    if not points:
        return
    # Clips have as many windows as their lengths give; a series for each number would say nothing.
    key = "segments" if len({p["segments"] for p in points}) <= len(_SEGMENT_STYLES) else "items"
    groups = sorted({p[key] for p in points})
    series = [
        Series(
            f"{group} {key if group != 1 else key[:-1]}",
            _SEGMENT_STYLES[index % len(_SEGMENT_STYLES)],
            [
                Point(p["tokens"], p["ratio"], f"{p['tokens']} tokens: {p['ratio']:.3f}")
                for p in points
                if p[key] == group
            ],
            square=index % 2 == 1,
        )
        for index, group in enumerate(groups)
    ]
    tokens = [p["tokens"] for p in points]
    y: Axis = linear_axis("time of ours / eager", max(p["ratio"] for p in points), show_number)
    title = "Ours against its own eager run"
    chart = line_chart(
        series,
        octave_axis("tokens", min(tokens), max(tokens), show_tokens),
        y,
        name=f"{name}-sweep",
        title=title,
        description=f"Ratio of medians of {len(points)} batches.",
    )
    worst = max(p["ratio"] for p in points)
    caption = f"{len(points)} batches; the slowest takes {worst:.3f} of its eager time."
    yield _figure(title, caption, chart + legend(series))


def _figure(title: str, caption: str, content: str) -> str:
    return (
        f'<figure class="card"><h3>{escape(title)}</h3><figcaption>{escape(caption)}</figcaption>'
        f"{content}</figure>"
    )


# ---- tables ----------------------------------------------------------------------------------


def _targets(result: Mapping[str, Any]) -> str:
    rows = []
    for target in result["targets"]:
        word = "at least" if "at_least" in target else "at most"
        bound = target.get("at_least", target.get("at_most"))
        notes = ["provisional"] if target.get("provisional") else []
        notes += [f"aim {target['aim']}{target['unit']}"] if "aim" in target else []
        met = _MET[target["passed"]]
        state = ", ".join([met, *notes])
        rows.append(
            [
                _text(target["target"]),
                _cell(f"{word} {bound:g} {target['unit']}"),
                _cell("-" if target["measured"] is None else f"{target['measured']:.4g}"),
                f'<td class="text {met.split()[0]}">{escape(state)}</td>',
            ]
        )
    if not rows:
        return ""
    return _table("Targets", ("target", "bound", "measured", ""), rows)


def _capture(result: Mapping[str, Any]) -> str:
    rows = []
    for arm, found in result.get("capture", {}).items():
        memory = found["driver_mib"]
        rows.append(
            [
                _text(arm),
                _cell(f"{found['kept']} of {found['buckets']}"),
                *(_cell(f"{found[key]:.2f}") for key in ("first_seconds", "seconds")),
                _cell(f"{found['captures_seconds']:.2f}"),
                _cell("-" if memory is None else f"{memory:.1f}"),
            ]
        )
    heads = (
        "arm",
        "buckets kept",
        "first capture s",
        "reported one s",
        "of it capture s",
        "MiB, driver's count",
    )
    return _table("Capture", heads, rows) if rows else ""


def _cases(result: Mapping[str, Any], name: str) -> str:
    heads = (
        "case",
        "tokens",
        "arm",
        "median us",
        "min us",
        "spread",
        "host us",
        "kernels us",
        "launches",
        "arithmetic us",
        "traffic us",
        "error",
    )
    rows = []
    for entry in result.get("cases", ()):
        kernels = result.get("kernels", {}).get(entry["case"], {})
        for arm, found in entry["arms"].items():
            profiled = kernels.get(arm, {})
            error = found.get("error")
            rows.append(
                [
                    _text(entry["case"]),
                    _cell(f"{entry['tokens']:,}"),
                    _text(arm),
                    *(_cell(f"{found[key]:,.1f}") for key in ("median_us", "min_us")),
                    _cell(f"{found['spread']:.1%}"),
                    _cell(f"{found['host_us']:,.1f}"),
                    _cell(f"{profiled['kernel_us']:,.1f}" if profiled else "-"),
                    _cell(f"{profiled['kernels']:,}" if profiled else "-"),
                    *(_cell(f"{entry[f'floor_{k}_us']:,.1f}") for k in ("flops", "bytes")),
                    _cell("-" if error is None else f"{error:.2e}"),
                ]
            )
        for arm, reason in entry.get("failed", {}).items():
            rows.append(
                [
                    _text(entry["case"]),
                    _cell(f"{entry['tokens']:,}"),
                    _text(arm),
                    f'<td class="text" colspan="{len(heads) - 3}">{escape(reason)}</td>',
                ]
            )
    if not rows:
        return ""
    return _table(f"All times, {len(rows)} rows", heads, rows, scroll=f"{name}-all")


def _other(result: Mapping[str, Any], part: str, keys: tuple[str, ...]) -> str:
    title = {"host": "Host time, layouts seen before and new", "staging": "Staging of clips"}[part]
    extra = {"host": "beyond_launch_us", "staging": "back_to_back_us"}[part]
    words = {"host": "beyond launches us", "staging": "back to back us"}[part]
    rows = [
        [
            *(_text(str(entry[key])) for key in keys),
            _text(arm),
            _cell(f"{found['median_us']:,.1f}"),
            _cell(f"{found['host_us']:,.1f}"),
            _cell(f"{found[extra]:,.1f}" if extra in found else "-"),
        ]
        for entry in result.get(part, ())
        for arm, found in entry["arms"].items()
    ]
    heads = (*keys, "arm", "median us", "host us", words)
    return _table(title, heads, rows) if rows else ""


def _table(
    title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], scroll: str = ""
) -> str:
    head = "".join(f'<th scope="col"{_TEXT * (h in _WORDS)}>{escape(h)}</th>' for h in heads)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    if not scroll:
        return f'<div class="card"><h3>{escape(title)}</h3>{table}</div>'
    return (
        f'<div class="card"><h3 id="{scroll}">{escape(title)}</h3><div class="scroll" '
        f'tabindex="0" role="region" aria-labelledby="{scroll}">{table}</div></div>'
    )


def _text(value: str) -> str:
    return f'<td class="text">{escape(value)}</td>'


def _cell(value: str) -> str:
    return f"<td>{escape(value)}</td>"
