# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""What is served and asked for: models, requests, memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .media import Part, picture, sound, text, video

GIB = 2**30
# What an H100 of 80 GB reports as its total memory.
CARD_80_GB = 81_559 * 2**20
Config = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One comparison.

    Attributes:
        name: Of the case.
        model: Key of ``checkpoints.MODELS``.
        requests: Most requests at each concurrency.
        max_tokens: Tokens that each is answered with.
        content: Parts of the request of a number.
        config: Serve configuration of every server.
        graphs: ``encoder_cuda_graph`` of those with graphs.
        memory: Device memory that a server finds, by name; None: all there is.
        timed: Whether its times are held to targets.
    """

    name: str
    model: str
    requests: Mapping[int, int]
    max_tokens: int
    content: Callable[[int], list[Part]]
    config: Config
    graphs: Config
    memory: Mapping[str, int | None] = field(default_factory=lambda: {"all": None})
    timed: bool = True

    def small(self) -> Case:
        """The same on a CPU with a tiny model."""
        buckets = {"image": [[196, 1], [784, 4]], "audio": [[52, 4], [208, 16]]}
        limits = {"max_batch_size": 8, "max_seq_len": 2048, "encoder_max_num_tokens": 1024}
        return replace(
            self,
            requests={c: min(most, 2 * c) for c, most in self.requests.items() if c <= 8},
            max_tokens=4,
            config={
                **self.config,
                **limits,
                "device": "cpu",
                "dtype": "float32",
                "kv_cache_config": {"max_tokens": 16384},
            },
            graphs={modality: {"buckets": buckets[modality], **_ENTRY} for modality in self.graphs},
        )

    def yaml_config(self, *, graphs: bool) -> Config:
        """The serve configuration of one arm."""
        # The pictures of a rung come again in the next arm and run, and are to be encoded then.
        multimodal: Config = {"encoder_cache_max_bytes": 0}
        if graphs:
            multimodal["encoder_cuda_graph"] = self.graphs
        return {**self.config, "multimodal_config": multimodal}


def _picture_question(number: int) -> list[Part]:
    return [picture(number), text("What is in this picture?")]


def _film_question(number: int) -> list[Part]:
    return [video(number), sound(number), text("What is seen and heard?")]


# No search for other forms of a bucket: it keeps start-up short, and the same products in both
# arms let answers be compared word for word.
_ENTRY = {"search_seconds": 0}
_GPU = {"device": "cuda", "dtype": "bfloat16", "max_seq_len": 2048}

CASES = {
    "qwen3_vl_2b": Case(
        name="qwen3_vl_2b",
        model="qwen3_vl_2b",
        requests={1: 16, 8: 48, 32: 96, 128: 256},
        max_tokens=16,
        content=_picture_question,
        config={
            **_GPU,
            "max_batch_size": 128,
            "encoder_max_batch_size": 32,
            "encoder_max_num_tokens": 8192,
        },
        graphs={"image": {"max_batch_size": 32, **_ENTRY}},
    ),
    "qwen3_omni": Case(
        name="qwen3_omni",
        model="qwen3_omni",
        requests={1: 16, 10: 40},
        max_tokens=16,
        content=_film_question,
        config={
            **_GPU,
            "max_batch_size": 16,
            "encoder_max_batch_size": 16,
            "encoder_max_num_tokens": 8192,
        },
        graphs={
            "image": {"max_batch_size": 32, **_ENTRY},
            "audio": {"max_batch_size": 64, "max_num_tokens": 832, **_ENTRY},
        },
        memory={"all": None, "80 GB card": CARD_80_GB},
    ),
}
_OMNI = CASES["qwen3_omni"]
# Replays take a film in other pieces than eager steps do, bfloat16 products are rounded otherwise
# then, and random weights put the likeliest tokens close together. Here that makes no difference:
# answers are compared, and replays are not left out where they are slower.
CASES["qwen3_omni_float32"] = replace(
    _OMNI,
    name="qwen3_omni_float32",
    requests={1: 16},
    config={**_OMNI.config, "dtype": "float32"},
    # Those that the requests above are replayed in.
    graphs={
        "image": {"buckets": [[640, 32], [1792, 32]], "prune_slower_than_eager": False, **_ENTRY},
        "audio": {"buckets": [[52, 4]], "prune_slower_than_eager": False, **_ENTRY},
    },
    memory={"all": None},
    timed=False,
)
