# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of upstream's checkpoint loaders."""

from .base_checkpoint_loader import BaseCheckpointLoader
from .hf.checkpoint_loader import HfCheckpointLoader

__all__ = ["BaseCheckpointLoader", "HfCheckpointLoader"]
