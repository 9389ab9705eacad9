# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The parts of `benchmarks/serving.py` and of `benchmarks/soak.py`."""

import sys
from pathlib import Path

# Checkpoints are made by the functions that make the examples'.
EXAMPLES = str(Path(__file__).resolve().parents[2] / "examples")
if EXAMPLES not in sys.path:
    sys.path.append(EXAMPLES)
