# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""What happened, as values: start-up report and counters."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from .buckets import Bucket
from .layout import Replay, Step


class BucketReport(BaseModel):
    """One planned bucket."""

    num_tokens: int = Field(description="Encoder rows before any merger.")
    max_segments: int = Field(description="Most segments in one replay.")
    max_segment_len: int | None = Field(None, description="Longest segment baked in, if any.")
    capture_ms: float | None = Field(None, description="Warm-up and capture, milliseconds.")
    replay_ms: float | None = Field(None, description="Median replay of a full bucket.")
    eager_ms: float | None = Field(None, description="Median eager run of the same full bucket.")
    variant: str = Field(
        "", description="Fastest form: library of matrix products, and tokens if room for more is."
    )
    memory_bytes: int | None = Field(
        None, description="Device memory that its capture added, largest first; None: not measured."
    )
    kept: bool = Field(description="Whether requests can replay it.")
    reason: str = Field(description="Why it was kept or dropped.")

    @property
    def bucket(self) -> Bucket:
        """Its shape."""
        return Bucket(self.num_tokens, self.max_segments, self.max_segment_len)


class TowerReport(BaseModel):
    """One tower's capture."""

    modality: str = Field(description="Key of the tower in ``encoder_cuda_graph``.")
    status: Literal["off", "captured", "eager"] = Field(description="What requests will meet.")
    reason: str = Field("", description="Why it is not captured.")
    backend: str = Field("", description="Graph backend.")
    attention: str = Field("", description="Attention inside the graphs.")
    accelerated: bool = Field(False, description="Whether replays are meant to be faster.")
    buckets: list[BucketReport] = Field(default_factory=list, description="Ascending.")
    attention_ns: float = Field(
        0.0,
        description="Nanoseconds for each pair of tokens that attend to each other, all layers: in "
        "every bucket the same, so that no choice depends on it. 0: unknown.",
    )
    capture_seconds: float = Field(0.0, description="All buckets, timing included.")
    graph_memory_bytes: int = Field(
        0, description="Graphs, pool and static buffers: device memory taken by the capture."
    )


class KvCacheReport(BaseModel):
    """How the KV cache was sized."""

    tokens: int = Field(description="KV tokens that requests can use.")
    tokens_without_graphs: int = Field(description="The same with encoder graphs off.")
    bytes_per_token: int = Field(description="Keys and values of all layers for one token.")
    free_bytes: int = Field(description="Memory left after capture.")
    reserved_bytes: int = Field(description="Kept back for eager encoder runs.")
    explicit: bool = Field(description="The size was given, not computed.")


class EncoderStats(BaseModel):
    """Counters of one tower since it was loaded."""

    items: int = Field(0, description="Pictures, videos or clips encoded.")
    segments: int = Field(0, description="Segments encoded.")
    replays: dict[str, int] = Field(default_factory=dict, description="Replays per bucket.")
    eager: dict[str, int] = Field(default_factory=dict, description="Eager steps per reason.")
    real_tokens: int = Field(0, description="Tokens of the items, before any merger.")
    padded_tokens: int = Field(0, description="Slack tokens that replays computed on top.")

    def add(self, other: EncoderStats) -> None:
        """Adds the counts of another."""
        # Without pydantic's assignment, which takes 0.7 us a field in the path of every request.
        mine, theirs = self.__dict__, other.__dict__
        mine["items"] += theirs["items"]
        mine["segments"] += theirs["segments"]
        mine["real_tokens"] += theirs["real_tokens"]
        mine["padded_tokens"] += theirs["padded_tokens"]
        for counts, more in ((self.replays, other.replays), (self.eager, other.eager)):
            for key, count in more.items():
                counts[key] = counts.get(key, 0) + count

    def record(self, num_items: int, steps: Sequence[Step]) -> None:
        """Counts one encode call."""
        counts = self.__dict__  # see ``add``
        counts["items"] += num_items
        for step in steps:
            num_tokens, num_segments, _ = step.load
            counts["segments"] += num_segments
            counts["real_tokens"] += num_tokens
            if isinstance(step, Replay):
                label = step.bucket.label
                self.replays[label] = self.replays.get(label, 0) + 1
                counts["padded_tokens"] += step.bucket.num_tokens - num_tokens
            else:
                self.eager[step.reason.value] = self.eager.get(step.reason.value, 0) + 1


