# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""What all requests of one server share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..llmapi.llm_args import ServeConfig
from ..media import MediaDoor
from .engine_thread import EngineThread
from .errors import ApiError, engine_failed, shutting_down
from .intake import Intake
from .metrics import Metrics
from .options import HttpOptions

if TYPE_CHECKING:
    from .lifeline import Lifeline


class ServerState:
    """Engine, media, counters and whether the server goes on.

    Args:
        engine: The engine, loaded.
        config: What it was loaded with.
        options: Limits.
        stop_server: Called when the engine has failed.
    """

    def __init__(
        self,
        engine: Any,
        config: ServeConfig,
        options: HttpOptions,
        stop_server: Callable[[], None],
    ) -> None:
        self.options = options
        self.engine = engine
        self.model_name = options.served_model_name or model_name(config)
        self.encoder_only = config.mm_encoder_only
        self.draining = False
        self._created = int(time.time())
        self._lives: set[Lifeline] = set()
        self.thread = EngineThread(engine, stop_server)
        self.intake = Intake(
            MediaDoor(config.media_limits),
            workers=options.media_workers,
            max_decoded_bytes=options.max_decoded_bytes,
        )
        self.metrics = Metrics(
            engine.startup_report,
            snapshot=lambda: self.thread.snapshot,
            running=lambda: self.thread.num_running,
        )

    @contextmanager
    def listed(self, life: Lifeline) -> Iterator[None]:
        """Keep a request where :meth:`end_all` finds it."""
        self._lives.add(life)
        try:
            yield
        finally:
            self._lives.remove(life)

    def end_all(self) -> None:
        """End all requests: the server goes down."""
        for life in self._lives:
            life.end(shutting_down())

    def close(self, seconds: float) -> bool:
        """Stop engine and workers; False where the engine is stuck in a step."""
        self.intake.close()
        self.thread.stop()
        return self.thread.join(seconds)

    def unhealthy(self) -> str | None:
        """Why the server cannot serve, if so."""
        if self.thread.failed:
            return engine_failed().message
        stalled = self.thread.step_seconds()
        if stalled > self.options.engine_stall_timeout:
            return f"one engine step has been running for {stalled:.0f} seconds"
        return shutting_down().message if self.draining else None

    @property
    def model_card(self) -> dict[str, Any]:
        """The model, in OpenAI's form."""
        card = {"id": self.model_name, "object": "model", "created": self._created}
        return {**card, "owned_by": "tensorrt_llm_ext"}

    def check_model(self, name: str) -> None:
        """Refuse another model's name.

        Raises:
            ApiError: It is another's.
        """
        if name != self.model_name:
            raise ApiError(
                404,
                f"model {name!r:.100} is not served here; there is {self.model_name!r}",
                param="model",
                code="model_not_found",
            )


def model_name(config: ServeConfig) -> str:
    """What clients call a model by, unless told otherwise: the name of its folder."""
    return Path(config.model or "").resolve().name
