# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""A malformed item: which one, what is wrong, what is allowed, and nothing has happened."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from .checks import capture

ROWS = torch.randn(32, 96, generator=torch.Generator().manual_seed(0))
GOOD: dict[str, Any] = {"pixel_values": ROWS, "grid_thw": (1, 8, 4)}

BAD: dict[str, tuple[Any, str]] = {
    "no grid": ({"pixel_values": ROWS}, r"keys are \['pixel_values'\]; expected \['grid_thw', "),
    "one key more": ({**GOOD, "size": 1}, r"keys are \[.*'size'\]; expected"),
    "not a mapping": (None, "keys are those of a NoneType; expected"),
    "a tensor": (ROWS, "keys are those of a Tensor; expected"),
    "keys of mixed types": ({1: 2, "a": 3}, r"keys are \[1, 'a'\]; expected"),
    "odd height": ({**GOOD, "grid_thw": (1, 1, 32)}, r"\(1, 1, 32\): .* multiples of 2"),
    "odd width": ({**GOOD, "grid_thw": (2, 16, 1)}, r"\(2, 16, 1\): .* multiples of 2"),
    "zero frames": ({**GOOD, "grid_thw": (0, 8, 4)}, r"\(0, 8, 4\); expected three positive ints"),
    "zero height": ({**GOOD, "grid_thw": (1, 0, 4)}, r"\(1, 0, 4\); expected three positive ints"),
    "zero width": ({**GOOD, "grid_thw": (1, 8, 0)}, r"\(1, 8, 0\); expected three positive ints"),
    "negative": ({**GOOD, "grid_thw": (-1, -8, 4)}, r"\(-1, -8, 4\); expected three positive ints"),
    "float": ({**GOOD, "grid_thw": (1.0, 8, 4)}, r"\(1.0, 8, 4\); expected three positive ints"),
    "bool": ({**GOOD, "grid_thw": (True, 8, 4)}, r"\(True, 8, 4\); expected three positive ints"),
    "two numbers": ({**GOOD, "grid_thw": (8, 4)}, r"\(8, 4\); expected three positive ints"),
    "no numbers": ({**GOOD, "grid_thw": None}, "grid_thw is None; expected three positive ints"),
    "one number": ({**GOOD, "grid_thw": 32}, "grid_thw is 32; expected three positive ints"),
    "text": ({**GOOD, "grid_thw": "184"}, "grid_thw is 184; expected three positive ints"),
    "a batch of grids": (
        {**GOOD, "grid_thw": torch.tensor([[1, 8, 4]])},
        r"\[\[1, 8, 4\]\]; expected three positive ints",
    ),
    "float tensor": (
        {**GOOD, "grid_thw": torch.tensor([1.0, 8, 4])},
        r"\[1.0, 8.0, 4.0\]; expected three positive ints",
    ),
    "0-d tensor": ({**GOOD, "grid_thw": torch.tensor(32)}, "grid_thw is 32; expected"),
    "integers": (
        {**GOOD, "pixel_values": ROWS.to(torch.uint8)},
        "pixel_values is torch.uint8; expected a floating-point tensor",
    ),
    "complex": (
        {**GOOD, "pixel_values": ROWS.to(torch.complex64)},
        "pixel_values is torch.complex64; expected a floating-point tensor",
    ),
    "numpy": (
        {**GOOD, "pixel_values": ROWS.numpy()},
        "pixel_values is a ndarray; expected a floating-point tensor",
    ),
    "too few rows": (
        {**GOOD, "pixel_values": ROWS[:31]},
        r"pixel_values is \[31, 96\]; grid \(1, 8, 4\) needs \[32, 96\]",
    ),
    "too many rows": (
        {**GOOD, "grid_thw": (1, 4, 4)},
        r"pixel_values is \[32, 96\]; grid \(1, 4, 4\) needs \[16, 96\]",
    ),
    "other patch": (
        {**GOOD, "pixel_values": ROWS[:, :95]},
        r"pixel_values is \[32, 95\]; grid \(1, 8, 4\) needs \[32, 96\]",
    ),
    "batch axis": (
        {**GOOD, "pixel_values": ROWS[None]},
        r"pixel_values is \[1, 32, 96\]; grid \(1, 8, 4\) needs \[32, 96\]",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_malformed_item(name: str, tower: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    item, message = BAD[name]
    tower.setup_attn_metadata(64)
    tower.encode([GOOD])
    before = tower.encoder_stats()
    monkeypatch.setattr(tower, "encoder_forward", lambda *_: pytest.fail("work was done"))
    with pytest.raises(ValueError, match=f"^item 2: .*{message}"):
        tower.encode([GOOD, GOOD, item, None])
    assert tower.encoder_stats() == before


def test_grids_of_any_integer_kind(tower: Any) -> None:
    expected = tower.encode([GOOD])[0].features
    for grid in (
        [1, 8, 4],
        torch.tensor([1, 8, 4]),
        torch.tensor([1, 8, 4], dtype=torch.int32),
        np.array([1, 8, 4]),
        tuple(np.array([1, 8, 4])),
    ):
        assert torch.equal(tower.encode([{**GOOD, "grid_thw": grid}])[0].features, expected)


def test_rows_of_any_stride_and_float_type(tower: Any) -> None:
    capture(tower, budget=64, buckets=[(64, 4)])
    wide = torch.zeros(64, 200)
    wide[::2, 3:99] = ROWS
    for eager in (False, True):
        expected = tower.encode([GOOD], eager=eager)[0].features
        for rows in (
            wide[::2, 3:99],
            ROWS.T.contiguous().T,
            ROWS.double(),
            ROWS.clone().requires_grad_(),
        ):
            (out,) = tower.encode([{**GOOD, "pixel_values": rows}], eager=eager)
            assert torch.equal(out.features, expected)
            assert not out.features.requires_grad
        (half,) = tower.encode([{**GOOD, "pixel_values": ROWS.half()}], eager=eager)
        assert half.features.dtype == torch.float32
        assert torch.allclose(half.features, expected, rtol=1e-2, atol=1e-2)
        assert not torch.equal(half.features, expected)


def test_the_callers_rows_are_not_changed(tower: Any) -> None:
    capture(tower, budget=64, buckets=[(64, 4)])
    before = ROWS.clone()
    (out,) = tower.encode([GOOD])
    out.features.zero_()
    tower.encode([GOOD], eager=True)
    assert torch.equal(ROWS, before)


def test_unknown_output_names_what_there_is(tower: Any) -> None:
    (out,) = tower.encode([GOOD])
    with pytest.raises(AttributeError, match=r"no output 'summary'; .*'deepstack', 'features'"):
        _ = out.summary
