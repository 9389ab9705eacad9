# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Log lines as text or JSON, each with the id of the request it belongs to."""

from __future__ import annotations

import logging
import sys

from pythonjsonlogger.json import JsonFormatter
from transformers.utils import logging as transformers_logging

from .middleware import request_id
from .options import HttpOptions


class RequestIdFilter(logging.Filter):
    """Gives each record the id of the request that is being worked for."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add it; no record is dropped."""
        record.request_id = request_id.current.get()
        return True


def configure_logging(options: HttpOptions) -> None:
    """Send all log lines to standard error, warnings of Python too, and nothing that is no line.

    Libraries log warnings and worse only: what they log below may hold content of requests.

    Args:
        options: Level and format.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(RequestIdFilter())
    if options.log_format == "json":
        handler.setFormatter(
            JsonFormatter(
                ["asctime", "levelname", "name", "message", "request_id"],
                rename_fields={"asctime": "time", "levelname": "level", "name": "logger"},
            )
        )
    else:
        handler.setFormatter(
            logging.Formatter("%(asctime)s %(levelname)s %(name)s [%(request_id)s] %(message)s")
        )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    level = options.log_level.upper()
    logging.getLogger("tensorrt_llm_ext").setLevel(level)
    logging.captureWarnings(True)
    if options.log_format == "json" or not sys.stderr.isatty():
        transformers_logging.disable_progress_bar()  # of weights that are loaded
    transformers_logging.disable_default_handler()  # whose lines have a form of their own
    transformers_logging.enable_propagation()
