# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The line of ``enable_replay_stats``: shown unless the program has chosen otherwise."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator

import pytest

from tensorrt_llm_ext.graphs.buckets import Bucket, EagerReason
from tensorrt_llm_ext.graphs.layout import Eager, Replay, SegmentRun
from tensorrt_llm_ext.graphs.replay_log import log_encode_call
from tensorrt_llm_ext.graphs.report import EncoderStats

RUN = (SegmentRun(0, 0, 2, 0, 0, 24),)
STEPS = [
    Replay(RUN, (8, 16), Bucket(64, 2)),
    Eager(RUN, (8, 16), EagerReason.TOO_MANY_TOKENS),
    Replay(RUN, (8, 16), Bucket(32, 2)),
]
PACKAGE = logging.getLogger("tensorrt_llm_ext")


@contextlib.contextmanager
def no_logging_yet() -> Iterator[None]:
    """As in a program that has set up nothing; pytest itself listens at the root."""
    loggers = (logging.getLogger(), PACKAGE)
    before = [logger.handlers for logger in loggers]
    level = PACKAGE.level
    for logger in loggers:
        logger.handlers = []
    PACKAGE.setLevel(logging.NOTSET)
    try:
        yield
    finally:
        for logger, handlers in zip(loggers, before, strict=True):
            logger.handlers = handlers
        PACKAGE.setLevel(level)


def log() -> None:
    counts = EncoderStats()
    counts.record(3, STEPS)
    log_encode_call("image", counts, STEPS)


def test_a_program_without_logging_sees_each_call_once(capsys):
    with no_logging_yet():
        log()
        log()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0].endswith(
        "[INFO] tensorrt_llm_ext.graphs.replay_log: encoder image: items=3 tokens=72 padded=48 "
        "replays=['64x2', '32x2'] eager=['too_many_tokens']"
    )


@pytest.mark.parametrize("name", ["tensorrt_llm_ext", ""])
def test_a_handler_of_the_program_is_the_only_one(name, capsys):
    text = io.StringIO()
    with no_logging_yet():
        logging.getLogger(name).addHandler(logging.StreamHandler(text))
        log()
    assert capsys.readouterr().err == ""
    assert text.getvalue().count("encoder image") == 1


def test_a_level_of_the_program_stays(capsys):
    with no_logging_yet():
        PACKAGE.setLevel(logging.WARNING)
        log()
        assert PACKAGE.level == logging.WARNING
    assert capsys.readouterr().err == ""
