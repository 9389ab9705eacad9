# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Ask a Qwen3-VL checkpoint about a picture, with its vision encoder captured as CUDA graphs.

    python examples/quickstart.py --model DIR --image FILE

Prints what was captured at start-up, the answer, and the encoder's counters. Then asks again with
encoder graphs off; the exit code is 1 if the two answers differ in any token, or, with
--require_replay, if the picture was not replayed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from PIL import Image
from transformers.utils import logging

from tensorrt_llm_ext import LLM, SamplingParams


def main() -> int:
    """Run the command line; returns the exit code."""
    args = parse_args()
    logging.disable_progress_bar()
    picture = Image.open(args.image).convert("RGB")
    question = [
        {
            "role": "user",
            "content": [
                {"type": "image", "image": picture},
                {"type": "text", "text": args.prompt},
            ],
        }
    ]
    sampling = SamplingParams(max_tokens=args.max_tokens)  # greedy unless told otherwise
    engine: dict[str, Any] = {"model": str(args.model), "device": args.device, "dtype": args.dtype}
    if args.encoder_max_num_tokens is not None:
        engine["encoder_max_num_tokens"] = args.encoder_max_num_tokens

    # The one setting that turns encoder graphs on. Everything else has a default.
    graphs = {"encoder_cuda_graph": {"image": {"max_batch_size": args.max_batch_size}}}
    with LLM(**engine, multimodal_config=graphs) as llm:
        print(llm.startup_report.render())
        result: Any = llm.generate({"messages": question}, sampling)  # a list for a list
        answer = result.outputs[0]
        stats = llm.encoder_stats()["image"]

    print(f"\n{args.image.name}, {picture.width} x {picture.height} pixels: {args.prompt}")
    print(f"Answer: {answer.text!r}")
    print(
        f"Encoder: {stats.items} picture of {stats.real_tokens} rows and {stats.padded_tokens} of "
        f"padding; replays {stats.replays or 'none'}, eager {stats.eager or 'none'}"
    )

    if args.require_replay and not stats.replays:
        print(
            "\nNo graph was replayed, and --require_replay asks for it: eager because of "
            f"{', '.join(stats.eager) or 'nothing, there was no picture'}. The table above says "
            "what was captured; raise --encoder_max_num_tokens if the picture has more rows."
        )
        return 1

    with LLM(**engine) as llm:
        result = llm.generate({"messages": question}, sampling)
        eager = result.outputs[0]
    if list(eager.token_ids) != list(answer.token_ids):
        print(f"\nWithout encoder graphs the answer is another one: {eager.text!r}")
        return 1
    print(f"Without encoder graphs: the same {len(eager.token_ids)} tokens.")
    return 0


def parse_args() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, required=True, help="checkpoint folder")
    parser.add_argument("--image", type=Path, required=True, help="picture file")
    parser.add_argument("--prompt", default="What is in this picture?")
    parser.add_argument("--max_tokens", type=int, default=16, help="length of the answer")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    parser.add_argument(
        "--max_batch_size", type=int, default=8, help="most pictures or frame pairs in one replay"
    )
    parser.add_argument(
        "--encoder_max_num_tokens",
        type=int,
        help="most patch rows in one encoder call; the largest graph has this many "
        "(default: the engine's max_num_tokens)",
    )
    parser.add_argument(
        "--require_replay", action="store_true", help="fail if the picture was encoded eagerly"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
