# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``executor/proxy.py``: the parent's side of spawned workers."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
from typing import Any

from tensorrt_llm.llmapi.llm_args import TorchLlmArgs

from .worker import worker_main


def _free_port() -> str:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


class GenerationExecutorProxy:
    def __init__(self, engine: str, llm_args: TorchLlmArgs) -> None:
        from tensorrt_llm._torch.models.modeling_utils import export_external_model_modules

        external = export_external_model_modules()
        context = multiprocessing.get_context("spawn")
        os.environ["MASTER_PORT"] = _free_port()
        self._workers = []
        for rank in range(llm_args.tensor_parallel_size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=worker_main, args=(theirs, engine, llm_args, rank, external)
            )
            process.start()
            theirs.close()
            self._workers.append((process, ours))
        try:
            self._replies("ready")
        except BaseException:
            self.shutdown()
            raise

    def _replies(self, wanted: str) -> list[Any]:
        replies = []
        for _, pipe in self._workers:
            kind, value = pipe.recv()
            if kind == "error":
                raise value
            if kind != wanted:
                raise RuntimeError(f"worker said {kind!r} instead of {wanted!r}")
            replies.append(value)
        return replies

    def run(self, inputs: dict[str, Any], max_tokens: int) -> dict[str, Any]:
        for _, pipe in self._workers:
            pipe.send(("run", (inputs, max_tokens)))
        return self._replies("result")[0]

    def shutdown(self) -> None:
        workers, self._workers = self._workers, []
        for process, pipe in workers:
            if process.is_alive():
                with contextlib.suppress(OSError):
                    pipe.send(("shutdown", None))
        for process, pipe in workers:
            process.join(60)
            if process.is_alive():
                process.terminate()
            pipe.close()
