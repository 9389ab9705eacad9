# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""A dry run is an eager run of the asked size, whatever the encoder, and leaves no trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tensorrt_llm_ext.towers import load_tower


@pytest.mark.parametrize(
    ("family", "modality", "asked", "tokens", "segments"),
    [
        ("qwen3_vl", "image", 96, 96, 1),
        ("qwen3_vl", "image", 97, 100, 1),  # whole merge units
        ("qwen3_omni", "audio", 30, 39, 1),  # whole chunks of 13
        ("glm5_next", "image", 50, 52, 1),
        ("radio", "image", 33, 33, 1),
        ("qwen2_5_vl", "image", 65, 68, 1),
    ],
)
def test_dry_run(
    family_checkpoint: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    modality: str,
    asked: int,
    tokens: int,
    segments: int,
) -> None:
    tower = load_tower(family_checkpoint(family), modality, device="cpu", dtype=torch.float32)
    tower.setup_attn_metadata(max_num_tokens=32)  # of the budget; larger items run all the same
    seen: list[Any] = []
    region, metadata_of = tower.run_region, tower.make_eager_metadata

    def spy_forward(inputs: Mapping[str, torch.Tensor], metadata: Any) -> Any:
        outputs = dict(region(inputs, metadata))
        seen.append({n: t.shape[0] for n, t in outputs.items()})
        assert not torch.is_grad_enabled()
        return outputs.items()

    def spy_metadata(lengths: Any) -> Any:
        seen.append(lengths)
        return metadata_of(lengths)

    monkeypatch.setattr(tower, "run_region", spy_forward)
    monkeypatch.setattr(tower, "make_eager_metadata", spy_metadata)
    tower.dry_run(asked)
    lengths, rows = seen
    attended = getattr(lengths, "segments", lengths)
    assert (sum(attended), len(attended)) == (tokens, segments)
    specs = tower._adapter.output_specs
    assert rows == {name: spec.rows(tokens) for name, spec in specs.items()}
    assert tower.encoder_stats().items == 0
    assert tower.encoder_stats().eager == {}
