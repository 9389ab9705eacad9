# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The tensor-documentation check finds what it is there to find."""

from __future__ import annotations

from pathlib import Path

import check_tensor_docs
import pytest
from check_tensor_docs import check_source, parse_sections

GOOD = '''
import torch

class Tower:
    """A tower.

    Args:
        table: Positions, float32 [2304, hidden].
    """

    def __init__(self, table: torch.Tensor) -> None:
        self.table = table

    def encode(
        self, rows: torch.Tensor, count: int, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Encode rows.

        Args:
            rows: Patch rows [tokens, patch_dim],
                float32 or bfloat16.
            count: How many.
            bias (torch.Tensor, optional): Same shape and dtype as rows.

        Returns:
            Features [tokens / 4, out], dtype of the weights.
        """

    @property
    def scale(self) -> torch.Tensor:
        """Scale, a float32 scalar."""

    def _private(self, x: torch.Tensor) -> None:
        pass
'''


def messages(source: str) -> list[str]:
    return [f"{p.name}: {p.message}" for p in check_source(source, Path("module.py"))]


def test_documented_tensors_pass() -> None:
    assert messages(GOOD) == []


@pytest.mark.parametrize(
    ("remove", "put", "expected"),
    [
        ("[tokens, patch_dim],", "of a picture,", "encode: argument 'rows' {}; state its shape"),
        ("float32 or bfloat16.", "as given.", "encode: argument 'rows' {}; state its dtype"),
        ("Same shape and", "Added, any", "encode: argument 'bias' {}; state its shape"),
        (" rows: Patch", " row: Patch", "encode: argument 'rows' {} and is not described"),
        ("dtype of the weights", "packed", "encode: the returned value {}; state its dtype"),
        ("Returns:", "Gives:", "encode: the returned value {} and is not described"),
        ("float32 scalar", "number", "scale: the returned value {}; state its shape and dtype"),
        ("float32 [2304, hidden]", "float32", "__init__: argument 'table' {}; state its shape"),
    ],
    ids=["shape", "dtype", "optional", "argument", "return", "section", "property", "init"],
)
def test_what_is_missing_is_named(remove: str, put: str, expected: str) -> None:
    assert remove in GOOD
    assert messages(GOOD.replace(remove, put)) == ["Tower." + expected.format("is a tensor")]


def test_missing_docstring() -> None:
    source = "def f(x: Tensor): pass"
    assert messages(source) == ["f: takes or returns tensors, has no docstring"]
    assert messages("class B(A):\n    @override\n    def f(self, x: Tensor): pass") == []


@pytest.mark.parametrize(
    "annotation", ["list[torch.Tensor]", "'Tensor | None'", "torch.LongTensor"]
)
def test_tensors_inside_other_types_count(annotation: str) -> None:
    assert len(messages(f"def f(x: {annotation}):\n    'Doc.'")) == 1


def test_callables_of_tensors_do_not_count() -> None:
    assert messages("def f(run: Callable[[Tensor], Tensor]):\n    'Doc.'") == []


def test_dataclass_fields() -> None:
    source = (
        "@dataclass(frozen=True)\nclass Batch:\n"
        '    """Rows.\n\n    Attributes:\n        rows: {}\n    """\n    rows: torch.Tensor\n'
    )
    assert messages(source.format("Patch rows, float32 [tokens, dim].")) == []
    assert messages(source.format("Patch rows.")) == [
        "Batch: field 'rows' is a tensor; state its shape and dtype"
    ]


def test_sections_end_where_text_goes_on() -> None:
    doc = "Do it.\n\nArgs:\n    x: One\n        two.\n    y: Three.\n\nMore text:\n    y: other."
    assert parse_sections(doc) == {"Args": {"x": "x: One two.", "y": "y: Three."}}


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "good.py").write_text(GOOD)
    assert check_tensor_docs.main([str(tmp_path)]) == 0
    (tmp_path / "bad.py").write_text("def f(x: Tensor): pass")
    assert check_tensor_docs.main([str(tmp_path)]) == 1
    assert "bad.py:1: f: takes or returns tensors, has no docstring" in capsys.readouterr().out
