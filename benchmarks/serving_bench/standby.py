# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""A server process: imports everything, says so, and serves once it is told what.

Run by ``servers.Server``. Imports take longer than anything else at start-up and need no GPU, so
that several processes can be past them while another is measured.
"""

from __future__ import annotations

import importlib
import json
import sys

MODULES = (
    "torch",
    "transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe",
    "transformers.models.qwen3_vl.modeling_qwen3_vl",
    "tensorrt_llm_ext.llmapi.llm",
    "tensorrt_llm_ext.commands.serve",
)


def main() -> None:
    """Waits for a line with the arguments of `trtllm-ext`; leaves where none comes."""
    for name in MODULES:
        importlib.import_module(name)
    from tensorrt_llm_ext.cli import main as trtllm_ext

    print("ready", flush=True)
    line = sys.stdin.readline()
    if line:
        trtllm_ext(json.loads(line))


if __name__ == "__main__":
    main()
