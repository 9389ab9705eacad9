# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``tensorrt_llm.logger``: messages become events."""

from __future__ import annotations

from ._double import record


class Logger:
    def __init__(self) -> None:
        self._seen: set[object] = set()

    def _log(self, level: str, *args: object) -> None:
        record("log", level=level, message=" ".join(str(arg) for arg in args))

    def error(self, *args: object) -> None:
        self._log("error", *args)

    def warning(self, *args: object) -> None:
        self._log("warning", *args)

    def info(self, *args: object) -> None:
        self._log("info", *args)

    def debug(self, *args: object) -> None:
        self._log("debug", *args)

    def warning_once(self, *args: object, key: object) -> None:
        if key not in self._seen:
            self._seen.add(key)
            self.warning(*args)

    def set_level(self, level: str) -> None:
        self._log("debug", f"level {level}")


logger = Logger()
