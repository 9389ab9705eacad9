# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Capture of a model's towers inside upstream's engine, once a process, the same on every rank."""

from __future__ import annotations

import json
import logging
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import nn

from ..graphs.lifecycle import (
    refuse_unknown_modalities,
    setup_mm_encoder_cuda_graphs,
    validate_encoder_cuda_graphs,
)
from ..graphs.report import TowerReport
from ..llmapi.mm_config import MultimodalConfig
from .config import GRAPHS, VARIABLE, Settings, encoder_is_off, entries_of_upstream, received
from .nccl import nccl_window_owner
from .ranks import Ranks, first_difference
from .tower import HostTower

logger = logging.getLogger(__name__)

_captured: weakref.ref[HostTower] | None = None
"""A tower of the model that has this process's graphs."""
_met: weakref.ref[HostTower] | None = None
"""A tower of the last model that had some: one without, beside it, is a draft model."""


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
    if _met is not None and _met() is not None:
        return
    if getattr(llm_args, "disable_mm_encoder", False):
        if sent is not None and sent.graphs:
            raise ValueError(f"{encoder_is_off(sent.graphs)}; {VARIABLE} brought them here")
        if asked := getattr(getattr(llm_args, "multimodal_config", None), GRAPHS, None):
            logger.warning(encoder_is_off(asked))  # upstream's own way is to ignore them
        return
    if sent is None:
        return
    try:
        refuse_unknown_modalities(sent.config(), ())
    except ValueError as error:
        raise ValueError(
            f"{error} (no encoder of tensorrt_llm_ext, to be exact: the log says where upstream's "
            "was left in place, trtllm-ext doctor what is registered; a worker of disaggregated "
            "serving whose encoders run elsewhere takes no entries)"
        ) from error


def towers_of(model: nn.Module) -> dict[str, HostTower]:
    """Our towers in a model, by modality."""
    return {
        module.encoder_cuda_graph_modality: module
        for module in model.modules()
        if isinstance(module, HostTower)
    }


class Statement(NamedTuple):
    """What a rank says before anything is captured.

    Attributes:
        settings: As JSON.
        problem: Why nothing can be captured, "" where it can.
        has_towers: Whether its model has towers of ours.
        refusal: Why it must not be that no rank's model has any, "" where it may.
        is_taken: Whether another model of the process has graphs.
    """

    settings: str = ""
    problem: str = ""
    has_towers: bool = True
    refusal: str = ""
    is_taken: bool = False


def capture_model(
    model: nn.Module, find_settings: Callable[[], Settings], ranks: Ranks, llm_args: Any = None
) -> list[TowerReport]:
    """Captures a model's towers, unless another model of this process has graphs.

    Args:
        model: Weights loaded, metadata set up.
        find_settings: The settings as configured. All ranks are told what it raises.
        ranks: Who has to agree; called on every rank, also where the model has no towers.
        llm_args: Upstream's arguments, if at hand.

    Returns:
        A report per tower; none without towers.

    Raises:
        ValueError: The settings cannot work, here or on another rank.
        RanksDisagreeError: A rank could not capture and ``on_capture_failure`` is ``raise``.
    """
    return capture_once(towers_of(model), model, find_settings, ranks, llm_args)


def capture_once(
    towers: Mapping[str, HostTower],
    anchor: nn.Module,
    find_settings: Callable[[], Settings],
    ranks: Ranks,
    llm_args: Any = None,
) -> list[TowerReport]:
    """As ``capture_model``, for towers at hand.

    Args:
        towers: By modality.
        anchor: When it is dropped, so are the graphs. Nothing in the towers refers to it, so that
            this does not wait for the garbage collector; upstream ends process groups later.
        find_settings: The settings as configured.
        ranks: Who has to agree.
        llm_args: Upstream's arguments, if at hand.
    """
    global _captured, _met
    owner = _captured() if _captured is not None else None
    taken = owner is not None and owner.has_graphs and owner not in towers.values()
    refusal = "" if towers else _refusal(llm_args)
    said = Statement(has_towers=bool(towers), refusal=refusal, is_taken=taken)
    settings, fault = Settings(), None
    try:
        settings = _checked(towers, find_settings(), ranks)
        said = said._replace(settings=settings.model_dump_json(exclude={"reports"}))
    except Exception as error:  # noqa: BLE001  (whatever it is, the other ranks wait for it)
        fault = error
        said = said._replace(problem=_told(error))
    everyone = ranks.gather(said)
    there = any(other.has_towers for other in everyone)
    wrong = _first([other.problem if there else other.refusal for other in everyone])
    if wrong:
        raise ValueError(wrong) from fault
    if towers:
        _met = weakref.ref(next(iter(towers.values())))
    if not there or any(other.is_taken for other in everyone):
        if towers:
            logger.warning(
                "a model of this process has encoder graphs already: the encoders of another one, "
                "such as a draft model, run eagerly"
            )
        return []
    reports = capture_together(towers, settings, everyone, ranks)
    first = next(iter(towers.values()), None)
    if first is not None and first.has_graphs and owner is not first:
        _captured = weakref.ref(first)
        weakref.finalize(anchor, release, list(towers.values()))
    _write_report(reports, settings, ranks.rank)
    return reports


