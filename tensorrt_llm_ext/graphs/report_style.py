# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Style sheet of the start-up page: light and dark, screen and paper, nothing loaded from afar.

Blue is replay and orange is eager everywhere; the two also differ in shape.
"""

STYLE = """
:root { color-scheme: light dark;
  --page: #f5f6f8; --card: #ffffff; --ink: #1a1f27; --soft: #56606e; --rule: #d9dee5;
  --replay: #1f6fd0; --eager: #c2570a; --waste: #7a4fb5; --kv: #1d8a67; --kept: #8a6d1f;
  --left: #aab3be; --outputs: #b0457f; --warn: #fff4e0; --warn-rule: #d98b16; }
@media (prefers-color-scheme: dark) { :root {
  --page: #14171c; --card: #1d2229; --ink: #e7eaee; --soft: #a4aeba; --rule: #373f4a;
  --replay: #6cabf7; --eager: #f5a05c; --waste: #b995ee; --kv: #54c79d; --kept: #d9b95c;
  --left: #5f6975; --outputs: #e58bb9; --warn: #33280f; --warn-rule: #c98b2d; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1220px; margin: 0 auto; padding: 28px 20px 48px; }
h1 { font-size: 1.1rem; margin: 0; color: var(--soft); font-weight: 600; }
h2 { font-size: 1.3rem; margin: 40px 0 4px; }
h3 { font-size: 1rem; margin: 0 0 2px; }
p { margin: 4px 0 10px; max-width: 78ch; }
.verdict { font-size: 1.55rem; line-height: 1.3; font-weight: 600; margin: 6px 0 6px;
  max-width: 62ch; }
.meta, .small { color: var(--soft); font-size: 0.9rem; }
.meta { max-width: none; }
.meta span { white-space: nowrap; margin-right: 1.4em; }
.meta b { color: var(--ink); font-weight: 600; overflow-wrap: anywhere; white-space: normal; }
code { font: 0.9em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
.card, .tile { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; }
.card { padding: 16px 18px; margin: 12px 0; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); gap: 12px;
  margin: 18px 0 0; padding: 0; list-style: none; }
.tile { padding: 12px 16px; }
.tile b { display: block; font-size: 1.5rem; line-height: 1.25; }
.tile span { color: var(--soft); font-size: 0.9rem; }
.notice { background: var(--warn); border-left: 4px solid var(--warn-rule); padding: 8px 14px;
  border-radius: 4px; margin: 8px 0; max-width: none; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 470px), 1fr));
  gap: 12px; }
.charts .card { margin: 0; }
figure { margin: 0; }
figcaption { color: var(--soft); font-size: 0.9rem; margin-bottom: 6px; }
svg { display: block; width: 100%; height: auto; }
svg text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
  fill: var(--soft); }
svg .label { fill: var(--ink); }
.grid { stroke: var(--rule); } .axis { stroke: var(--soft); }
.line { fill: none; stroke-width: 1.8; } .mark { stroke-width: 1.6; }
.line.replay, .mark.replay { stroke: var(--replay); } .mark.replay { fill: var(--replay); }
.line.eager, .mark.eager { stroke: var(--eager); } .mark.eager { fill: var(--eager); }
.line.waste { stroke: var(--waste); }
.mark.hollow { fill: var(--card); }
.share { stroke: var(--card); stroke-width: 1px; vector-effect: non-scaling-stroke; }
.share.graphs { fill: var(--replay); } .share.kv { fill: var(--kv); }
.share.kept { fill: var(--kept); } .share.left { fill: var(--left); }
.share.outputs { fill: var(--outputs); }
.share.phase0 { fill: var(--soft); } .share.without { fill: var(--left); }
svg.bar { height: 26px; border-radius: 5px; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 18px; margin: 6px 0 0; padding: 0;
  list-style: none; font-size: 0.9rem; }
.legend svg { display: inline-block; width: 24px; height: 12px; margin-right: 6px;
  vertical-align: -1px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums;
  font-size: 0.92rem; }
caption { text-align: left; color: var(--soft); font-size: 0.9rem; padding-bottom: 6px; }
th, td { padding: 4px 10px; text-align: right; border-bottom: 1px solid var(--rule); }
th { font-weight: 600; vertical-align: bottom; }
td.text, th.text { text-align: left; }
tbody tr:hover { background: color-mix(in srgb, var(--replay) 9%, transparent); }
tr.dropped td, tr.dropped th { color: var(--soft); }
tr.dropped .state { color: var(--eager); font-weight: 600; }
thead th { position: sticky; top: 0; background: var(--card); box-shadow: 0 1px var(--rule); }
tbody th { font-weight: inherit; }
.scroll { max-height: 460px; overflow: auto; }
.scroll:focus-visible { outline: 2px solid var(--replay); outline-offset: 2px; }
.swatch { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 8px;
  vertical-align: -1px; }
.swatch.graphs { background: var(--replay); } .swatch.kv { background: var(--kv); }
.swatch.kept { background: var(--kept); }
.swatch.left { background: var(--left); } .swatch.outputs { background: var(--outputs); }
.barcell { width: 45%; } .barcell svg.bar { height: 16px; border-radius: 3px; }
.words { max-width: 110ch; margin-top: 14px; }
@media (max-width: 700px) { main { padding: 16px 12px; } .verdict { font-size: 1.25rem; }
  th, td { padding: 4px 6px; } .card { padding: 12px; } }
@media print { body { background: #ffffff; } .scroll { max-height: none; overflow: visible; }
  .card { break-inside: avoid; } }
"""
