# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The line of ``enable_replay_stats``, on the console of a program that set up no logging."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from .layout import Eager, Replay, Step
from .report import EncoderStats

logger = logging.getLogger(__name__)
_package = logging.getLogger(__name__.partition(".")[0])


class _Console(logging.Handler):
    """Writes to stderr while nobody else handles the package's records."""

    def emit(self, record: logging.LogRecord) -> None:
        others = [h for h in _package.handlers if h is not self]
        if not others and not logging.getLogger().handlers:
            sys.stderr.write(self.format(record) + "\n")


_console = _Console()
_console.setFormatter(logging.Formatter("[%(asctime)s] [%(levelname)s] %(name)s: %(message)s"))


def log_encode_call(modality: str, counts: EncoderStats, steps: Sequence[Step]) -> None:
    """Logs what an encode call did, at INFO.

    The flag asks for the line, so it is shown unless the program has chosen otherwise: the
    package's level becomes INFO where none was set, and stderr takes its records where no handler
    does.
    """
    if _package.level == logging.NOTSET:
        _package.setLevel(logging.INFO)
    _package.addHandler(_console)  # once, however often
    logger.info(
        "encoder %s: items=%d tokens=%d padded=%d replays=%s eager=%s",
        modality,
        counts.items,
        counts.real_tokens,
        counts.padded_tokens,
        [step.bucket.label for step in steps if isinstance(step, Replay)],
        [step.reason.value for step in steps if isinstance(step, Eager)],
    )