def _checked(towers: Mapping[str, HostTower], settings: Settings, ranks: Ranks) -> Settings:
    ranks.refuse_to_guess(settings.graphs)
    if towers:
        inner = {modality: tower.tower for modality, tower in towers.items()}
        validate_encoder_cuda_graphs(inner, settings.config(), settings.max_num_tokens)
    return settings


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


def _refusal(llm_args: Any) -> str:
    try:
        refuse_without_towers(llm_args)
    except ValueError as error:
        return str(error)
    return ""


def _first(texts: Sequence[str]) -> str:
    """The first text, with its rank where there are several; "" where none has one."""
    rank = next((rank for rank, text in enumerate(texts) if text), None)
    if rank is None:
        return ""
    return texts[rank] if len(texts) == 1 else f"rank {rank}: {texts[rank]}"


def release(towers: Iterable[HostTower]) -> None:
    """Gives the graphs of towers back; they run eagerly from then on."""
    for tower in towers:
        tower.release_encoder_cuda_graphs()


def capture_together(
    towers: Mapping[str, HostTower],
    settings: Settings,
    statements: Sequence[Statement],
    ranks: Ranks,
) -> list[TowerReport]:
    """Captures on all ranks or on none.

    Args:
        towers: By modality; none where the encoders are other ranks'.
        settings: As configured.
        statements: Of all ranks, none with a problem.
        ranks: Who has to agree.

    Returns:
        A report per tower.

    Raises:
        RanksDisagreeError: See ``capture_model``.
    """
    other = first_difference([said.settings for said in statements])
    if other is not None:
        reason = (
            f"rank {other} received other settings than rank 0; export {VARIABLE} to all of them, "
            "or configure through upstream's own arguments"
        )
        return _all_eager(towers, reason)
    reports, failure = _capture(towers, settings.config(), settings.max_num_tokens)
    reason = _first(ranks.gather(failure))
    if not reason:
        return reports
    eager = _all_eager(towers, reason)
    if any(entry.on_capture_failure == "raise" for entry in settings.graphs.values()):
        raise RanksDisagreeError(f"encoder graphs could not be captured: {reason}")
    return eager


def _capture(
    towers: Mapping[str, HostTower], config: MultimodalConfig, budget: int | None
) -> tuple[list[TowerReport], str]:
    """Reports, and what went wrong, "" where nothing did."""
    if not towers:
        return [], ""
    inner = {modality: tower.tower for modality, tower in towers.items()}
    try:
        reports = setup_mm_encoder_cuda_graphs(inner, config, budget, nccl_window_owner())
    except Exception as error:  # noqa: BLE001  (whatever it is, the other ranks wait for an answer)
        return [], f"{type(error).__name__}: {error}"
    eager = next((report for report in reports if report.status == "eager"), None)
    return reports, "" if eager is None else f"{eager.modality}: {eager.reason}"


def _all_eager(towers: Mapping[str, HostTower], reason: str) -> list[TowerReport]:
    release(towers.values())
    logger.warning("encoders run eagerly on all ranks: %s", reason)
    return [TowerReport(modality=m, status="eager", reason=reason) for m in towers]


def _write_report(reports: Sequence[TowerReport], settings: Settings, rank: int) -> None:
    line = json.dumps([rank, [report.model_dump(mode="json") for report in reports]])
    if settings.reports is None or not settings.reports.append(f"{line}\n"):
        for report in reports:
            logger.info("encoder %r: %s %s", report.modality, report.status, report.reason)
