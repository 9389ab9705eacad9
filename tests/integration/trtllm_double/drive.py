# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Starts models in the double and writes what happened; a program, so that nothing leaks.

    python drive.py '{"runs": {"NAME": {"model": DIR, "llm": {...}}}}' RESULT_FOLDER

A run's ``via`` is ``upstream`` (``tensorrt_llm.LLM``), ``encoder`` (its ``MultimodalEncoder``) or
``ours`` (``LLM(backend="tensorrt_llm")`` of tensorrt_llm_ext); ``images`` counts pictures of the
request, ``rows_of`` names an earlier run whose embeddings are sent instead, ``hold`` counts bytes
allocated while the weights load, ``spawn`` wants worker processes, ``env`` are variables. ``spy``
records what our towers do (in this process) beside the double's own events. ``eval`` are
expressions. The result is ``RESULT_FOLDER/result.json``.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image


def pictures(model: str, count: int) -> list[Any]:
    """Random pictures of several sizes; normalised tensors of one size for the Nemotron family."""
    generator = np.random.default_rng(0)
    config = json.loads(Path(model, "config.json").read_text("utf-8"))
    if config["model_type"].startswith("nemotron"):
        rows = generator.standard_normal((count, 3, 64, 96), dtype=np.float32)
        return list(torch.from_numpy(rows))
    sizes = [(96, 128), (64, 64), (128, 64), (64, 96)]
    return [
        Image.fromarray(generator.integers(0, 255, (*sizes[i % 4], 3), dtype=np.uint8))
        for i in range(count)
    ]


def hold(count: int) -> None:
    """Keep memory from the moment the weights are loaded, as captured graphs do."""
    from tensorrt_llm._torch.pyexecutor.model_loader import ModelLoader

    load = ModelLoader.load

    @functools.wraps(load)
    def load_and_hold(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.held = torch.zeros(count, dtype=torch.uint8)
        return load(self, *args, **kwargs)

    ModelLoader.load = load_and_hold  # type: ignore[method-assign]


def spy() -> None:
    """Record captures, replays, weights and releases of our towers as events."""
    from tensorrt_llm_ext.graphs.runner import MultimodalEncoderGraphRunner
    from tensorrt_llm_ext.trtllm import lifecycle
    from tensorrt_llm_ext.trtllm.tower import HostTower

    def around(owner: Any, name: str, event: str, details: Any = lambda *_: {}) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            from tensorrt_llm import _double

            _double.record(event, **details(*args))
            return original(*args, **kwargs)

        setattr(owner, name, recorded)

    around(
        lifecycle,
        "setup_mm_encoder_cuda_graphs",
        "our_capture",
        lambda towers, config, budget, *_: {"budget": budget, "modalities": list(towers)},
    )
    around(lifecycle, "release", "our_release")
    around(MultimodalEncoderGraphRunner, "replay", "our_replay")
    around(HostTower, "load_weights", "our_weights")


def start(spec: dict[str, Any], args: dict[str, Any]) -> Any:
    if spec.get("via") == "ours":
        import tensorrt_llm_ext

        return tensorrt_llm_ext.LLM(spec["model"], backend="tensorrt_llm", **args)
    from tensorrt_llm import LLM, MultimodalEncoder

    upstream = MultimodalEncoder if spec.get("via") == "encoder" else LLM
    return upstream(spec["model"], **args)


def run(spec: dict[str, Any], log: Path, done: dict[str, dict[str, Any]]) -> dict[str, Any]:
    os.environ["TRTLLM_DOUBLE_LOG"] = str(log)
    os.environ["TLLM_WORKER_USE_SINGLE_PROCESS"] = "0" if spec.get("spawn") else "1"
    os.environ.update(spec.get("env", {}))
    out: dict[str, Any] = {}
    try:
        from tensorrt_llm import SamplingParams

        if spec.get("hold"):
            hold(spec["hold"])
        args = {"max_batch_size": 4, "max_num_tokens": 512, "encoder_max_num_tokens": 256}
        llm = start(spec, {**args, **spec.get("llm", {})})
        reports = getattr(llm, "startup_report", None)
        if isinstance(reports, dict):
            out["reports"] = {
                rank: [r.model_dump(mode="json") for r in of] for rank, of in reports.items()
            }
        images = pictures(spec["model"], spec.get("images", 2))
        for _ in range(spec.get("times", 1)):
            request = {"prompt": "hello"}
            if "rows_of" in spec:
                rows = torch.tensor(done[spec["rows_of"]]["embeddings"])
                request["multi_modal_embeddings"] = rows
            elif images:
                request["multi_modal_data"] = {"image": images}
            params = () if spec.get("via") == "encoder" else (SamplingParams(max_tokens=4),)
            answer = llm.generate(request, *params)
            out["tokens"] = list(answer.outputs[0].token_ids)
            if images:
                out["embeddings"] = answer.double_embeddings.tolist()
        llm.shutdown()
    except Exception as error:  # noqa: BLE001  (whatever it is, it is the result)
        out["error"] = f"{type(error).__name__}: {error}"
        out["traceback"] = traceback.format_exc()
    for name in spec.get("env", {}):
        del os.environ[name]
    lines = log.read_text("utf-8").splitlines() if log.exists() else []
    out["events"] = [json.loads(line) for line in lines]
    return out


def evaluate(expression: str) -> str:
    names = {"load": importlib.import_module, "torch": torch, "os": os}
    try:
        return repr(eval(expression, names))
    except Exception as error:  # noqa: BLE001  (likewise)
        return f"{type(error).__name__}: {error}"


def main() -> None:
    spec, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
    for module in spec.get("import", ()):
        importlib.import_module(module)
    if spec.get("spy"):
        spy()
    done: dict[str, dict[str, Any]] = {}
    for name, one in spec.get("runs", {}).items():
        done[name] = run(one, folder / f"{name}.jsonl", done)
    values = {name: evaluate(text) for name, text in spec.get("eval", {}).items()}
    result = {"runs": done, "eval": values}
    (folder / "result.json").write_text(json.dumps(result), "utf-8")


if __name__ == "__main__":
    main()
