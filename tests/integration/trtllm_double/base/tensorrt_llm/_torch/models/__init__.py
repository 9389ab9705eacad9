# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of upstream's model zoo: modules are imported when an architecture asks for them."""

from .modeling_auto import AutoModelForCausalLM

__all__ = ["AutoModelForCausalLM"]
