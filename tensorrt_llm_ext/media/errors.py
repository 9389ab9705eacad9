# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a part of a request."""

from __future__ import annotations

from typing import Literal

from ..engine.errors import RequestError

Status = Literal[400, 408, 413]


class MediaError(RequestError):
    """Media that a request brings or names cannot be used; nothing else is affected.

    The message names neither paths nor addresses, of memory or of hosts: it goes to whoever sent
    the request.

    Attributes:
        status: HTTP status: 413 too many bytes, 408 out of time, 400 everything else.
    """

    def __init__(self, message: str, status: Status = 400) -> None:
        super().__init__(message)
        self.status: Status = status
