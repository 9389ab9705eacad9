# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The start-up page: complete, escaped, self-contained, and right about padding."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tensorrt_llm_ext.graphs.buckets import Bucket, Load, ladder
from tensorrt_llm_ext.graphs.report import (
    BucketReport,
    KvCacheReport,
    StartupReport,
    TowerReport,
)
from tensorrt_llm_ext.graphs.report_encoder import _good_from, padding_spans
from tensorrt_llm_ext.graphs.report_html import page, verdict
from tensorrt_llm_ext.graphs.svg_charts import (
    Point,
    Series,
    legend,
    line_chart,
    linear_axis,
    log_axis,
    octave_axis,
    share_bar,
)

MIB = 1 << 20
EVIL = "<script>alert('x')</script> & \"quotes\""


def line(tokens: int, segments: int = 8, **kwargs) -> BucketReport:
    fields = {"capture_ms": 12.5, "replay_ms": tokens / 100, "eager_ms": tokens / 25, "kept": True}
    return BucketReport(
        num_tokens=tokens, max_segments=segments, **{"reason": "ok", **fields, **kwargs}
    )


def tower(buckets: list[BucketReport], **kwargs) -> TowerReport:
    fields = {
        "modality": "image",
        "status": "captured",
        "backend": "cuda_graph",
        "attention": "varlen",
        "accelerated": True,
        "capture_seconds": 1.5,
        "graph_memory_bytes": 244 * MIB,
    }
    return TowerReport(buckets=buckets, **{**fields, **kwargs})


def startup(*towers: TowerReport, **kwargs) -> StartupReport:
    fields = {"model": "some/model", "device": "cuda:0", "dtype": "bfloat16"}
    return StartupReport(towers=list(towers), **{**fields, **kwargs})


KV = KvCacheReport(
    tokens=6000,
    tokens_without_graphs=8000,
    bytes_per_token=MIB,
    free_bytes=7000 * MIB,
    reserved_bytes=500 * MIB,
    explicit=False,
)
FULL = startup(
    tower([line(b.num_tokens) for b in ladder(16384, 8, unit=4)]),
    tower([line(104, 8, max_segment_len=104)], modality="audio"),
    kv_cache=KV,
    phase_seconds={"load weights": 12.0, "capture": 1.25},
    notices=["key x has no effect"],
)


class Text(HTMLParser):
    """Text of a page, the tags that it opens, and whether they nest."""

    VOID = ("meta", "line", "polyline")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)


def rows_of(html: str) -> list[list[str]]:
    """Cells of the rows of all tables."""
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", re.sub(r"<svg.*?</svg>", "", html))
    return [[re.sub("<[^>]+>", "", c) for c in re.findall(r"<t[hd].*?</t[hd]>", r)] for r in rows]


def test_tags_nest_and_nothing_is_loaded() -> None:
    html = page(FULL)
    parsed = Text(html)
    assert parsed.open == []
    forbidden = {"script", "link", "img", "iframe", "object", "embed", "base", "use", "image"}
    assert not forbidden & set(parsed.tags)
    assert "://" not in html
    assert not re.search(r"url\(|@import|\bsrc=|\bhref=|\bon\w+=", html)


def test_every_svg_is_valid_xml_with_a_name() -> None:
    html = page(FULL)
    svgs = re.findall(r"<svg.*?</svg>", html, re.S)
    assert len(svgs) > 8
    for svg in svgs:
        root = ElementTree.fromstring(svg)
        if root.get("aria-hidden") != "true":
            named = {e.get("id") for e in root.iter() if e.get("id")}
            assert root.get("role") == "img"
            assert set(root.get("aria-labelledby", "").split()) <= named
            assert named
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))


def test_texts_are_escaped() -> None:
    evil = tower([line(64, reason=EVIL)], modality=EVIL, backend=EVIL, attention=EVIL)
    html = page(
        startup(
            evil,
            tower([], status="eager", reason=EVIL),
            tower([], status="off", reason=EVIL),
            model=EVIL,
            device=EVIL,
            dtype=EVIL,
            notices=[EVIL],
            phase_seconds={EVIL: 1.0},
        )
    )
    assert "<script" not in html
    assert Text(html).text.count(EVIL) >= 9
    for svg in re.findall(r"<svg.*?</svg>", html, re.S):
        ElementTree.fromstring(svg)


def test_charts_escape_what_they_are_given() -> None:
    series = [Series(EVIL, "replay", [Point(1, 1, EVIL), Point(2, 2, EVIL)])]
    x, y = octave_axis(EVIL, 1, 2, lambda v: EVIL), linear_axis(EVIL, 2, lambda v: EVIL)
    drawn = [
        line_chart(series, x, y, name="n", title=EVIL, description=EVIL),
        legend(series),
        legend([series[0]._replace(markers=False)]),
        share_bar([("kv", 1.0, EVIL), ("", 1.0, EVIL)], name="n", title=EVIL),
    ]
    for text in drawn:
        assert "<script" not in text
        assert EVIL in "".join(ElementTree.fromstring(text).itertext())
    said = "".join(ElementTree.fromstring(drawn[0]).itertext())
    assert said.count(EVIL) == 2 + 2 + 2 + len(x.ticks) + len(y.ticks)


