# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""schemathesis against the embedded server: whatever it makes of our OpenAPI, no answer is a 500.

    python benchmarks/fuzz_api.py --schemathesis .venv-schemathesis/bin/schemathesis

`make fuzz-api` makes the environment. A tiny Qwen3-VL is served, with short answers.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
from serving_bench.media import picture
from serving_bench.servers import Server

MODEL = "fuzzed"
LEAST_CASES = 1000
_SHOWN = ("/v1/chat/completions", "/v1/embeddings")
_ANSWER = re.compile(r" (\w+) '([^']*)' (\d{3}) in ")
CONFIG: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "max_batch_size": 4,
    "max_seq_len": 128,
    "encoder_max_num_tokens": 256,
    "kv_cache_config": {"max_tokens": 1024},
    "multimodal_config": {
        "encoder_cuda_graph": {"image": {"buckets": [[256, 4]], "search_seconds": 0}}
    },
}


def focus(schema: dict[str, Any]) -> dict[str, Any]:
    """Let what is generated get past the name of the model, and sometimes name a picture.

    Args:
        schema: The server's OpenAPI; changed in place.

    Returns:
        The same.
    """
    models = schema["components"]["schemas"]
    for name in ("ChatCompletionRequest", "EmbeddingsRequest"):
        models[name]["properties"]["model"] = {"type": "string", "enum": [MODEL]}
    part = picture(1, 64, 64)
    inputs = models["EmbeddingsRequest"]["properties"]["input"]
    inputs["items"] = {"anyOf": [{"enum": [part]}, inputs["items"]]}
    url = models["ImageUrl"]["properties"]["url"]
    models["ImageUrl"]["properties"]["url"] = {"anyOf": [{"enum": [part["image_url"]["url"]]}, url]}
    return schema


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code: 1 where an answer was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--schemathesis", default="schemathesis", help="the program")
    parser.add_argument("--max_examples", type=int, default=400, help="of each operation")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="fuzz_") as made, Server(Path(made) / "log") as server:
        work = Path(made)
        url, _ = server.serve_tiny(work, "qwen3_vl", CONFIG, MODEL)
        schema = httpx.get(f"{url}/openapi.json", trust_env=False).raise_for_status().json()
        (work / "openapi.json").write_text(json.dumps(focus(schema)))
        done = subprocess.run(
            [args.schemathesis, "run", "openapi.json", "--url", url, "--workers", "2",
             "--phases", "examples,coverage,fuzzing", "--checks", "not_a_server_error",
             "--max-examples", str(args.max_examples), "--seed", str(args.seed),
             "--warnings", "off"],
            cwd=work,
        )  # fmt: skip
        code = server.stop()
        found = problems(server.log.read_text(errors="replace"))
    if code != 0:
        found.append(f"the server ended with {code}")
    for problem in found:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if found or done.returncode else 0


def problems(log: str) -> list[str]:
    """What is wrong with a run, by the log of the server; its counts are printed.

    Args:
        log: A line for each answer.
    """
    counts = Counter(_ANSWER.findall(log))
    for (method, path, status), count in sorted(counts.items()):
        if path in _SHOWN:
            print(f"{count:6} {method} {path} {status}")
    total = sum(counts.values())
    print(f"{total:6} in all")
    found = []
    if total < LEAST_CASES:
        found.append(f"only {total} requests; at least {LEAST_CASES}")
    failed = sum(count for (_, _, status), count in counts.items() if status.startswith("5"))
    if failed:
        found.append(f"{failed} requests were answered 5xx")
    # If nothing was good enough to be answered, little was tried.
    for path in _SHOWN:
        if not counts["POST", path, "200"]:
            found.append(f"no request for {path} was good")
    return found


if __name__ == "__main__":
    sys.exit(main())
