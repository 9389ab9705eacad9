# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Numbers as the start-up page writes them."""

from __future__ import annotations


def show_tokens(value: float) -> str:
    """A count of tokens."""
    return f"{value:,.0f}"


def show_number(value: float) -> str:
    """A tick of a scale."""
    return f"{value:g}"


def show_ms(value: float | None) -> str:
    """Milliseconds, a dash for none."""
    return "-" if value is None else f"{value:.2f}"


def show_seconds(value: float) -> str:
    """Seconds."""
    return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"


def show_bytes(num_bytes: int) -> str:
    """Bytes in MiB or GiB."""
    return f"{num_bytes / 2**20:,.1f} MiB" if num_bytes < 2**30 else f"{num_bytes / 2**30:,.2f} GiB"
