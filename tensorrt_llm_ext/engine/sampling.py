# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The next token of one request: transformers' logits processors and torch's multinomial."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ..llmapi.sampling_params import SamplingParams

_COLDEST, _HOTTEST = 1e-5, 1e30
"""Temperatures below are greedy in effect, those above uniform. In fp32, dividing by them would
give infinities, and probabilities that are none: an error that ends the whole batch."""

NO_TOKEN = -1
"""Drawn from scores that are no numbers (fp16 overflows, broken weights)."""


class Sampler:
    """Draws the tokens of one request; its random state is its own, so batch mates do not matter.

    The same seed gives the same tokens; a request without one has seed 0.

    Args:
        params: The request's sampling parameters.
        eos_token_ids: Ids held back until ``min_tokens`` tokens exist.
        device: Device of the logits.
    """

    def __init__(
        self, params: SamplingParams, eos_token_ids: Sequence[int], device: torch.device
    ) -> None:
        self._processors = LogitsProcessorList()
        if params.min_tokens and eos_token_ids:
            held_back = MinNewTokensLengthLogitsProcessor(
                prompt_length_to_skip=0,
                min_new_tokens=params.min_tokens,
                eos_token_id=list(eos_token_ids),
                device=str(device),
            )
            self._processors.append(held_back)
        self._generator: torch.Generator | None = None
        temperature = 1.0 if params.temperature is None else float(params.temperature)
        if params.greedy or temperature < _COLDEST:
            return
        if temperature != 1:
            self._processors.append(TemperatureLogitsWarper(min(temperature, _HOTTEST)))
        if params.top_k:
            self._processors.append(TopKLogitsWarper(params.top_k))
        if params.top_p is not None and params.top_p < 1:
            self._processors.append(TopPLogitsWarper(float(params.top_p)))
        self._generator = torch.Generator(device=device)
        self._generator.manual_seed(params.seed or 0)

    def next_token(self, logits: torch.Tensor, generated: Sequence[int]) -> torch.Tensor:
        """Draw one token.

        Args:
            logits: Float tensor [vocab] of the last position.
            generated: Tokens drawn so far.

        Returns:
            Int64 tensor [] on the logits' device, so that a batch is read back once. ``NO_TOKEN``
            where no score is the largest: drawing from NaN would end a GPU's context.
        """
        scores = logits[None].float()
        if self._processors:
            history = torch.tensor([list(generated)], dtype=torch.long, device=logits.device)
            scores = self._processors(history, scores)  # type: ignore[arg-type]
        usable = scores.max().isfinite()
        if self._generator is None:
            token = scores[0].argmax()
        else:
            probabilities = torch.where(usable, scores, 0.0).softmax(dim=-1)
            token = torch.multinomial(probabilities, 1, generator=self._generator)[0, 0]
        return torch.where(usable, token, NO_TOKEN)
