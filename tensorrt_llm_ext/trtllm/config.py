# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Our settings beside upstream's: strict upstream models see only what they know.

The settings travel in one environment variable. Its name begins with TRTLLM, so that upstream's
MPI pool passes it to its workers, as every kind of spawn does. A launch over several nodes has to
export it on each (``mpirun -x``); ranks that received different settings say so and run eagerly.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from ..llmapi.mm_config import MODALITY_ALIASES, MultimodalConfig, MultimodalEncoderCudaGraphConfig
from ..llmapi.problems import explain
from .memory_file import MemoryFile
from .probe import LLM_ARGS, find

VARIABLE = "TRTLLM_EXT_SIDE_CHANNEL"
GRAPHS = "encoder_cuda_graph"
ENTRY_FIELDS = ("buckets", "enable_padding", "warmup_steps", "enable_replay_stats")
"""Fields of an entry that every version of upstream has."""
NEWER_ENTRY_FIELDS = ("max_batch_size", "max_num_tokens")
"""Fields that it has after #20213."""
_SIDE_STREAM = "encoder_side_stream_max_ahead"


class Settings(BaseModel):
    """What the capture needs to know.

    Attributes:
        graphs: Entries by modality.
        max_num_tokens: Encoder budget as configured (rows before any merger), not as a scheduler
            raised or the language model's limits clamped it; None: unknown.
        reports: Where ranks write what they captured, those of other machines apart.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    graphs: dict[str, MultimodalEncoderCudaGraphConfig] = {}
    max_num_tokens: int | None = None
    reports: MemoryFile | None = None

    def config(self) -> MultimodalConfig:
        """The same as the configuration that towers take."""
        return MultimodalConfig(encoder_cuda_graph=self.graphs or None)


def checked_graphs(multimodal_config: Any, source: str) -> MultimodalConfig:
    """Our part of a ``multimodal_config``: the entries, and what excludes them.

    Args:
        multimodal_config: A mapping, a model of ours or upstream's, or None.
        source: Who gave it, for messages.

    Raises:
        ValueError: An entry is wrong, or both spellings of a modality are given.
    """
    values = plain(multimodal_config)
    ours = {key: values[key] for key in (GRAPHS, _SIDE_STREAM) if values.get(key) is not None}
    try:
        return MultimodalConfig.model_validate(ours)
    except ValidationError as error:
        raise ValueError(explain(error, source, MultimodalConfig)) from error


def plain(value: Any) -> dict[str, Any]:
    """A mapping or a model as a dict of what was set in it; {} for None."""
    if value is None:
        return {}
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_unset=True)
    if isinstance(value, Mapping):
        return dict(value)
    raise ValueError(f"multimodal_config is a {type(value).__name__}; expected a mapping")


def configured_budget(values: Mapping[str, Any]) -> int:
    """The encoder's budget (rows before any merger); upstream's defaults are ours.

    Args:
        values: Arguments of ``LLM``, or a serve configuration.
    """
    return int(values.get("encoder_max_num_tokens") or values.get("max_num_tokens") or 8192)


def encoder_is_off(graphs: Iterable[str]) -> str:
    """What is wrong with entries where ``disable_mm_encoder`` is set.

    Args:
        graphs: Their modalities.
    """
    return (
        f"{GRAPHS} has entries for {', '.join(graphs)} and disable_mm_encoder is set: a process "
        "without encoders captures no graphs of them. Remove one of the two; in disaggregated "
        "serving the entries belong to the encoder's worker (mm_encoder_only)"
    )


def known_to_upstream(
    config: MultimodalConfig, spelling: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """The part of our entries that upstream's models take.

    Args:
        config: Ours.
        spelling: The key that upstream's model reads, by modality; others are left out.

    Returns:
        Entries by upstream's key, with upstream's fields; without entries that say their shapes in
        a way that the installed version does not know.
    """
    fields = set(entry_fields())
    entries = {}
    for modality, entry in (config.encoder_cuda_graph or {}).items():
        values = {k: v for k, v in entry.model_dump(exclude_unset=True).items() if k in fields}
        shapes = values.get("buckets") or values.get("max_batch_size")
        if shapes is not None and modality in spelling:
            entries[spelling[modality]] = {k: v for k, v in values.items() if v is not None}
    return entries


def entry_fields() -> tuple[str, ...]:
    """Fields of an ``encoder_cuda_graph`` entry in the installed version; () without one."""
    model = find(f"{LLM_ARGS}:MultimodalEncoderCudaGraphConfig")
    return tuple(model.model_fields) if model else ()


def entries_of_upstream(multimodal_config: Any) -> dict[str, MultimodalEncoderCudaGraphConfig]:
    """Entries that reached us through upstream's own model.

    Args:
        multimodal_config: Upstream's, or None.
    """
    graphs = getattr(multimodal_config, GRAPHS, None) or {}
    values = {key: plain(entry) for key, entry in graphs.items()}
    return checked_graphs({GRAPHS: values}, "multimodal_config").encoder_cuda_graph or {}


@contextmanager
def published(settings: Settings) -> Iterator[None]:
    """Processes that start meanwhile receive the settings.

    Args:
        settings: For this process too.
    """
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = settings.model_dump_json(exclude_unset=True)
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def received() -> Settings | None:
    """Settings of this process, None where nobody sent any.

    Raises:
        ValueError: The variable holds something else.
    """
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    try:
        return Settings.model_validate_json(text)
    except ValidationError as error:
        raise ValueError(
            f"{VARIABLE} does not hold what `LLM(...)` or `trtllm-ext serve` writes: "
            f"{explain(error, VARIABLE, Settings)}. Unset it"
        ) from error


def spelling_of(model_type: str) -> dict[str, str]:
    """The key that upstream's model reads for each modality.

    Args:
        model_type: Of config.json.
    """
    radio = any(name in model_type.lower() for name in ("nemotron", "radio"))
    alias = next(alias for alias, modality in MODALITY_ALIASES.items() if modality == "image")
    return {"image": alias if radio else "image"}
