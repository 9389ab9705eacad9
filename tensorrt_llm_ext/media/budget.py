# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""What the media of one request may take together."""

from __future__ import annotations

import threading

from .errors import MediaError


class Budget:
    """Counts down what one request may still take; its parts may be opened on several threads.

    Args:
        encoded: Bytes of files.
        decoded: Bytes of pixels and samples.
    """

    def __init__(self, encoded: int, decoded: int) -> None:
        self._lock = threading.Lock()
        self._encoded, self._encoded_left = encoded, encoded
        self._decoded, self._decoded_left = decoded, decoded

    def take_encoded(self, size: int) -> None:
        """Count bytes of a file.

        Raises:
            MediaError: The request has more than it may (413).
        """
        with self._lock:
            self._encoded_left -= size
            if self._encoded_left < 0:
                raise MediaError(
                    f"the media of the request have more than {self._encoded:,} bytes together; "
                    "send fewer or smaller ones",
                    413,
                )

    def take_decoded(self, size: int) -> None:
        """Count bytes of pixels or samples, before they are made.

        Raises:
            MediaError: The request has more than it may (400).
        """
        with self._lock:
            self._decoded_left -= size
            if self._decoded_left < 0:
                raise MediaError(
                    f"the media of the request take more than {self._decoded:,} bytes when "
                    "decoded; send fewer, smaller or shorter ones"
                )
