# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""A serve configuration as plain TensorRT-LLM takes it: what our keys stand for, in upstream's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..llmapi.mm_config import MultimodalEncoderCudaGraphConfig
from ..llmapi.upstream_keys import UPSTREAM_KEYS
from ..towers.checkpoint import read_config
from ..towers.loading import tower_without_weights
from ..towers.registry import registered_modalities
from .config import (
    ENTRY_FIELDS,
    GRAPHS,
    NEWER_ENTRY_FIELDS,
    checked_graphs,
    configured_budget,
    encoder_is_off,
    spelling_of,
)

_BLOCKS = {"kv_cache_config": "KvCacheConfig", "multimodal_config": "MultimodalConfig"}
_OUR_BACKENDS = ("auto", "torch", "tensorrt_llm")


@dataclass(frozen=True)
class Expanded:
    """The result of ``expand``.

    Attributes:
        values: What plain upstream takes.
        notes: What was left out or written otherwise, and why.
    """

    values: dict[str, Any]
    notes: tuple[str, ...]


def expand(values: Mapping[str, Any], model: str | Path | None = None) -> Expanded:
    """Writes a configuration in upstream's keys alone.

    Args:
        values: The configuration, as read.
        model: Checkpoint folder, of which config.json alone is read; by default the configuration's
            ``model``. Needed where graphs are configured: automatic shapes depend on the encoder,
            the key on what upstream's model reads.

    Returns:
        The configuration, valid for TensorRT-LLM without this package, before and after #20213.

    Raises:
        ValueError: An entry is wrong, both spellings of a modality are given, there is no such
            encoder or it is switched off, or the model is not known.
    """
    kept, notes = _upstream_keys(values, "LlmArgs", "")
    if kept.get("backend") in _OUR_BACKENDS:  # upstream has a key of that name, with other values
        del kept["backend"]
        notes.append("backend left out: upstream's own default is meant")
    kept.pop("model", None)  # an argument of trtllm-serve, not a key of its file
    for key, table in _BLOCKS.items():
        if isinstance(values.get(key), Mapping):
            kept[key], more = _upstream_keys(values[key], table, f"{key}.")
            notes += more
    config = checked_graphs(values.get("multimodal_config"), "multimodal_config")
    if not config.encoder_cuda_graph:
        return Expanded(kept, tuple(notes))
    if values.get("disable_mm_encoder"):
        raise ValueError(encoder_is_off(config.encoder_cuda_graph))
    source = model or values.get("model")
    if source is None:
        raise ValueError("graphs are configured and no model is named: give --model DIR")
    parsed = read_config(source)
    model_type, budget = parsed["model_type"], configured_budget(values)
    spelling, known = spelling_of(model_type), registered_modalities(model_type)
    entries = {}
    for modality, entry in config.encoder_cuda_graph.items():
        where = f"multimodal_config.{GRAPHS}.{modality}"
        if modality not in known:
            raise ValueError(f"{where}: {model_type} has no such encoder; it has {sorted(known)}")
        if modality not in spelling:
            notes.append(f"{where} left out: no model of upstream's reads it")
            continue
        entries[spelling[modality]] = _entry(entry, parsed, modality, budget, where, notes)
    kept["multimodal_config"][GRAPHS] = entries
    return Expanded(kept, tuple(notes))


def _upstream_keys(
    values: Mapping[str, Any], table: str, prefix: str
) -> tuple[dict[str, Any], list[str]]:
    known = {row.key for row in UPSTREAM_KEYS[table]}
    notes = [
        f"{prefix}{key} left out: not a key of upstream's" for key in values if key not in known
    ]
    return {key: value for key, value in values.items() if key in known}, notes


def _entry(
    entry: MultimodalEncoderCudaGraphConfig,
    parsed: Mapping[str, Any],
    modality: str,
    budget: int,
    where: str,
    notes: list[str],
) -> dict[str, Any]:
    given = entry.model_dump(exclude_unset=True, exclude_none=True)
    made = {key: given[key] for key in ENTRY_FIELDS if key in given}
    if entry.max_batch_size is not None:
        adapter = tower_without_weights(parsed, modality).make_io_adapter()
        buckets = adapter.buckets(
            explicit=None,
            max_segments=entry.max_batch_size,
            token_budget=entry.max_num_tokens or budget,
            enable_padding=entry.enable_padding,
        )
        shapes = sorted({(b.num_tokens, b.max_segments) for b in buckets})
        made["buckets"] = [list(shape) for shape in shapes]
        notes.append(
            f"{where}.max_batch_size written as {len(shapes)} buckets. Upstream's own graphs serve "
            "a bucket's number of contexts and no other; ours any up to it"
        )
    else:
        made["buckets"] = [list(shape) for shape in entry.buckets or ()]
    written = {*made, *NEWER_ENTRY_FIELDS}
    for key in sorted(given.keys() - written):
        notes.append(f"{where}.{key} left out: not a key of upstream's")
    return made
