# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``executor/worker.py``: one rank, in a process of its own (``spawn``, as MPI workers).

A fresh process knows external architectures only by the module names it is told (#18284).
"""

from __future__ import annotations

import gc
import pickle
import traceback
from typing import Any

from tensorrt_llm import _double
from tensorrt_llm.llmapi.llm_args import TorchLlmArgs


class GenerationExecutorWorker:
    def __init__(self, engine: str, llm_args: TorchLlmArgs, rank: int = 0) -> None:
        from tensorrt_llm._torch.pyexecutor.py_executor_creator import create_py_executor

        _double.rank = rank
        self.engine = create_py_executor(llm_args, checkpoint_dir=engine)

    def run(self, inputs: dict[str, Any], max_tokens: int) -> dict[str, Any]:
        return self.engine.run(inputs, max_tokens)

    def shutdown(self) -> None:
        """Executor, then (as they are collected) engines and models, then process groups."""
        executor, self.engine = self.engine, None
        if executor is None:
            return
        executor.shutdown()
        dist = executor.dist
        del executor
        gc.collect()
        dist.shutdown()


def worker_main(
    pipe: Any,
    engine: str,
    llm_args: TorchLlmArgs,
    rank: int = 0,
    external_model_modules: dict[str, str] | None = None,
) -> None:
    worker: GenerationExecutorWorker | None = None
    try:
        if external_model_modules:
            from tensorrt_llm._torch.models.modeling_utils import register_external_model_modules

            register_external_model_modules(external_model_modules)
        _double.rank = rank
        _double.record("worker_started", external=external_model_modules)
        worker = GenerationExecutorWorker(engine, llm_args, rank)
        pipe.send(("ready", None))
        while True:
            command, payload = pipe.recv()
            if command == "shutdown":
                break
            pipe.send(("result", worker.run(*payload)))
    except (EOFError, KeyboardInterrupt):
        pass
    except BaseException as error:  # noqa: BLE001  (the parent raises it)
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # noqa: BLE001
            error = RuntimeError(f"{type(error).__name__}: {error}")
        error.add_note(traceback.format_exc()) if hasattr(error, "add_note") else None
        pipe.send(("error", error))
    finally:
        if worker is not None:
            worker.shutdown()
        pipe.send(("down", None))
        pipe.close()