class EncoderCacheStats(BaseModel):
    """Counters of the encoder output cache since start-up, and what is in it now."""

    hits: int = Field(0, description="Items answered without preprocessing and encoder.")
    misses: int = Field(0, description="Items that were encoded.")
    evictions: int = Field(0, description="Outputs that made room for others.")
    dropped: int = Field(0, description="Outputs forgotten: weights changed, or it was cleared.")
    entries: int = Field(0, description="Outputs in the cache.")
    bytes: int = Field(0, description="Their size, all tensors of an output together.")
    max_bytes: int = Field(0, description="Memory of the cache; 0: off.")


class StartupReport(BaseModel):
    """What the engine found, captured, dropped and sized at start-up."""

    model: str = Field(description="Checkpoint folder.")
    device: str = Field(description="Device of model and encoders.")
    dtype: str = Field(description="Element type of the weights.")
    towers: list[TowerReport] = Field(default_factory=list, description="One per modality.")
    kv_cache: KvCacheReport | None = Field(None, description="None without a language model.")
    encoder_cache_bytes: int = Field(
        0, description="Memory of the encoder output cache, which the KV cache leaves free; 0: off."
    )
    phase_seconds: dict[str, float] = Field(
        default_factory=dict, description="Seconds per phase, in the order they ran."
    )
    notices: list[str] = Field(default_factory=list, description="Keys accepted without effect.")

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the report as one HTML page that needs nothing else.

        Args:
            path: File to write, ``report.html`` for example; replaced if it is there.

        Raises:
            ValueError: The name does not end in ``.html``.
            OSError: The file cannot be written.
        """
        target = Path(path)
        if target.suffix != ".html":
            raise ValueError(f"{target} is to be an HTML page: give it a name that ends in .html")
        from .report_html import page

        target.write_text(page(self), encoding="utf-8")

    def render(self) -> str:
        """The report as text for a terminal."""
        lines = [f"{self.model} on {self.device}, {self.dtype}"]
        for tower in self.towers:
            lines += _render_tower(tower)
        if self.kv_cache is not None:
            kv = self.kv_cache
            how = "as configured" if kv.explicit else "from the memory left after capture"
            lines.append(
                f"KV cache: {kv.tokens:,} tokens {how}; {kv.tokens_without_graphs:,} without "
                f"encoder graphs ({kv.bytes_per_token:,} bytes a token, "
                f"{_mib(kv.reserved_bytes)} kept for eager encoder runs)"
            )
        size = self.encoder_cache_bytes
        lines.append(f"Encoder output cache: {_mib(size) if size else 'off'}")
        phases = ", ".join(f"{name} {s:.2f} s" for name, s in self.phase_seconds.items())
        lines.append(f"Start-up: {phases}")
        lines += [f"Notice: {notice}" for notice in self.notices]
        return "\n".join(lines)


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 20):,.1f} MiB"


def _render_tower(tower: TowerReport) -> list[str]:
    if tower.status == "off":
        return [f"Encoder '{tower.modality}': graphs off"]
    if tower.status == "eager":
        return [f"Encoder '{tower.modality}': eager, {tower.reason}"]
    kept = sum(bucket.kept for bucket in tower.buckets)
    head = (
        f"Encoder '{tower.modality}': {kept} of {len(tower.buckets)} buckets captured in "
        f"{tower.capture_seconds:.2f} s by {tower.backend} ({tower.attention} attention), "
        f"{_mib(tower.graph_memory_bytes)}"
    )
    lines = [head]
    if not tower.accelerated:
        lines.append(
            f"  The {tower.backend} backend ran: requests follow the rules of CUDA graphs, on "
            "static buffers, but nothing was accelerated."
        )
    lines.append(
        f"  {'tokens':>8} {'segments':>8} {'capture ms':>11} {'replay ms':>10} {'eager ms':>10}"
        "  state"
    )
    for b in tower.buckets:
        state = "kept" if b.kept else "dropped"
        times = [_ms(b.capture_ms, 11), _ms(b.replay_ms, 10), _ms(b.eager_ms, 10)]
        lines.append(
            f"  {b.num_tokens:>8} {b.max_segments:>8} {' '.join(times)}  {state}: {b.reason}"
        )
    return lines


def _ms(value: float | None, width: int) -> str:
    return f"{'-' if value is None else f'{value:.2f}':>{width}}"
