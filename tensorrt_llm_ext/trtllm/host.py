# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""``LLM(..., backend="tensorrt_llm")``: upstream's LLM, with our settings beside its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from ..graphs.lifecycle import refuse_impossible
from ..graphs.report import TowerReport
from ..llmapi.mm_config import MultimodalConfig
from ..llmapi.sampling_params import SamplingParams
from .arrival import DISABLE, disabled, register_now
from .config import plain, published
from .memory_file import MemoryFile, held_memory_file
from .registration import Registration
from .serve import split


def make_llm(
    model: str | PathLike[str],
    multimodal_config: MultimodalConfig | Mapping[str, Any] | None,
    args: Mapping[str, Any],
) -> Any:
    """Upstream's ``LLM``.

    Args:
        model: Checkpoint folder.
        multimodal_config: With entries of ours in ``encoder_cuda_graph``; its other keys are
            upstream's.
        args: Every other argument of upstream's ``LLM``; strict models of upstream check them.

    Returns:
        An instance of a subclass of upstream's class, which adds ``startup_report``.

    Raises:
        ValueError: TensorRT-LLM is not there, switched off or of no version that we know, or the
            configuration cannot work.
    """
    if disabled():
        raise ValueError(f"{DISABLE} is set: unset it, or use backend='torch'")
    registration = register_now()
    if registration.refusal and not registration.findings:
        raise ValueError(
            f"backend 'tensorrt_llm' is not available here: {registration.refusal}. Use "
            "backend='torch', or see `trtllm-ext doctor`"
        )
    values = {**args, "multimodal_config": multimodal_config}
    theirs, settings = split(values, fspath(model))
    if settings.graphs:
        _refuse_without_hook(settings.config(), registration)
    with held_memory_file("reports") as file:
        with published(settings.model_copy(update={"reports": file})):
            llm = _llm_class()(model=fspath(model), **theirs)
        llm.startup_report = read_reports(file)
    return llm


def _refuse_without_hook(config: MultimodalConfig, registration: Registration) -> None:
    import torch

    class TensorRTLLM:  # its name stands in the message
        supports_encoder_graph_lifecycle = registration.active

    device = "cuda" if torch.cuda.is_available() else "cpu"
    refuse_impossible(config, TensorRTLLM, torch.device(device))


def _llm_class() -> type[Any]:
    upstream: type[Any] = import_module("tensorrt_llm").LLM

    class LLM(upstream):
        """Upstream's, with what our towers reported at start-up; takes our parameters too.

        Attributes:
            startup_report: Reports of the towers by rank; empty where nothing was configured.
        """

        startup_report: dict[int, list[TowerReport]]

        def generate(self, inputs: Any, sampling_params: Any = None, *more: Any, **by: Any) -> Any:
            """See upstream's."""
            return super().generate(inputs, upstream_params(sampling_params), *more, **by)

        def generate_async(
            self, inputs: Any, sampling_params: Any = None, *more: Any, **by: Any
        ) -> Any:
            """See upstream's."""
            return super().generate_async(inputs, upstream_params(sampling_params), *more, **by)

    return LLM


def upstream_params(params: Any) -> Any:
    """Sampling parameters of ours as upstream's; upstream's own, and None, as they are.

    Args:
        params: One, or a list with one a prompt.
    """
    if isinstance(params, SamplingParams):
        return import_module("tensorrt_llm").SamplingParams(**plain(params))
    return [upstream_params(one) for one in params] if isinstance(params, list) else params


def read_reports(file: MemoryFile) -> dict[int, list[TowerReport]]:
    """What the ranks wrote, in order of ranks.

    Args:
        file: Where they wrote it.
    """
    lines = Path(file.path).read_text(encoding="utf-8").splitlines()
    reports = {}
    for rank, towers in sorted(json.loads(line) for line in lines):
        reports[rank] = [TowerReport.model_validate(tower) for tower in towers]
    return reports