def test_every_bucket_is_there_with_its_reason() -> None:
    buckets = [
        line(64),
        line(128, kept=False, reason="slower than eager"),
        line(256, capture_ms=None, replay_ms=None, eager_ms=None, kept=False, reason="cap"),
    ]
    html = page(startup(tower(buckets)))
    rows = rows_of(html)
    assert ["64", "8", "any", "12.50", "0.64", "2.56", "4.00x", "kept", "ok"] in rows
    assert [
        *["128", "8", "any", "12.50", "1.28", "5.12", "4.00x"],
        *["dropped", "slower than eager"],
    ] in rows
    assert ["256", "8", "any", "-", "-", "-", "-", "dropped", "cap"] in rows
    assert "3 planned, 2 dropped: 128x8, 256x8" in html
    shown = [row[0] for row in rows_of(page(FULL))]
    assert [r for r in shown if r in {f"{b.num_tokens:,}" for b in FULL.towers[0].buckets}] == [
        f"{b.num_tokens:,}" for b in FULL.towers[0].buckets
    ]


def test_marks_of_the_time_chart() -> None:
    """One mark per bucket and series, the dropped ones hollow; two variants are two charts."""
    html = page(startup(tower([line(64), line(128, kept=False), line(256)])))
    chart = re.search(r"<h3>Time per bucket</h3>.*?</figure>", html).group(0).split("</svg>")[0]
    assert chart.count('<circle class="mark replay') == 3
    assert chart.count('<rect class="mark eager') == 3
    assert chart.count("hollow") == 2
    assert "256x8: eager 10.2 ms (kept)" in chart
    two = [line(64, 8, max_segment_len=64), line(64, 32, max_segment_len=20)]
    html = page(startup(tower(two)))
    assert html.count("<h3>Time per bucket: ") == 2


def test_memory_per_bucket_only_where_it_was_measured() -> None:
    assert "Memory per bucket" not in page(FULL)
    html = page(startup(tower([line(64, memory_bytes=MIB), line(128, memory_bytes=None)])))
    assert "Memory per bucket" in html
    assert [r[7] for r in rows_of(html) if r[0] in ("64", "128")] == ["1.0 MiB", "-"]


def test_kv_cache_and_memory() -> None:
    text = Text(page(FULL)).text
    assert "6,000" in text
    assert "2,000 KV tokens given up for graphs (25.0%)" in text
    rows = rows_of(page(FULL))
    assert ["encoder graphs", "488.0 MiB", "6.5%"] in rows
    assert ["KV cache", "5.86 GiB", "80.1%"] in rows
    assert ["left free", "500.0 MiB", "6.7%"] in rows
    cached = rows_of(page(startup(kv_cache=KV, encoder_cache_bytes=200 * MIB)))
    assert ["encoder output cache", "200.0 MiB", "2.9%"] in cached
    assert ["left free", "300.0 MiB", "4.3%"] in cached
    explicit = page(startup(kv_cache=KV.model_copy(update={"explicit": True})))
    assert "given up" not in explicit
    assert "as configured" in explicit
    # More configured than there was memory: nothing is left, nothing is negative.
    tight = KV.model_copy(update={"free_bytes": MIB})
    assert ["left free", "0.0 MiB", "0.0%"] in rows_of(page(startup(kv_cache=tight)))


def test_phases_and_notices() -> None:
    html = page(FULL)
    assert "Start-up, 13.2 s" in html
    assert ["load weights", "", "12.0 s"] in rows_of(html)
    bar = re.search(r"<svg class=.bar.[^>]*><title[^>]*>capture: .*?</svg>", html).group(0)
    assert re.findall(r'width="([\d.]+)"', bar) == ["104.17"]  # of 1000, by the longest phase
    assert '<p class="notice">key x has no effect</p>' in html
    assert "Start-up, " not in page(startup())


@pytest.mark.parametrize(
    ("towers", "said"),
    [
        ([], "Encoder graphs are off"),
        ([tower([], status="off")], "Encoder graphs are off"),
        (
            [tower([line(64), line(128, kept=False)])],
            "The image encoder replays 1 of 2 buckets, 4 times as fast as eager.",
        ),
        ([tower([line(64), line(128, eager_ms=9.0)])], "4 to 7 times as fast as eager"),
        (
            [tower([line(64)], accelerated=False, backend="static_buffers")],
            "1 of 1 buckets on static buffers, which accelerate nothing.",
        ),
        (
            [tower([line(64)]), tower([], modality="audio", status="eager", reason="no memory")],
            "4 times as fast as eager. The audio encoder runs eagerly: no memory.",
        ),
    ],
)
def test_verdict(towers: list[TowerReport], said: str) -> None:
    report = startup(*towers)
    assert said in verdict(report)
    assert said in Text(page(report)).text


