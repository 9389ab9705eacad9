# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Two kinds of encoder for the state machine, each with a plain reference of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from hypothesis import strategies as st

from tensorrt_llm_ext.graphs.adapter import PackedEncoderGraphIOAdapter
from tensorrt_llm_ext.towers import load_tower

from .fakes import IN, UNIT, FakeTower, make_adapter, make_item, oracle

Item = dict[str, Any]
NEVER = 1 << 30


class Setting(NamedTuple):
    """An entry of ``encoder_cuda_graph`` and the smallest budget with which it can work."""

    entry: Mapping[str, Any] | None
    least_budget: int = 0


class TwoShapes(FakeTower):
    """Larger buckets are captured for short segments and for long ones."""

    def make_io_adapter(self) -> PackedEncoderGraphIOAdapter:
        return make_adapter(self.dtype, short_segment_len=24)


class Packed:
    """Pictures: segments of any multiple of four tokens, one attention block, a merger."""

    modality = "image"
    unit = UNIT  # tokens of the smallest segment
    tokens_per_row = 1
    budgets = (72, 3, 32, 128)
    settings = (
        Setting({"max_batch_size": 3}, 4),
        Setting({"max_batch_size": 4, "max_num_tokens": 96}),
        Setting(None),
        Setting({"max_batch_size": 1}, 4),
        Setting({"buckets": [(16, 2), (48, 3)]}),
        Setting({"buckets": [(30, 2)]}),  # rounded up to 32
        Setting({"buckets": [(16, 1), (32, 4)], "enable_padding": False}),
        Setting({"buckets": [(30, 2)], "enable_padding": False}, NEVER),
        Setting({"max_batch_size": 1, "max_num_tokens": 3}, NEVER),
    )
    items = st.builds(
        lambda units, tag, seed: make_item([UNIT * n for n in units], tag, seed),
        st.lists(st.sampled_from([1, 2, 4, 8, 11]), max_size=4),
        st.integers(0, 2),
        st.integers(0, 99),
    )
    bad_items = st.sampled_from([{**make_item((8,)), "segments": (12,)}])
    broken_items = ({**make_item((8,)), "x": torch.zeros(8, IN + 1)},)  # only staging notices

    def make(self) -> Any:
        """A tower; the same weights every time."""
        return TwoShapes()

    def batch(self, turn: int) -> list[Item]:
        """Layouts that come again and again, with other values."""
        layouts = ([(8, 4), (4,)], [(4,)], [(8, 4, 12), (16,), (132,), (4,)])
        layout = layouts[turn % len(layouts)]
        return [make_item(segments, tag, turn) for tag, segments in enumerate(layout)]

    def lengths(self, item: Item) -> tuple[int, ...]:
        """Tokens of each segment."""
        return tuple(item["segments"])

    def alone(self, tower: Any, item: Item) -> dict[str, torch.Tensor]:
        """What the item has to come out as."""
        return oracle(tower, item)

    def filled(self, num_tokens: int, value: float) -> Item:
        """An item of one value."""
        return {**make_item((num_tokens,)), "x": torch.full((num_tokens, IN), value)}

    def strided(self, item: Item) -> Item:
        """The same values, not side by side."""
        return {**item, "x": item["x"].repeat_interleave(2, dim=0)[::2]}


CHUNK, WINDOW = 16, 2  # frames of a chunk, chunks of a window; a chunk comes to two tokens


def _clip(frames: int, seed: int) -> Item:
    generator = torch.Generator().manual_seed(1000 * seed + frames)
    return {"input_features": torch.randn(8, frames, generator=generator)}


