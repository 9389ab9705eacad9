# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Every configuration key of TensorRT-LLM's PyTorch backend and what happens to it here.

One row a key: name, upstream's default, treatment, and a note. The fields, the notices, the
refusals, the JSON schemas and `docs/upstream-keys.md` are all made from these rows. The rule behind
the treatments: a key that only tunes speed, memory layout or logging is *accepted without effect*
(with a notice); a key that would change answers, limits, topology, security or the API is *refused*
unless it has its default.
"""

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, WithJsonSchema
from pydantic import Field as PydanticField

from tensorrt_llm_ext.llmapi.base import (
    Bool,
    CountOrAll,
    Int,
    MemorySize,
    NonNegativeInt,
    Number,
    PositiveInt,
    Str,
    config_error,
    json_equal,
)

UPSTREAM_COMMIT = "0004396720054fd8e205cbf616f21f0b57c6b412"
"""Where the keys of the configuration were read."""
UPSTREAM_SAMPLING_COMMIT = "000a01de66f0eab4ab05640711f0253f50f5209c"
"""Where the keys of `SamplingParams` were read."""

Treatment = Literal["honoured", "accepted", "refused"]


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED = _Required()


@dataclass(frozen=True)
class UpstreamKey:
    """One upstream key.

    Attributes:
        key: The key as users write it.
        default: Upstream's default in its JSON form ({} for a block of defaults), or `REQUIRED`.
        treatment: What happens here.
        note: Why, and for a refused key what to do instead.
        type: The pydantic type that an accepted value is checked with.
        same_as_default: Further spellings of the default (refused keys only).
        null_means_default: An explicit null is the default (as upstream for this key).
    """

    key: str
    default: Any
    treatment: Treatment
    note: str
    type: Any = None
    same_as_default: tuple[Any, ...] = ()
    null_means_default: bool = False

    @property
    def field_name(self) -> str:
        """The attribute's name; pydantic allows no leading underscore."""
        return self.key.lstrip("_")

    @property
    def allowed(self) -> tuple[Any, ...]:
        """Values of a refused key that pass."""
        return (self.default, *self.same_as_default)


def _honoured(key: str, default: Any, note: str = "", *, null: bool = False) -> UpstreamKey:
    return UpstreamKey(key, default, "honoured", note, null_means_default=null)


def _accepted(key: str, default: Any, type_: Any, note: str) -> UpstreamKey:
    return UpstreamKey(key, default, "accepted", note, type=type_)


def _refused(key: str, default: Any, note: str, *same: Any) -> UpstreamKey:
    return UpstreamKey(key, default, "refused", note, same_as_default=same)


def _one_of(*values: Any) -> Any:
    """A `Literal` that tells true from 1, as JSON does."""

    def check(value: Any) -> Any:
        if any(json_equal(value, ok) for ok in values):
            return value
        raise config_error("one_of", f"must be one of {', '.join(map(json.dumps, values))}")

    return Annotated[Any, BeforeValidator(check), WithJsonSchema({"enum": list(values)})]


