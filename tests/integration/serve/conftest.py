# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""One tiny engine for all servers of these tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from running_server import Gate, Running, serving

from tensorrt_llm_ext.llmapi.llm import make_engine
from tensorrt_llm_ext.llmapi.llm_args import LlmArgs

UNCACHED = {"encoder_cache_max_bytes": 0}
GRAPHS = {"encoder_cuda_graph": {"image": {"buckets": [[96, 4], [320, 8]]}}, **UNCACHED}
LIMITS = {"encoder_max_num_tokens": 320, "encoder_max_batch_size": 8, "max_seq_len": 512}


@pytest.fixture(scope="session")
def engine(tiny_checkpoint: Path) -> Iterator[Any]:
    """Qwen3-VL with encoder graphs. Servers of it come and go."""
    args = LlmArgs(model=tiny_checkpoint, device="cpu", multimodal_config=GRAPHS, **LIMITS)
    made = make_engine(args)
    yield made
    made.shutdown()


@pytest.fixture(scope="module")
def server(engine: Any) -> Iterator[Running]:
    """A server with default limits, of each file its own."""
    with serving(engine) as running:
        yield running


@pytest.fixture(scope="session")
def omni_engine(family_checkpoint: Callable[[str], Path]) -> Iterator[Any]:
    """Qwen3-Omni, which hears."""
    made = make_engine(LlmArgs(model=family_checkpoint("qwen3_omni"), device="cpu", **LIMITS))
    yield made
    made.shutdown()


@pytest.fixture(scope="session")
def picture(photo: Image.Image) -> Image.Image:
    """80 rows, 20 tokens."""
    return photo.resize((160, 128))


@pytest.fixture
def gate(engine: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate(engine, monkeypatch)
    yield made
    made.open.set()