class Audio:
    """Clips: convolutions, column masks of short clips, windows, one block, a projection."""

    modality = "audio"
    unit = tokens_per_row = 2
    budgets = (12, 4, 64)
    settings = (
        Setting({"max_batch_size": 2}, 4),
        Setting({"max_batch_size": 9, "max_num_tokens": 20}),
        Setting(None),
        Setting({"max_batch_size": 1}, 2),
        Setting({"max_batch_size": 6}, 12),
        Setting({"buckets": [(4, 2), (10, 5)]}),
        Setting({"buckets": [(4, 2), (8, 4)], "enable_padding": False}),
        Setting({"buckets": [(7, 4)]}, NEVER),  # four chunks take eight tokens
    )
    items = st.builds(
        _clip,
        st.sampled_from([1, 3, 15, 16, 17, 31, 32, 33, 48, 70, 100]),
        st.integers(0, 99),
    )
    broken_items = ()
    bad_items = st.sampled_from([_clip(0, 0), {"input_features": torch.zeros(7, 16)}])

    def make(self) -> Any:
        """A tower; the same weights every time."""
        audio = {
            "d_model": 8,
            "encoder_layers": 1,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 12,
            "output_dim": 5,
            "num_mel_bins": 8,
            "downsample_hidden_size": 3,
            "n_window": CHUNK // 2,
            "n_window_infer": CHUNK * WINDOW,
        }
        config = {"model_type": "qwen3_omni_moe", "audio_config": audio}
        return load_tower(config, modality="audio", init_std=0.3)

    def batch(self, turn: int) -> list[Item]:
        """Layouts that come again and again, with other values."""
        layouts = ([32], [5], [33, 5, 70])
        return [_clip(frames, turn) for frames in layouts[turn % len(layouts)]]

    def lengths(self, item: Item) -> tuple[int, ...]:
        """Token rows of each window, unused ones of a short last chunk included."""
        chunks = -(-item["input_features"].shape[1] // CHUNK)
        windows = [min(WINDOW, chunks - at) for at in range(0, chunks, WINDOW)]
        return tuple(self.tokens_per_row * n for n in windows)

    @torch.no_grad()
    def alone(self, tower: Any, item: Item) -> dict[str, torch.Tensor]:
        """The clip by itself, window by window, without bucket, mask or slack."""
        clip = item["input_features"].to(tower.dtype)
        rows = []
        for part in clip.split(CHUNK, dim=1):
            short = CHUNK - part.shape[1]
            # In a longer clip the last chunk is filled up; a clip under one chunk is not.
            filled = F.pad(part, (0, short if clip.shape[1] > CHUNK else 0))
            x = filled[None, None]
            for conv in (tower.conv2d1, tower.conv2d2, tower.conv2d3):
                x = F.gelu(conv(x))
            x = tower.conv_out(x.permute(0, 3, 1, 2).flatten(2))[0]
            x = x + tower.positions.on(x.device)[: len(x)].to(x.dtype)
            rows.append(x[: -(-part.shape[1] // 8)])
        x = torch.cat([_block(tower.blocks[0], w) for w in _windows(rows)])
        return {"features": tower.proj2(F.gelu(tower.proj1(tower.ln_post(x))))}

    def filled(self, num_tokens: int, value: float) -> Item:
        """A clip of one value."""
        frames = num_tokens // self.tokens_per_row * CHUNK
        return {"input_features": torch.full((8, frames), value)}

    def strided(self, item: Item) -> Item:
        """The same values, not side by side."""
        return {"input_features": item["input_features"].T.contiguous().T}


def _windows(chunks: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.cat(list(chunks[at : at + WINDOW])) for at in range(0, len(chunks), WINDOW)]


def _block(block: Any, x: torch.Tensor) -> torch.Tensor:
    """A pre-norm block on the tokens of one window: [tokens, 8]."""
    q, k, v = block.attn.qkv(block.norm1(x)).view(len(x), 3, 2, 4).permute(1, 2, 0, 3)
    attended = torch.softmax(q @ k.mT / 2, dim=-1) @ v  # [heads, tokens, 4]
    x = x + block.attn.proj(attended.transpose(0, 1).flatten(1))
    return x + block.mlp.linear_fc2(F.gelu(block.mlp.linear_fc1(block.norm2(x))))
