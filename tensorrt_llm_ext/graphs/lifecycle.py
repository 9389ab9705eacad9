# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""One capture lifecycle for all towers of a model: validate all, then capture each once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

import torch

from ..llmapi.mm_config import MultimodalConfig
from .backends import GraphBackend, PoolOwner, can_capture, graph_backend_for
from .buckets import Bucket
from .report import TowerReport


class CapturableTower(Protocol):
    """What the lifecycle needs of a tower."""

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        ...

    def configure_encoder_cuda_graph(
        self, config: MultimodalConfig, max_num_tokens: int | None = None
    ) -> None:
        """Selects the tower's own entry."""
        ...

    def planned_buckets(self) -> tuple[Bucket, ...]:
        """Shapes it would capture; raises ValueError for a configuration that cannot work."""
        ...

    def capture_encoder_cuda_graphs(self, backend: GraphBackend | None = None) -> TowerReport:
        """Captures them, once."""
        ...


def refuse_impossible(config: MultimodalConfig, engine_cls: type, device: torch.device) -> None:
    """Refuses a combination that cannot work, before any tower is built.

    Args:
        config: The multimodal configuration.
        engine_cls: Engine that is to run the towers. It has to say of itself that it captures
            between metadata set-up and KV sizing (``supports_encoder_graph_lifecycle = True``);
            one that says nothing counts as one that does not.
        device: Where the towers are to run.

    Raises:
        ValueError: Encoder graphs are configured and the side stream, the engine or the device
            rules them out.
    """
    if not config.encoder_cuda_graph:
        return
    fix = "Remove multimodal_config.encoder_cuda_graph to run the encoders eagerly"
    if config.encoder_side_stream_max_ahead > 0:
        raise ValueError(
            "encoder_side_stream_max_ahead="
            f"{config.encoder_side_stream_max_ahead} cannot go with encoder_cuda_graph: graphs "
            f"replay in one order on one stream. {fix}, or set encoder_side_stream_max_ahead: 0."
        )
    if getattr(engine_cls, "supports_encoder_graph_lifecycle", None) is not True:
        raise ValueError(
            f"engine {engine_cls.__name__} does not capture encoder graphs between metadata set-up "
            f"and KV sizing. {fix}, or use an engine with supports_encoder_graph_lifecycle = True "
            "(backend='torch')."
        )
    if not can_capture(device):
        raise ValueError(
            f"there is no graph backend for device {device}; allowed: cpu, cuda. {fix}."
        )


def refuse_unknown_modalities(config: MultimodalConfig, known: Collection[str]) -> None:
    """Refuses an entry for an encoder that the model does not have.

    Args:
        config: The multimodal configuration.
        known: Modalities of the model's encoders.

    Raises:
        ValueError: An entry's modality is not one of them.
    """
    for modality in config.encoder_cuda_graph or {}:
        if modality not in known:
            raise ValueError(
                f"encoder_cuda_graph has an entry for {modality!r}, but the model has no such "
                f"encoder; it has {sorted(known) or 'none'}. Remove the entry."
            )


def validate_encoder_cuda_graphs(
    towers: Mapping[str, CapturableTower],
    config: MultimodalConfig,
    max_num_tokens: int | None = None,
) -> None:
    """Hands every tower its part of the configuration, before any capture.

    Args:
        towers: Towers by modality.
        config: The multimodal configuration.
        max_num_tokens: Configured encoder budget (rows before any merger) for entries without a
            budget of their own; by default that of ``setup_attn_metadata``.

    Raises:
        ValueError: A configured modality has no tower, or an entry cannot work.
    """
    refuse_unknown_modalities(config, towers)
    for tower in towers.values():
        tower.configure_encoder_cuda_graph(config, max_num_tokens)
        tower.planned_buckets()


def setup_mm_encoder_cuda_graphs(
    towers: Mapping[str, CapturableTower],
    config: MultimodalConfig,
    max_num_tokens: int | None = None,
    owner: PoolOwner | None = None,
) -> list[TowerReport]:
    """Validates the configuration of every tower, then captures each in one shared pool.

    Args:
        towers: Towers by modality, weights loaded and ``setup_attn_metadata`` done.
        config: The multimodal configuration.
        max_num_tokens: Configured encoder budget (rows before any merger) for entries without a
            budget of their own; by default that of ``setup_attn_metadata``.
        owner: Of the pools.

    Returns:
        A report per tower.

    Raises:
        ValueError: A configured modality has no tower, or an entry cannot work. Raised before any
            capture.
    """
    validate_encoder_cuda_graphs(towers, config, max_num_tokens)
    if not config.encoder_cuda_graph:
        return [tower.capture_encoder_cuda_graphs() for tower in towers.values()]
    devices = {tower.device for tower in towers.values()}
    shared = {device: graph_backend_for(device, owner) for device in devices}
    reports = []
    for modality, tower in towers.items():
        entry = config.encoder_cuda_graph.get(modality)
        # One with a cap may be captured more than once, and memory comes back from a pool only
        # when all of its graphs are gone: it gets a pool of its own.
        capped = entry is not None and entry.max_graph_memory is not None
        pool = graph_backend_for(tower.device, owner) if capped else shared[tower.device]
        reports.append(tower.capture_encoder_cuda_graphs(pool))
    return reports
