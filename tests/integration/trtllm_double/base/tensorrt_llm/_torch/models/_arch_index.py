# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``models/_arch_index.py``: where an architecture lives, without importing it.

Read at commit 065ff9e93780 (no GLM entry yet; modeling_glm5_next_vision.py came later). There is no
``Glm4v`` architecture in any version read.
"""

_ZOO_PACKAGE = "tensorrt_llm._torch.models"


def is_builtin_zoo_module(module_name: str) -> bool:
    return module_name == _ZOO_PACKAGE or module_name.startswith(_ZOO_PACKAGE + ".")


MODEL_ARCH_TO_MODULE = {
    "Glm5NextForCausalLM": "modeling_text",
    "Glm5NextForConditionalGeneration": "modeling_glm5_next_vision",
    "NemotronHForCausalLM": "modeling_text",
    "NemotronH_Nano_Omni_Reasoning_V3": "modeling_nemotron_nano",
    "NemotronH_Nano_VL_V2": "modeling_nemotron_nano",
    "NemotronH_Omni_Reasoning_V3": "modeling_nemotron_nano",
    "Qwen3ForCausalLM": "modeling_text",
    "Qwen3MoeForCausalLM": "modeling_text",
    "Qwen3VLForConditionalGeneration": "modeling_qwen3vl",
    "Qwen3VLMoeForConditionalGeneration": "modeling_qwen3vl_moe",
}