def _block(*keys: str) -> Any:
    """The type of a nested block without effect: a mapping (or null) of known keys."""

    def check(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise config_error("block_type", "must be a mapping or null")
        unknown = [key for key in value if key not in keys]
        if unknown:
            raise config_error(
                "block_unknown_key", f"unknown key {unknown[0]!r}; allowed: {', '.join(keys)}"
            )
        return value

    schema = {
        "type": ["object", "null"],
        "properties": {key: {} for key in keys},
        "additionalProperties": False,
    }
    return Annotated[Any, BeforeValidator(check), WithJsonSchema(schema)]


_TOPOLOGY = "The embedded engine runs on one device; for several use backend tensorrt_llm."
_RAY = "No Ray workers here; remove it or use backend tensorrt_llm."
_LORA = "LoRA is not supported by the embedded engine; merge the adapter into the checkpoint."
_NO_KERNELS = "TensorRT-LLM kernel choice; the embedded engine runs the transformers model."
_NO_SCHEDULER = "TensorRT-LLM scheduler tuning; the embedded engine batches at every step."
_NO_MAMBA = "No recurrent-state models here; remove it."
_NO_V2 = "Tuning of TensorRT-LLM's KV cache manager v2; remove it."
_POOLED = "The embedded engine has no block pool; memory layout only."
_EVENTS = "The embedded engine publishes no KV cache events; remove it."
_SERVE = "Serving is configured by trtllm-ext serve, not here; remove it."
_OBJECT = "A live object of TensorRT-LLM; it means nothing to the embedded engine. Remove it."
_STATS = "Iteration statistics of TensorRT-LLM's executor; use llm.encoder_stats()."
_NO_DECODE_GRAPHS = "Graphs of the language model; only the encoders are captured here."

# fmt: off  (one row a key reads better than one argument a line)
LLM_ARGS = (
    # what to load
    _honoured("model", REQUIRED, "A local checkpoint folder; may be left out of a file."),
    _honoured("tokenizer", None, "A folder; default: the model's."),
    _refused("tokenizer_mode", "auto", "Only fast tokenizers are used; remove it."),
    _refused("custom_tokenizer", None, "No import of tokenizer classes by name; set tokenizer."),
    _refused("post_processor_hook", None, "No import of hooks by name; filter the outputs."),
    _refused("skip_tokenizer_init", False, "Prompts are text and stop strings need the tokenizer."),
    _honoured("trust_remote_code", False),
    _honoured("dtype", "auto", "auto, float32, bfloat16 or float16."),
    _refused("revision", None, "Models are local folders; download the revision you want."),
    _refused("tokenizer_revision", None, "Tokenizers are local folders; download the revision."),
    _refused("model_kwargs", None, "Edit the config.json of the checkpoint instead."),
    _refused(
        "load_format",
        "auto",
        "Weights are loaded from safetensors; use a folder that has them.",
        "AUTO",
        0,
    ),
    _refused("checkpoint_loader", None, _OBJECT),
    _refused("checkpoint_format", None, "Only Hugging Face folders are loaded.", "HF"),
    _accepted(
        "checkpoint_io_policy",
        "auto",
        Literal["auto", "native", "rank_striped_read_ahead"],
        "Files are memory-mapped; affects loading time only.",
    ),
    _refused("mx_config", {}, "No ModelExpress weight transfer; load from a folder.", None),
    _refused("gms_config", {}, "No GPU Memory Service; load from a folder.", None),
    _refused(
        "generation_config",
        "trtllm",
        "Sampling defaults are not read from generation_config.json; set them in SamplingParams.",
    ),
    # parallelism
    _refused("tensor_parallel_size", 1, _TOPOLOGY),
    _refused("pipeline_parallel_size", 1, _TOPOLOGY),
    _refused("context_parallel_size", 1, _TOPOLOGY),
    _refused("gpus_per_node", None, _TOPOLOGY, 1),
    _refused("moe_cluster_parallel_size", None, _TOPOLOGY, 1, -1),
    _refused("moe_tensor_parallel_size", None, _TOPOLOGY, 1, -1),
    _refused("moe_expert_parallel_size", None, _TOPOLOGY, 1, -1),
    _refused("enable_attention_dp", False, _TOPOLOGY),
    _refused("attention_dp_config", None, _TOPOLOGY),
    _refused("enable_lm_head_tp_in_adp", False, _TOPOLOGY),
    _refused("pp_partition", None, _TOPOLOGY),
    _refused("cp_config", None, _TOPOLOGY),
    _refused("dwdp_config", None, _TOPOLOGY),
    _accepted(
        "allreduce_strategy",
        "AUTO",
        Literal[
            "AUTO",
            "NCCL",
            "UB",
            "MINLATENCY",
            "ONESHOT",
            "TWOSHOT",
            "LOWPRECISION",
            "MNNVL",
            "NCCL_SYMMETRIC",
        ]
        | None,
        "One device: nothing to reduce.",
    ),
    _refused("orchestrator_type", None, "The engine runs in this process; remove it."),
    _refused("ray_worker_extension_cls", None, _RAY),
    _refused("ray_placement_config", None, _RAY),
    _refused("ray_worker_nsight_options", None, _RAY),
    _refused("_mpi_session", None, _OBJECT),
    # limits
    _honoured("max_batch_size", 2048, "Requests decoded together.", null=True),
    UpstreamKey(
        "max_input_len",
        1024,
        "refused",
        "Set max_seq_len, which bounds prompt and output "
        "together; prompts have no bound of their own.",
        null_means_default=True,
    ),
    _honoured("max_seq_len", None, "Prompt and output; default: what the model was made for."),
    UpstreamKey(
        "max_beam_width", 1, "refused", "No beam search; remove it.", null_means_default=True
    ),
    _honoured("max_num_tokens", 8192, "Tokens of one step of the language model.", null=True),
    _honoured("encoder_max_batch_size", None, "Items of one encoder call; else max_batch_size."),
    _honoured(
        "encoder_max_num_tokens",
        None,
        "Rows before the merger of one encoder call; else max_num_tokens.",
    ),
    # blocks of their own
    _honoured("kv_cache_config", {}, "See below."),
    _honoured("multimodal_config", {}, "See below.", null=True),
    # what runs
    _honoured(
        "backend",
        "pytorch",
        "auto, torch (the embedded engine) or tensorrt_llm; default here: auto.",
    ),
    _honoured("mm_encoder_only", False, "Encoders alone: llm.encode_multimodal only."),
    _refused("disable_mm_encoder", False, "The encoder is what this package runs; remove it."),
    _refused("encode_only", False, "No embedding models; use llm.encode_multimodal for media."),
    _refused("enable_lora", False, _LORA),
    _refused("lora_config", None, _LORA),
    _refused("peft_cache_config", None, _LORA),
    _refused("speculative_config", None, "No speculative decoding; remove it."),
    _refused("decoding_config", None, "No speculative decoding; remove it."),
    _refused("guided_decoding_backend", None, "No guided decoding; remove it."),
    _refused("batched_logits_processor", None, _OBJECT),
    _refused("sparse_attention_config", None, "Attention is exact; remove it."),
    _refused("kv_cache_compression_config", None, "KV entries are kept as they are; remove it."),
    _refused("cache_transceiver_config", None, "No disaggregated serving; remove it."),
    _refused("kv_connector_config", None, "No KV cache connector; remove it."),
    _refused("sleep_config", None, "No sleep mode; call shutdown and build the LLM again."),
    _refused("force_dynamic_quantization", False, "No quantized layers; remove it."),
    _refused("gather_generation_logits", False, "Logits are not returned; remove it."),
    _refused("reasoning_parser", None, "The text is returned as generated; parse it yourself."),
    _refused("env_overrides", None, "Set environment variables before starting Python."),
    _refused("layer_wise_benchmarks_config", {}, "A calibration tool of TensorRT-LLM.", None),
    _refused("sampler_type", "auto", "Removed upstream too; remove it.", "TorchSampler"),
    _refused("sampler_force_async_worker", False, "A test switch of TensorRT-LLM; remove it."),
    _refused("enable_resource_governor", False, "No cache truncation at run time; remove it."),
    _refused("reorder_policy_config", None, "Requests are served in order of arrival."),
    # speed of the language model
    _accepted("attn_backend", "TRTLLM", Str, _NO_KERNELS),
    _accepted("enable_mla_skip_correction", False, Bool, _NO_KERNELS),
    _accepted(
        "mla_skip_correction_threshold",
        8.0,
        Annotated[Number, PydanticField(gt=0, le=32)],
        _NO_KERNELS,
    ),
    _accepted(
        "cuda_graph_config",
        {},
        _block(
            "mode",
            "batch_sizes",
            "max_batch_size",
            "enable_padding",
            "num_tokens",
            "max_num_token",
            "seq_lens",
            "max_seq_len",
        ),
        _NO_DECODE_GRAPHS + " Encoder graphs: multimodal_config.encoder_cuda_graph.",
    ),
    _refused(
        "encoder_cuda_graph_config",
        None,
        "It is for encoder-decoder models; for pictures "
        "and audio set multimodal_config.encoder_cuda_graph.",
    ),
    _accepted("enable_encoder_decoder_mixed_cuda_graph", True, Bool, _NO_DECODE_GRAPHS),
    _accepted(
        "prefill_cuda_graph_backend",
        "disabled",
        Literal["disabled", "piecewise", "breakable"],
        _NO_DECODE_GRAPHS,
    ),
    _accepted("prefill_capture_num_tokens", None, list[PositiveInt] | None, _NO_DECODE_GRAPHS),
    _accepted(
        "torch_compile_config",
        None,
        _block(
            "enable_fullgraph",
            "enable_inductor",
            "enable_piecewise_cuda_graph",
            "capture_num_tokens",
            "enable_userbuffers",
            "max_num_streams",
        ),
        "The language model is not compiled.",
    ),
    _refused("moe_config", {}, _NO_KERNELS + " Remove it.", None),
    _refused("nvfp4_gemm_config", {}, _NO_KERNELS + " Remove it.", None),
    _accepted("use_cute_dsl_blockscaling_mm", False, Bool, _NO_KERNELS),
    _accepted("use_cute_dsl_blockscaling_bmm", False, Bool, _NO_KERNELS),
    _accepted("use_cute_dsl_bf16_bmm", False, Bool, _NO_KERNELS),
    _accepted("use_cute_dsl_bf16_gemm", False, Bool, _NO_KERNELS),
    _accepted("use_fine_grained_sync", False, Bool, _NO_KERNELS),
    _accepted("enable_autotuner", True, Bool, _NO_KERNELS),
    _accepted("enable_min_latency", False, Bool, _NO_KERNELS),
    _accepted("enable_in_graph_sampling", False, Bool, _NO_KERNELS),
    _accepted("enable_speculative_beam_history_d2h", False, Bool, "No beam search."),
    _accepted("enable_low_latency_host_dispatch", False, Bool, _NO_SCHEDULER),
    _accepted("enable_layerwise_nvtx_marker", False, Bool, "Profiling markers of TensorRT-LLM."),
    # scheduling
    _accepted("enable_chunked_prefill", False, Bool, "Prompts are prefilled in one piece."),
    _accepted("disable_overlap_scheduler", False, Bool, _NO_SCHEDULER),
    _accepted("enable_early_first_token_response", False, Bool, _NO_SCHEDULER),
    _accepted("batch_wait_timeout_ms", 0, Annotated[Number, PydanticField(ge=0)], _NO_SCHEDULER),
    _accepted("batch_wait_timeout_iters", 0, NonNegativeInt, _NO_SCHEDULER),
    _accepted(
        "batch_wait_max_tokens_ratio",
        0,
        Annotated[Number, PydanticField(ge=0, le=1)],
        _NO_SCHEDULER,
    ),
    _refused("scheduler_config", {}, _NO_SCHEDULER + " Remove it.", None),
    _accepted("stream_interval", 1, PositiveInt, "Every token is streamed."),
    _accepted(
        "garbage_collection_gen0_threshold",
        20000,
        NonNegativeInt,
        "Python's own threshold is left alone.",
    ),
    # statistics
    _accepted("enable_iter_perf_stats", False, Bool, _STATS),
    _accepted("enable_iter_req_stats", False, Bool, _STATS),
    _accepted("print_iter_log", False, Bool, _STATS),
    _accepted("iter_stats_max_iterations", None, CountOrAll | None, _STATS),
    _accepted("request_stats_max_iterations", None, CountOrAll | None, _STATS),
    _accepted("max_stats_len", 1000, CountOrAll, _STATS),
    _accepted("return_perf_metrics", False, Bool, _STATS),
    _accepted("perf_metrics_max_requests", 0, NonNegativeInt, "Without effect upstream as well."),
    _refused("perf_metrics_output_dir", None, "No metrics files are written; remove it."),
    _refused("prometheus_metrics_config", None, _SERVE),
    _refused("enable_energy_metrics", False, "No energy metrics; remove it."),
    _refused("otlp_traces_endpoint", None, "No traces are sent; remove it."),
    _accepted(
        "telemetry_config",
        {},
        _block("disabled", "usage_context"),
        "This package collects and sends nothing.",
    ),
    # serving
    _refused("num_postprocess_workers", 0, _SERVE),
    _refused("postprocess_tokenizer_dir", None, _SERVE),
    _refused("num_serve_frontends", 1, _SERVE),
)

KV_CACHE = (
    _honoured(
        "max_tokens",
        None,
        "Taken as it is; free_gpu_memory_fraction then has no effect (upstream: the smaller).",
    ),
    _honoured(
        "free_gpu_memory_fraction",
        0.9,
        "Of what is free after the encoder graphs are "
        "captured; 0 is refused. On CPU: of the free host memory.",
    ),
    _refused("dtype", "auto", "KV entries have the model's dtype; remove it."),
    _refused("max_attention_window", None, "Attention sees the whole sequence; set max_seq_len."),
    _accepted("sink_token_length", None, NonNegativeInt | None, "Without effect upstream as well."),
    _refused("max_gpu_total_bytes", 0, "Set max_tokens, or free_gpu_memory_fraction."),
    _accepted("enable_block_reuse", True, Bool, "Requests share no KV entries; speed only."),
    _accepted("enable_partial_reuse", True, Bool, "Requests share no KV entries; speed only."),
    _accepted("copy_on_partial_reuse", True, Bool, "Requests share no KV entries; speed only."),
    _refused("block_reuse_config", {}, _NO_V2, None),
    _accepted("tokens_per_block", 32, PositiveInt, _POOLED),
    _accepted("use_uvm", False, Bool, _POOLED),
    _accepted("host_cache_size", None, MemorySize | None, "Nothing is offloaded to the host."),
    _refused("disk_cache_size", None, "Nothing is written to disk; remove it.", 0),
    _refused("disk_cache_path", None, "Nothing is written to disk; remove it."),
    _accepted("disk_prefetch_num_reqs", 0, NonNegativeInt, "Nothing is on disk to prefetch."),
    _accepted("secondary_offload_min_priority", None, Int | None, "Nothing is offloaded."),
    _refused("cross_kv_cache_fraction", None, "It is for encoder-decoder models; remove it."),
    _refused("event_buffer_max_size", 0, _EVENTS),
    _refused("kv_events_config", None, _EVENTS),
    _accepted("attention_dp_events_gather_period_ms", 5, NonNegativeInt, "No events here."),
    _accepted(
        "kv_cache_event_hash_algo",
        "auto",
        Literal["auto", "v1_block_key", "v2_sha256", "v2_sha256_64"],
        "No events here.",
    ),
    _accepted("iteration_stats_interval", 1, PositiveInt, _STATS),
    _accepted("use_kv_cache_manager_v2", "auto", _one_of(True, False, "auto"), _POOLED),
    _accepted("enable_swa_scratch_reuse", False, Bool, _POOLED),
    _accepted("max_util_for_resume", 0.95, Annotated[Number, PydanticField(gt=0, le=1)], _POOLED),
    _refused("pool_ratio", None, _NO_V2),
    _refused("avg_seq_len", None, _NO_V2),
    _refused("enable_kv_pool_rebalance", False, _NO_V2),
    _refused("kv_pool_rebalance_min_sampled_kv_caches", 2000, _NO_V2),
    _refused("kv_pool_rebalance_cooldown_secs", 120.0, _NO_V2),
    _refused("kv_pool_rebalance_target_ratio_update_interval", 100, _NO_V2),
    _refused("kv_pool_rebalance_ratio_threshold", 1.25, _NO_V2),
    _refused("kv_pool_rebalance_moving_average_decay", 0.9999, _NO_V2),
    _refused("kv_pool_rebalance_check_interval", 10, _NO_V2),
    _refused("fp8_context_mla_kv_len_cap", None, "No fp8 attention; remove it."),
    _refused("mamba_ssm_cache_dtype", "auto", _NO_MAMBA),
    _refused("mamba_ssm_stochastic_rounding", False, _NO_MAMBA),
    _refused("mamba_ssm_philox_rounds", 10, _NO_MAMBA),
    _refused("mamba_state_cache_interval", None, _NO_MAMBA),
    _refused("mamba_state_config", {}, _NO_MAMBA, None),
)

MULTIMODAL = (
    _honoured(
        "encoder_cuda_graph",
        None,
        "Keys: image (alias vision) and audio; an entry has buckets or max_batch_size.",
    ),
    _accepted(
        "encoder_side_stream_max_ahead",
        0,
        NonNegativeInt,
        "Encoders run on one stream. With encoder_cuda_graph: an error, as upstream.",
    ),
    _honoured(
        "encoder_cache_max_bytes",
        134217728,
        "Also a string such as 512MB or 1GiB; 0: off. Taken out of what the KV cache may have.",
    ),
    _accepted(
        "encoder_scheduling_policy",
        "DEFAULT",
        Literal["DISABLED", "DEFAULT", "EAGER"],
        "Items are encoded before their prompt is prefilled; timing only.",
    ),
    _refused(
        "video_pruning_rate",
        None,
        "No efficient video sampling: it changes what the model sees. Sample fewer frames instead.",
    ),
)

_NOT_SAMPLED = "The embedded engine has no such control; remove it."
_NOT_RETURNED = "Only token ids and text are returned; remove it."
_ONE_SEQUENCE = "One sequence a request, no beam search; submit the prompt several times."

SAMPLING = (
    _honoured("max_tokens", 32),
    _honoured("min_tokens", None),
    _honoured("temperature", None),
    _honoured("top_p", None),
    _honoured("top_k", None),
    _honoured("seed", None),
    _honoured("stop", None),
    _honoured("ignore_eos", False),
    _honoured("skip_special_tokens", True),
    *(
        _refused(key, None, "End-of-text tokens come from the checkpoint; use stop or ignore_eos.")
        for key in ("end_id", "pad_id", "stop_token_ids")
    ),
    *(
        _refused(key, None, _NOT_SAMPLED)
        for key in (
            "bad",
            "bad_token_ids",
            "embedding_bias",
            "logits_processor",
            "top_p_min",
            "top_p_reset_ids",
            "top_p_decay",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
            "no_repeat_ngram_size",
            "min_p",
            "lookahead_config",
            "guided_decoding",
            "truncate_prompt_tokens",
        )
    ),
    _refused("apply_batched_logits_processor", False, _NOT_SAMPLED),
    _refused("add_special_tokens", True, _NOT_SAMPLED),
    _refused("n", 1, _ONE_SEQUENCE),
    _refused("best_of", None, _ONE_SEQUENCE, 1),
    _refused("use_beam_search", False, _ONE_SEQUENCE),
    *(
        _refused(key, None, _ONE_SEQUENCE)
        for key in (
            "beam_search_diversity_rate",
            "length_penalty",
            "early_stopping",
            "beam_width_array",
        )
    ),
    *(
        _refused(key, None, _NOT_RETURNED)
        for key in ("logprobs", "prompt_logprobs", "additional_model_outputs")
    ),
    *(
        _refused(key, False, _NOT_RETURNED)
        for key in (
            "return_context_logits",
            "return_generation_logits",
            "return_encoder_output",
            "return_perf_metrics",
            "include_stop_str_in_output",
        )
    ),
    _refused("exclude_input_from_output", True, _NOT_RETURNED),
    _refused("detokenize", True, "Text is always returned; ignore it."),
    _refused("spaces_between_special_tokens", True, "The tokenizer decides; remove it."),
)

# fmt: on
UPSTREAM_KEYS: dict[str, tuple[UpstreamKey, ...]] = {
    "LlmArgs": LLM_ARGS,
    "KvCacheConfig": KV_CACHE,
    "MultimodalConfig": MULTIMODAL,
    "SamplingParams": SAMPLING,
}
"""The table, by the name of the model that carries the keys."""
