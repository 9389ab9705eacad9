# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""AIPerf against the embedded server: pictures and sound, streaming, zero errors.

    python benchmarks/aiperf_check.py --aiperf .venv-aiperf/bin/aiperf

AIPerf's packages clash with ours, so that it lives in an environment of its own (`make test-aiperf`
makes it). A tiny Qwen3-Omni thinker is served; times say nothing about a real model.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from serving_bench.servers import Server
from soak import CONFIG

MODEL = "tiny-omni"
OUTPUT_TOKENS = 8
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_METRICS = (
    "request_count",
    "error_request_count",
    "time_to_first_token",
    "inter_token_latency",
    "request_latency",
    "request_throughput",
    "output_token_count",
    "image_throughput",
    "audio_duration",
)


def arguments(url: str, folder: Path, out: Path, requests: int) -> list[str]:
    """Arguments of `aiperf`.

    Args:
        url: The server.
        folder: The checkpoint, for its tokenizer.
        out: Folder of the results.
        requests: Requests that count.
    """
    options = {
        "model": MODEL,
        "tokenizer": str(folder),
        "endpoint-type": "chat",
        "url": url,
        "concurrency": "4",
        "request-count": str(requests),
        "warmup-request-count": "4",
        "isl": "32",
        "osl": str(OUTPUT_TOKENS),
        "extra-inputs": "ignore_eos:true",
        "image-batch-size": "2",
        "image-width-mean": "224",
        "image-height-mean": "224",
        "image-format": "png",
        "audio-length-mean": "1.5",
        "audio-batch-size": "1",
        "random-seed": "0",
        "ui": "none",
        "artifact-dir": str(out),
    }
    flags = ["--streaming", "--use-server-token-count", "--no-gpu-telemetry"]
    return ["profile", *(w for k, v in options.items() for w in (f"--{k}", v)), *flags]


def problems(exported: Mapping[str, Any], requests: int) -> list[str]:
    """What is wrong with an exported result.

    Args:
        exported: Contents of profile_export_aiperf.json.
        requests: Requests that were to be answered.
    """
    found = []
    answered = (exported.get("request_count") or {}).get("avg")
    if answered != requests:
        found.append(f"{answered} requests were answered, not {requests}")
    errors = (exported.get("error_request_count") or {}).get("avg") or 0
    if errors or exported.get("error_summary"):
        found.append(f"{errors:g} requests failed: {exported.get('error_summary')}")
    tokens = exported.get("output_token_count") or exported.get("output_sequence_length") or {}
    if not tokens.get("min") == tokens.get("max") == OUTPUT_TOKENS:
        found.append(f"answers have {tokens.get('min')} to {tokens.get('max')} tokens")
    return found


def kept(exported: Mapping[str, Any]) -> dict[str, Any]:
    """What is worth committing: nothing that names the machine or its folders."""
    metrics = {key: exported[key] for key in ("aiperf_version", *_METRICS) if key in exported}
    return {"note": "a tiny model on a CPU: counts matter, times do not", **metrics}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code: 1 where a request failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--aiperf", default="aiperf", help="the program")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--save", type=Path, metavar="FILE", help="where to keep the result")
    args = parser.parse_args(argv)
    with (
        tempfile.TemporaryDirectory(prefix="aiperf_") as made,
        Server(Path(made) / "log") as server,
    ):
        work = Path(made)
        url, folder = server.serve_tiny(work, "qwen3_omni_thinker", CONFIG, MODEL)
        # Told to be offline, AIPerf takes the path of a tokenizer for the name of one.
        environment = {key: value for key, value in os.environ.items() if key not in _OFFLINE}
        command = [args.aiperf, *arguments(url, folder, work / "out", args.requests)]
        subprocess.run(command, check=True, env=environment, cwd=work)
        exported = json.loads((work / "out" / "profile_export_aiperf.json").read_text())
        code = server.stop()
    found = problems(exported, args.requests)
    if code != 0:
        found.append(f"the server ended with {code}")
    for problem in found:
        print(f"error: {problem}", file=sys.stderr)
    if args.save is not None and not found:
        args.save.parent.mkdir(parents=True, exist_ok=True)
        args.save.write_text(json.dumps(kept(exported), indent=1) + "\n", encoding="utf-8")
    print(json.dumps(kept(exported), indent=1))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
