# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double only: one language model for every architecture, of an embedding and a head.

Its weights come from the same checkpoint keys as upstream's; layers in between do not matter to an
encoder and are left out. ``weight_mapper`` is used as upstream's wrappers hand it on.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from .modeling_utils import register_auto_model


def _is_disagg() -> bool:
    return os.getenv("TLLM_MULTIMODAL_DISAGGREGATED", "0") == "1"


_is_mm_disagg = _is_disagg


class _Body(nn.Module):
    def __init__(self, vocab: int, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, width, dtype=dtype)


@register_auto_model("Glm5NextForCausalLM")
@register_auto_model("NemotronHForCausalLM")
@register_auto_model("Qwen3ForCausalLM")
@register_auto_model("Qwen3MoeForCausalLM")
class TextModel(nn.Module):
    def __init__(self, model_config: Any) -> None:
        super().__init__()
        self.model_config = model_config
        self.config = model_config.pretrained_config
        if getattr(self.config, "dtype", None) is None:
            self.config.dtype = torch.float32
        self.draft_config, self.draft_model = None, None
        config, dtype = self.config, model_config.torch_dtype
        self.model = _Body(config.vocab_size, config.hidden_size, dtype)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False, dtype=dtype)

    def infer_max_seq_len(self) -> int:
        return getattr(self.config, "max_position_embeddings", 2048)

    def load_weights(self, weights: dict[str, Any], weight_mapper: Any | None = None) -> None:
        found = {}
        for key, value in weights.items():
            for name in ("embed_tokens.weight", "lm_head.weight"):
                if key.endswith(name):
                    found[name] = value[:]
        with torch.no_grad():
            if "embed_tokens.weight" in found:
                self.model.embed_tokens.weight.copy_(found["embed_tokens.weight"])
            else:
                self.model.embed_tokens.weight.fill_(0.01)
            head = found.get("lm_head.weight", self.model.embed_tokens.weight)
            self.lm_head.weight.copy_(head)

    def next_tokens(self, rows: torch.Tensor, count: int) -> list[int]:
        """Double only: greedy "decoding" in which every encoder value counts."""
        state, out = rows.mean(dim=0), []
        for _ in range(count):
            token = int(self.lm_head(state).argmax())
            out.append(token)
            state = 0.5 * state + self.model.embed_tokens.weight[token]
        return out