def test_static_buffers_claim_no_gain() -> None:
    html = page(startup(tower([line(64)], accelerated=False, backend="static_buffers")))
    assert "nothing was accelerated" in html
    assert "as fast as eager" not in html
    assert "4.00x" not in html


# ---- padding ---------------------------------------------------------------------------------


def brute_force(costs: dict[Bucket, float], tokens: int) -> Bucket | None:
    fitting = [b for b in costs if b.rejects(Load(tokens, 1, tokens)) is None]
    return min(fitting, key=lambda b: costs[b]) if fitting else None


@pytest.mark.parametrize("measured", [True, False])
def test_padding_is_that_of_the_cheapest_bucket(measured: bool) -> None:
    costs = {
        Bucket(64, 4): 5.0,
        Bucket(128, 4): 1.0,  # measured to be cheaper than the smaller one
        Bucket(256, 8, 256): 3.0,
        Bucket(256, 32, 90): 0.5,
        Bucket(512, 8): 6.0,
    }
    if not measured:
        costs = {b: b.num_tokens for b in costs}
    spans = padding_spans(costs)
    found = {n: b for first, last, b in spans for n in range(first, last + 1)}
    assert list(found) == list(range(1, 513))
    for n, bucket in found.items():
        want = brute_force(costs, n)
        assert want is not None
        assert bucket.num_tokens == want.num_tokens, n


def test_audio_requests_are_cut_into_windows() -> None:
    buckets = [Bucket(104 * n, 8 * n, 104) for n in (1, 2, 4)]
    spans = padding_spans({b: b.num_tokens for b in buckets})
    assert [(a, b, bucket.num_tokens) for a, b, bucket in spans] == [
        (1, 104, 104),
        (105, 208, 208),
        (209, 416, 416),
    ]


def test_a_request_of_more_windows_than_a_bucket_takes_is_none_of_its() -> None:
    bucket = Bucket(250, 2, 104)
    assert padding_spans({bucket: 1.0}) == [(1, 104, bucket)]


def test_an_eighth_of_padding_is_good_enough() -> None:
    spans = [(1, 55, Bucket(55, 4)), (56, 64, Bucket(64, 4))]
    assert _good_from(spans) == ", and at most 12.5% from 56 tokens on"
    assert _good_from(spans[:1]) == ""


def test_padding_in_words() -> None:
    """Of 1..128 in buckets of 64 and 128: slack 63 + ... + 0 twice, of 64 * 64 + 64 * 128 rows."""
    html = page(startup(tower([line(64), line(128)])))
    share = 2 * (63 * 64 / 2) / (64 * 64 + 64 * 128)
    assert f"from 1 to 128 tokens {share:.1%} of the rows" in html
    assert "and at most" not in html  # half of the bucket of 128 is padding at 65
    ladder_of = page(startup(tower([line(64 * n) for n in range(1, 17)])))
    assert "and at most 12.5% from 449 tokens on" in ladder_of  # 449 in 512: 63 rows of padding


# ---- scales ----------------------------------------------------------------------------------


def test_scales_hold_the_values() -> None:
    axis = log_axis("ms", [0.37, 81.0], str)
    assert (axis.low, axis.high) == (0.2, 100.0)
    assert axis.ticks[:2] == [0.2, 0.5]
    assert axis.at(0.2, 10, 20) == 10
    assert axis.at(100.0, 10, 20) == 20
    same = log_axis("ms", [5.0, 5.0], str)
    assert same.low == 5.0 < same.high
    assert linear_axis("MiB", 0.0, str).high > 0
    percent = linear_axis("%", 74.0, str)
    assert (percent.high, list(percent.ticks)) == (80.0, [0, 20, 40, 60, 80])
    octave = octave_axis("tokens", 64, 16384, str)
    assert octave.ticks == [2.0**n for n in range(6, 15)]
    assert len(octave_axis("tokens", 1, 2**20, str).ticks) <= 11
    assert octave_axis("tokens", 64, 64, str).high == 128


# ---- the file --------------------------------------------------------------------------------


def test_save(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    FULL.save(path)
    assert path.read_text(encoding="utf-8") == page(FULL)
    FULL.save(str(path))
    with pytest.raises(ValueError, match=r"report\.json is to be an HTML page"):
        FULL.save(tmp_path / "report.json")
    assert not (tmp_path / "report.json").exists()
