# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Errors of the embedded engine."""

from __future__ import annotations


class RequestError(ValueError):
    """One request cannot be served; the engine and all other requests are fine.

    The message names the bad value, the limit and the fix.
    """


class EngineClosedError(RuntimeError):
    """The engine was shut down, so it takes no more requests."""


class EncoderOnlyError(RuntimeError):
    """The engine was made with ``mm_encoder_only``, so there is no language model."""
