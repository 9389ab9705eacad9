# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""`multimodal_config`: how the encoders of a multimodal model run."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, field_validator, model_validator
from pydantic import Field as PydanticField
from typing_extensions import Self

from tensorrt_llm_ext.llmapi.base import (
    Bool,
    Field,
    GraphMemoryLimit,
    MemorySize,
    RowCount,
    SearchSeconds,
    StrictBaseModel,
    WarmupSteps,
    config_error,
)
from tensorrt_llm_ext.llmapi.upstream_fields import UpstreamKeysModel, upstream_fields

MODALITIES = ("audio", "image")
"""Keys of `encoder_cuda_graph` after normalisation."""
MODALITY_ALIASES = {"vision": "image"}

_TOKENS_ARE_ROWS = (
    "Tokens are rows of the encoder's input sequence (patches, for pictures and video) BEFORE the "
    "merger reduces them."
)


def _present(key: str) -> dict[str, Any]:
    """Schema: `key` is given and not null."""
    return {"required": [key], "properties": {key: {"not": {"type": "null"}}}}


class MultimodalEncoderCudaGraphConfig(StrictBaseModel):
    """Graph capture for the encoder of one modality.

    Say which shapes to capture with exactly one of `buckets` (explicit) and `max_batch_size`
    (automatic ladder). Tokens, here and in every field, are rows of the encoder's input sequence
    (patches, for pictures and video) before the merger reduces them: a 256x256 picture with patch
    size 16 has 256 tokens, whatever the language model sees of them.

    A context is a run of tokens that attend only to each other: one picture, one pair of video
    frames, one audio window.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [_present("buckets"), _present("max_batch_size")],
            "dependentSchemas": {
                "max_num_tokens": {
                    "anyOf": [
                        {"properties": {"max_num_tokens": {"type": "null"}}},
                        _present("max_batch_size"),
                    ]
                }
            },
        }
    )

    buckets: (
        Annotated[list[tuple[RowCount, RowCount]], PydanticField(min_length=1, max_length=512)]
        | None
    ) = Field(
        None,
        description="Shapes to capture, as [tokens, contexts] pairs with tokens >= contexts; "
        "sorted and without duplicates after validation. A captured bucket serves any number of "
        f"contexts up to its own. {_TOKENS_ARE_ROWS} "
        "Exactly one of buckets and max_batch_size is given.",
        status="prototype",
    )
    max_batch_size: RowCount | None = Field(
        None,
        description="Capture an automatic ladder of shapes for up to this many contexts (pictures, "
        "video frame pairs, chunks of one second of sound, which take 13 tokens each; not "
        "requests) in one encoder call. Exactly one of buckets and max_batch_size is given.",
        status="prototype",
    )
    max_num_tokens: RowCount | None = Field(
        None,
        description="Largest token count of the automatic ladder; only with max_batch_size, and "
        "not below it. Unset: encoder_max_num_tokens, else the LLM's max_num_tokens. "
        f"{_TOKENS_ARE_ROWS}",
        status="prototype",
    )
    enable_padding: Bool = Field(
        True,
        description="Let a batch replay in the next larger bucket, padded. Off: only batches of "
        "exactly a bucket's token count replay, all others run eagerly.",
        status="prototype",
    )
    warmup_steps: WarmupSteps = Field(
        2,
        description="Eager runs of each number of tokens before it is captured, which its buckets "
        "for short and for long segments share; from two on, one of them is the run that is timed.",
        status="prototype",
    )
    enable_replay_stats: Bool = Field(
        False,
        description="Log one line per encoder call and modality: buckets replayed, what ran "
        "eagerly and why, real and padded tokens.",
        status="prototype",
    )
    max_graph_memory: GraphMemoryLimit | None = Field(
        None,
        description="Upper limit of the memory that this encoder's graphs may take: a size "
        "('512MiB', '2GB'; binary units), a whole number of bytes (at least 1 MiB), or a fraction "
        "between 0 and 1 of the device memory that is free when capture starts. The least "
        "valuable buckets are dropped first. Unset: no limit.",
        status="prototype",
    )
    prune_slower_than_eager: Bool = Field(
        True,
        description="Drop a bucket whose replay is measured to be slower than the eager run and "
        "give its memory back.",
        status="prototype",
    )
    on_capture_failure: Literal["eager", "raise"] = Field(
        "eager",
        description="When a bucket cannot be captured: run the whole encoder eagerly and say why "
        "(eager), or stop the start-up (raise).",
        status="prototype",
    )
    self_check: Bool = Field(
        False,
        description="After capture, replay every bucket on random input and compare it with the "
        "eager run of the same bucket; one that differs is dropped and logged as an error.",
        status="prototype",
    )

    search_seconds: SearchSeconds = Field(
        10.0,
        description="Time that capture may spend on looking for the fastest form of its buckets. "
        "What it finds, and which buckets others replace at no cost, is kept on disk "
        "(TRTLLM_EXT_CACHE_DIR, by default ~/.cache/tensorrt_llm_ext) for the same device, "
        "versions and encoder. 0: none.",
        status="prototype",
    )

    @field_validator("buckets")
    @classmethod
    def _sort_buckets(cls, buckets: list[tuple[int, int]] | None) -> list[tuple[int, int]] | None:
        if buckets is None:
            return None
        for tokens, contexts in buckets:
            if tokens < contexts:
                raise config_error(
                    "bucket_too_small",
                    f"bucket [{tokens}, {contexts}] has fewer tokens than contexts; a bucket is "
                    f"[tokens, contexts] and every context has at least one token. Did you mean "
                    f"[{contexts}, {tokens}]?",
                )
        return sorted(set(buckets))

    @model_validator(mode="after")
    def _one_way_to_choose_shapes(self) -> Self:
        if self.buckets is not None and self.max_batch_size is not None:
            raise config_error(
                "buckets_and_max_batch_size",
                "buckets and max_batch_size exclude each other; keep buckets for explicit shapes "
                "or max_batch_size for an automatic ladder, and remove the other (or set it to "
                "null)",
            )
        if self.buckets is None and self.max_batch_size is None:
            raise config_error(
                "no_shapes",
                "one of buckets and max_batch_size is required, for example max_batch_size: 8; to "
                "run this encoder without graphs remove the entry",
            )
        if self.max_num_tokens is None:
            return self
        if self.max_batch_size is None:
            raise config_error(
                "max_num_tokens_without_max_batch_size",
                f"max_num_tokens ({self.max_num_tokens}) only applies to the automatic ladder of "
                "max_batch_size; with explicit buckets remove it",
            )
        if self.max_num_tokens < self.max_batch_size:
            raise config_error(
                "max_num_tokens_too_small",
                f"max_num_tokens ({self.max_num_tokens}) is below max_batch_size "
                f"({self.max_batch_size}), but every context has at least one token",
            )
        return self


def _known_modality(value: Any) -> Any:
    if value in MODALITIES or value in MODALITY_ALIASES:
        return value
    raise config_error(
        "unknown_modality",
        f"unknown modality {value!r}; allowed: audio, image (or its alias vision). Video runs on "
        "the image encoder: configure image",
    )


Modality = Annotated[str, BeforeValidator(_known_modality)]

_GRAPHS_AND_SIDE_STREAM: dict[str, Any] = {
    "properties": {
        "encoder_cuda_graph": {"type": "object", "minProperties": 1},
        "encoder_side_stream_max_ahead": {"type": "number", "exclusiveMinimum": 0},
    },
    "required": ["encoder_cuda_graph", "encoder_side_stream_max_ahead"],
}

if TYPE_CHECKING:

    class _UpstreamMultimodalKeys(UpstreamKeysModel):
        encoder_side_stream_max_ahead: int = 0
        encoder_scheduling_policy: str = "DEFAULT"
        video_pruning_rate: float | None = None
else:
    _UpstreamMultimodalKeys = upstream_fields("MultimodalConfig")


class MultimodalConfig(_UpstreamMultimodalKeys):
    """How the encoders of a multimodal model run. Graphs are off unless configured."""

    model_config = ConfigDict(json_schema_extra={"not": _GRAPHS_AND_SIDE_STREAM})

    encoder_cuda_graph: dict[Modality, MultimodalEncoderCudaGraphConfig] | None = Field(
        None,
        description="Graph capture by modality: image (alias vision; video runs on the same "
        "encoder) and audio. A modality without an entry runs eagerly; null or {} "
        "captures nothing.",
        status="prototype",
        json_schema_extra={
            "not": {"required": ["image", "vision"], "type": "object"},
            "propertyNames": {"enum": sorted([*MODALITIES, *MODALITY_ALIASES])},
        },
    )

    encoder_cache_max_bytes: MemorySize = Field(
        134217728,
        description="Device memory for finished encoder outputs, so that a picture, video or clip "
        "that comes again is neither preprocessed nor encoded; the least recently used go first. "
        "A number of bytes or a string such as 512MB or 1GiB; 0: off. The KV cache leaves it free. "
        "Where one request of max_seq_len would not fit beside it, it is given up, with a notice.",
        status="prototype",
    )

    @field_validator("encoder_cuda_graph")
    @classmethod
    def _resolve_aliases(
        cls, graphs: dict[str, MultimodalEncoderCudaGraphConfig] | None
    ) -> dict[str, MultimodalEncoderCudaGraphConfig] | None:
        if graphs is None:
            return None
        if "vision" in graphs and "image" in graphs:
            raise config_error(
                "modality_given_twice",
                "image and its alias vision are both given; they are the same encoder: keep one",
            )
        return {MODALITY_ALIASES.get(key, key): value for key, value in graphs.items()}

    @model_validator(mode="after")
    def _no_graphs_on_a_side_stream(self) -> Self:
        if self.encoder_cuda_graph and self.encoder_side_stream_max_ahead > 0:
            raise config_error(
                "graphs_and_side_stream",
                f"encoder_side_stream_max_ahead ({self.encoder_side_stream_max_ahead}) and "
                "encoder_cuda_graph exclude each other: a replay reads static buffers that a "
                "prefetch on a side stream would overwrite. Set encoder_side_stream_max_ahead to 0 "
                "or remove encoder_cuda_graph",
            )
        return self
