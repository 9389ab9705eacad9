# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Capture of a model's towers inside upstream's engine, once a process, the same on every rank."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from ..graphs.lifecycle import (
    refuse_unknown_modalities,
    setup_mm_encoder_cuda_graphs,
    validate_encoder_cuda_graphs,
)
from ..graphs.report import TowerReport
from ..graphs.runner import CaptureError
from ..llmapi.mm_config import MultimodalConfig
from .config import Settings, entries_of_upstream, received
from .nccl import nccl_window_owner
from .ranks import Ranks, first_difference
from .tower import HostTower

logger = logging.getLogger(__name__)

_captured: weakref.ref[HostTower] | None = None
"""A tower of the model that has this process's graphs."""


class RanksDisagreeError(RuntimeError):
    """A rank could not capture, and the configuration says that this stops the start-up."""


def settings_of(llm_args: Any = None, multimodal_config: Any = None) -> Settings:
    """The settings to capture with.

    Args:
        llm_args: Upstream's arguments as configured, if at hand.
        multimodal_config: Upstream's; by default that of the arguments.

    Returns:
        What was sent beside upstream's arguments, else what they hold.

    Raises:
        ValueError: What was sent, or what they hold, cannot work.
    """
    sent = received()
    if sent is not None:
        return sent
    if multimodal_config is None:
        multimodal_config = getattr(llm_args, "multimodal_config", None)
    budget = getattr(llm_args, "encoder_max_num_tokens", None)
    return Settings(
        graphs=entries_of_upstream(multimodal_config),
        max_num_tokens=budget or getattr(llm_args, "max_num_tokens", None),
    )


def refuse_without_towers(llm_args: Any) -> None:
    """What was asked for must not be lost in silence.

    Args:
        llm_args: Upstream's arguments.

    Raises:
        ValueError: Graphs were asked for through us, and the model has no tower of ours.
    """
    sent = received()
    if sent is None or getattr(llm_args, "disable_mm_encoder", False):
        return
    try:
        refuse_unknown_modalities(sent.config(), ())
    except ValueError as error:
        raise ValueError(
            f"{error} (no encoder of tensorrt_llm_ext, to be exact: the log says where upstream's "
            "was left in place, trtllm-ext doctor what is registered)"
        ) from error


def towers_of(model: nn.Module) -> dict[str, HostTower]:
    """Our towers in a model, by modality."""
    return {
        module.encoder_cuda_graph_modality: module
        for module in model.modules()
        if isinstance(module, HostTower)
    }


def capture_model(model: nn.Module, settings: Settings, ranks: Ranks) -> list[TowerReport]:
    """Captures a model's towers, unless another model of this process has graphs.

    Args:
        model: Weights loaded, metadata set up.
        settings: As configured.
        ranks: Who has to agree; called on every rank that has the model.

    Returns:
        A report per tower; none without towers.

    Raises:
        ValueError: The settings cannot work.
        RanksDisagreeError: A rank could not capture and ``on_capture_failure`` is ``raise``.
    """
    return capture_once(towers_of(model), model, settings, ranks)


def capture_once(
    towers: Mapping[str, HostTower], anchor: nn.Module, settings: Settings, ranks: Ranks
) -> list[TowerReport]:
    """As ``capture_model``, for towers at hand.

    Args:
        towers: By modality.
        anchor: When it is dropped, so are the graphs. Nothing in the towers refers to it, so that
            this does not wait for the garbage collector; upstream ends process groups later.
        settings: As configured.
        ranks: Who has to agree.
    """
    global _captured
    if not towers:
        return []
    owner = _captured() if _captured is not None else None
    if owner is not None and owner.has_graphs and owner not in towers.values():
        logger.warning(
            "a model of this process has encoder graphs already: the encoders of another one, such "
            "as a draft model, run eagerly"
        )
        return []
    reports = capture_together(towers, settings, ranks)
    first = next(iter(towers.values()))
    if first.has_graphs and owner is not first:
        _captured = weakref.ref(first)
        weakref.finalize(anchor, release, list(towers.values()))
    _write_report(reports, settings, ranks.rank)
    return reports


def release(towers: Iterable[HostTower]) -> None:
    """Gives the graphs of towers back; they run eagerly from then on."""
    for tower in towers:
        tower.release_encoder_cuda_graphs()


def capture_together(
    towers: Mapping[str, HostTower], settings: Settings, ranks: Ranks
) -> list[TowerReport]:
    """Captures on all ranks or on none.

    Args:
        towers: By modality.
        settings: As configured.
        ranks: Who has to agree.

    Returns:
        A report per tower.

    Raises:
        ValueError: The settings cannot work here or on another rank.
        RanksDisagreeError: See ``capture_model``.
    """
    config = settings.config()
    inner = {modality: tower.tower for modality, tower in towers.items()}
    validate = partial(validate_encoder_cuda_graphs, inner, config, settings.max_num_tokens)
    problems = ranks.gather((settings.model_dump_json(exclude={"report_dir"}), _problem(validate)))
    wrong = next(((r, text) for r, (_, text) in enumerate(problems) if text is not None), None)
    if wrong is not None:
        raise ValueError(wrong[1] if len(problems) == 1 else f"rank {wrong[0]}: {wrong[1]}")
    other = first_difference([sent for sent, _ in problems])
    if other is not None:
        reason = (
            f"rank {other} received other settings than rank 0; export TRTLLM_EXT_SIDE_CHANNEL to "
            "all of them, or configure through upstream's own arguments"
        )
        return _all_eager(towers, reason)
    reports, failure = _capture(inner, config, settings.max_num_tokens)
    failures = ranks.gather(failure)
    failed = next(((r, text) for r, text in enumerate(failures) if text is not None), None)
    if failed is None:
        return reports
    reason = failed[1] if len(failures) == 1 else f"rank {failed[0]}: {failed[1]}"
    eager = _all_eager(towers, reason)
    if any(entry.on_capture_failure == "raise" for entry in settings.graphs.values()):
        raise RanksDisagreeError(f"encoder graphs could not be captured: {reason}")
    return eager


def _problem(validate: Callable[[], None]) -> str | None:
    try:
        validate()
    except ValueError as error:
        return str(error)
    return None


def _capture(
    towers: Mapping[str, Any], config: MultimodalConfig, budget: int | None
) -> tuple[list[TowerReport], str | None]:
    """Reports, and what went wrong if anything did."""
    try:
        reports = setup_mm_encoder_cuda_graphs(towers, config, budget, nccl_window_owner())
    except (CaptureError, RuntimeError, ValueError) as error:  # the other ranks wait for an answer
        return [], f"{type(error).__name__}: {error}"
    eager = next((report for report in reports if report.status == "eager"), None)
    return reports, None if eager is None else f"{eager.modality}: {eager.reason}"


def _all_eager(towers: Mapping[str, HostTower], reason: str) -> list[TowerReport]:
    release(towers.values())
    logger.warning("encoders run eagerly on all ranks: %s", reason)
    return [TowerReport(modality=m, status="eager", reason=reason) for m in towers]


def _write_report(reports: Sequence[TowerReport], settings: Settings, rank: int) -> None:
    # The folder is of the machine that the engine was started on.
    if settings.report_dir is None or not Path(settings.report_dir).is_dir():
        for report in reports:
            logger.info("encoder %r: %s %s", report.modality, report.status, report.reason)
        return
    lines = [report.model_dump_json() for report in reports]
    Path(settings.report_dir, f"rank{rank}.jsonl").write_text("\n".join(lines), encoding="utf-8")
