# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The embedded engine: its constructor is the lifecycle, its steps serve requests."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, ClassVar

import torch

from ..graphs.lifecycle import refuse_unknown_modalities
from ..graphs.report import (
    EncoderCacheStats,
    EncoderStats,
    KvCacheReport,
    StartupReport,
    TowerReport,
)
from ..llmapi.llm_args import LlmArgs
from ..llmapi.sampling_params import SamplingParams
from ..towers import load_tower, modalities_of, setup_mm_encoder_cuda_graphs
from ..towers.checkpoint import read_config
from . import kv_cache, loading
from .encode_queue import EncodeQueue
from .encoder_cache import EncoderCache
from .encoders import Encoders
from .errors import EncoderOnlyError
from .families import family_of
from .generation import Generator
from .media_inputs import MediaInputs
from .prompts import PromptBuilder
from .results import RequestOutput, StepEvent
from .scheduler import Limits
from .step_loop import StepLoop
from .tokenizer import load_tokenizer

logger = logging.getLogger(__name__)


class TorchEngine:
    """torch and transformers on one device, with encoders of ours.

    Serving methods may be called from several threads.

    Args:
        args: Engine arguments.

    Raises:
        ValueError: The arguments, the checkpoint or the memory do not allow the engine to run.
    """

    supports_encoder_graph_lifecycle: ClassVar[bool] = True

    def __init__(self, args: LlmArgs) -> None:
        self.args = args
        self._phase_seconds: dict[str, float] = {}
        self._towers: dict[str, Any] = {}
        self._tower_reports: list[TowerReport] = []
        self._notices: list[str] = list(args.notices)
        self._loop: StepLoop | None = None
        self._encoders: Encoders | None = None
        self._cache_bytes = args.multimodal_config.encoder_cache_max_bytes
        self.kv_report: KvCacheReport | None = None
        with ExitStack() as on_failure:
            # A half-built engine must not keep graphs, or their memory, alive.
            on_failure.callback(self.shutdown)
            self._check()
            self._load_weights()
            self._setup_attn_metadata()
            self._capture_encoder_graphs()
            self._size_kv_cache()
            self._get_ready()
            on_failure.pop_all()

    # ---- lifecycle, in order ----

    def _check(self) -> None:
        with self._phase("check"):
            self.device = loading.resolve_device(self.args.device)
            self._folder = loading.check_folder(self.args.model)
            self._family = family_of(read_config(self._folder)["model_type"])
            # The lifecycle says so too, but only once weights are there.
            refuse_unknown_modalities(self.args.multimodal_config, modalities_of(self._folder))
            if not self.args.mm_encoder_only:
                trust = {"trust_remote_code": self.args.trust_remote_code}
                self._config = loading.load_config(self._folder, **trust)
                self._tokenizer = load_tokenizer(self._folder, self.args.tokenizer, **trust)
            self.dtype = loading.resolve_dtype(self.args.dtype, self._folder)

    def _load_weights(self) -> None:
        with self._phase("load weights"):
            for modality in modalities_of(self._folder):
                self._towers[modality] = load_tower(
                    self._folder, modality=modality, device=self.device, dtype=self.dtype
                )
            media = MediaInputs(self._folder, self._family, self._towers)
            self._encoders = Encoders(media, self._towers)
            self.encode_queue = EncodeQueue(
                self._encoders, self.args.encoder_batch_budget, self.args.encoder_token_budget
            )
            if self.args.mm_encoder_only:
                return
            self._loaded = loading.load_language_model(
                self._folder,
                self._config,
                family=self._family,
                stand_ins=loading.stand_ins(self._towers),
                dtype=self.dtype,
                device=self.device,
                tokenizer=self._tokenizer,
                trust_remote_code=self.args.trust_remote_code,
            )
            self._prompts = PromptBuilder(self._tokenizer, media, self._family, self._config)

    def _setup_attn_metadata(self) -> None:
        with self._phase("attention metadata"):
            for tower in self._towers.values():
                tower.setup_attn_metadata(max_num_tokens=self.args.encoder_token_budget)

    def _capture_encoder_graphs(self) -> None:
        """Validate all towers' settings together, then capture; without a setting, do nothing."""
        if not self.args.multimodal_config.encoder_cuda_graph:
            return
        with self._phase("capture"):
            self._tower_reports = setup_mm_encoder_cuda_graphs(
                self._towers,
                self.args.multimodal_config,
                max_num_tokens=self.args.encoder_token_budget,
            )

    def _size_kv_cache(self) -> None:
        """Encoders alone need none."""
        if self.args.mm_encoder_only:
            return
        with self._phase("size KV cache"):
            text = self._config.get_text_config()
            self._generator = Generator(self._loaded, self.device)
            per_token, per_request = kv_cache.kv_bytes_per_token(text, self.dtype), 0
            if not self._generator.shares_cache:
                per_token, per_request = self._generator.cache_bytes()
            self._state_tokens = -(-per_request // per_token)
            copies = kv_cache.layer_copies(self._config, shared=self._generator.shares_cache)
            reserved, captured = self._activation_reserve(), self._captured_buckets()
            while self.kv_report is None:
                try:
                    self.kv_report = kv_cache.size_kv_cache(
                        self.args.kv_cache_config,
                        free_bytes=kv_cache.free_memory(self.device),
                        reserved_bytes=reserved,
                        encoder_cache_bytes=self._cache_bytes,
                        graph_bytes=sum(r.graph_memory_bytes for r in self._tower_reports),
                        bytes_per_token=per_token,
                        layer_copies=copies,
                        max_seq_len=self.args.max_seq_len,
                    )
                except kv_cache.KvCacheTooSmallError as error:
                    if self._cache_bytes:  # before graphs: media may never come again
                        self._cache_bytes = 0
                    elif not self._give_up_graphs(error.missing_bytes):
                        raise
            wanted = self.args.multimodal_config.encoder_cache_max_bytes
            if self._cache_bytes < wanted:
                self._notice(
                    f"the encoder output cache was given up: beside {wanted:,} bytes of it the KV "
                    f"cache would not hold one request of max_seq_len {self.args.max_seq_len or 2}"
                    "; set a smaller encoder_cache_max_bytes"
                )
            lost = [bucket for bucket in captured if bucket not in self._captured_buckets()]
            if lost:
                self._notice(
                    f"encoder graphs were given up, largest first: {', '.join(lost)}. With them "
                    "the KV cache would not hold one request of max_seq_len "
                    f"{self.args.max_seq_len or 2}; set max_graph_memory to choose otherwise"
                )

    def _captured_buckets(self) -> list[str]:
        return [
            f"{report.modality} {bucket.num_tokens}x{bucket.max_segments}"
            for report in self._tower_reports
            for bucket in report.buckets
            if bucket.kept
        ]

    def _give_up_graphs(self, missing_bytes: int) -> bool:
        """Capture again with less memory, the encoder that took most first; False if none has any.

        All are released for it: memory of a shared pool comes back with its last graph.
        """
        left = {r.modality: r.graph_memory_bytes for r in self._tower_reports}
        entries = dict(self.args.multimodal_config.encoder_cuda_graph or {})
        if not any(left.values()):
            return False
        for modality in sorted(left, key=lambda m: -left[m]):
            cut = min(missing_bytes, left[modality])
            missing_bytes -= cut
            left[modality] -= cut
            if cut:
                smaller = {"max_graph_memory": left[modality], "on_capture_failure": "eager"}
                entries[modality] = entries[modality].model_copy(update=smaller)
        for tower in self._towers.values():
            tower.release_encoder_cuda_graphs()
        again = {m: self._towers[m] for m, num_bytes in left.items() if num_bytes}
        config = self.args.multimodal_config.model_copy(
            update={"encoder_cuda_graph": {m: entries[m] for m in again}}
        )
        reports = {
            r.modality: r
            for r in setup_mm_encoder_cuda_graphs(
                again, config, max_num_tokens=self.args.encoder_token_budget
            )
        }
        for i, report in enumerate(self._tower_reports):
            gone = TowerReport(
                modality=report.modality,
                status="eager",
                reason="the KV cache needs the memory of its graphs",
            )
            if report.graph_memory_bytes:
                self._tower_reports[i] = reports.get(report.modality, gone)
        return True

    def _get_ready(self) -> None:
        with self._phase("get ready"):
            if self._cache_bytes:
                self.encoders.cache = EncoderCache(self._cache_bytes, self._towers, self.device)
            if self.kv_report is not None:
                self._loop = self._make_loop(self.kv_report)
        self.startup_report = StartupReport(
            model=str(self.args.model),
            device=str(self.device),
            dtype=str(self.dtype).removeprefix("torch."),
            towers=self._tower_reports
            or [TowerReport(modality=m, status="off") for m in self._towers],
            kv_cache=self.kv_report,
            encoder_cache_bytes=self._cache_bytes,
            phase_seconds=self._phase_seconds,
            notices=self._notices,
        )

    def _make_loop(self, kv_report: KvCacheReport) -> StepLoop:
        limits = Limits(
            max_batch_size=self.args.max_batch_size,
            max_num_tokens=self.args.max_num_tokens,
            max_seq_len=self._max_seq_len(kv_report.tokens - self._state_tokens),
            kv_tokens=kv_report.tokens,
            encoder_items=self.args.encoder_batch_budget,
            encoder_rows=self.args.encoder_token_budget,
            state_tokens=self._state_tokens,
            shared_cache=self._generator.shares_cache,
        )
        return StepLoop(
            generator=self._generator,
            prompts=self._prompts,
            queue=self.encode_queue,
            limits=limits,
            eos_token_ids=self._loaded.eos_token_ids,
        )

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._phase_seconds[name] = time.perf_counter() - start

    def _max_seq_len(self, held: int) -> int:
        """The user's, else the model's, cut to what the KV cache holds; a cut is told."""
        wanted, positions = self.args.max_seq_len, self._loaded.max_positions
        if wanted is not None:
            if wanted > positions:
                self._notice(
                    f"max_seq_len is {wanted:,}, but the model was made for {positions:,} "
                    f"positions: answers may be wrong beyond them. Set max_seq_len={positions} or "
                    "less"
                )
            return wanted
        if positions <= held:
            return positions
        self._notice(
            f"max_seq_len is {held}: the model allows {positions}, the KV cache holds less"
        )
        return held

    def _notice(self, text: str) -> None:
        """Tell the user, at once and in the report."""
        logger.warning(text)
        self._notices.append(text)

    def _activation_reserve(self) -> int:
        """Peak of one step: the largest eager encoder run, then a full prefill or a full decode.

        Measured on CUDA, but for the logits of a decode, which are as large as they are. On a CPU
        an estimate of encoder run and prefill.
        """
        rows = min(self.args.max_num_tokens, self._loaded.max_positions)
        if self.args.max_seq_len is not None:
            rows = min(rows, self.args.max_seq_len)
        text, budget = self._config.get_text_config(), self.args.encoder_token_budget
        if self.device.type != "cuda":
            vision, size = self._config.vision_config, self.dtype.itemsize
            inner = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
            return kv_cache.estimate_peak(
                budget, vision.hidden_size, vision.intermediate_size, size
            ) + kv_cache.estimate_peak(rows, text.hidden_size, inner, size)
        encoder = 0
        for modality, tower in self._towers.items():
            largest = budget
            if modality == "image":  # a larger picture is encoded too, alone
                largest = max(budget, self.encoders.media.longest_segment(rows))
            peak = kv_cache.measure_peak(self.device, partial(tower.dry_run, largest))
            encoder = max(encoder, peak)
        prefill = kv_cache.measure_peak(self.device, lambda: self._generator.probe(rows))
        logits = self.args.max_batch_size * text.vocab_size * torch.float32.itemsize
        return encoder + max(prefill, logits)

    # ---- serving ----

    @property
    def encoders(self) -> Encoders:
        """The towers; they exist once the weights are loaded."""
        if self._encoders is None:
            raise RuntimeError("the engine is not ready: its constructor has not finished")
        return self._encoders

    @property
    def loop(self) -> StepLoop:
        """The step loop; it exists once the constructor is through.

        Raises:
            EncoderOnlyError: There is no language model.
        """
        if self.args.mm_encoder_only:
            raise EncoderOnlyError(
                "mm_encoder_only=True: no language model was loaded; use encode_multimodal, or "
                "make an LLM without it"
            )
        if self._loop is None:
            raise RuntimeError("the engine is not ready: its constructor has not finished")
        return self._loop

    def generate(
        self, prompts: Sequence[Any], params: Sequence[SamplingParams]
    ) -> list[RequestOutput]:
        """Serve a list of prompts to the end; see :meth:`StepLoop.generate`."""
        return self.loop.generate(prompts, params)

    def submit(self, inputs: Any, params: SamplingParams | None = None) -> int:
        """Queue a request; see :meth:`StepLoop.submit`."""
        return self.loop.submit(inputs, params)

    def step(self) -> list[StepEvent]:
        """Admit, encode, prefill and decode once; see :meth:`StepLoop.step`.

        Of a model with encoders alone, encode what the queue has.
        """
        if self.args.mm_encoder_only:
            self.encoders.check_open()
            self.encode_queue.step(wait=True)
            return []
        return self.loop.step()

    def cancel(self, request_id: int) -> StepEvent | None:
        """End a request now; see :meth:`StepLoop.cancel`."""
        return self.loop.cancel(request_id)

    def take(self, request_id: int) -> RequestOutput | None:
        """Hand over a finished request; see :meth:`StepLoop.take`."""
        return self.loop.take(request_id)

    def encode_multimodal(self, data: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Encode media without a prompt; see :meth:`Encoders.encode_multimodal`."""
        return self.encoders.encode_multimodal(data)

    def encoder_stats(self) -> dict[str, EncoderStats]:
        """Counters of each encoder since start-up."""
        return {modality: tower.encoder_stats() for modality, tower in self._towers.items()}

    def encoder_cache_stats(self) -> EncoderCacheStats:
        """Counters of the encoder output cache since start-up."""
        return self.encoders.cache_stats()

    def clear_encoder_cache(self) -> None:
        """Forget all encoder outputs; see :meth:`LLM.clear_encoder_cache`."""
        self.encoders.clear_cache()

    def shutdown(self) -> None:
        """Cancel what runs and release the encoder graphs. May be called twice."""
        if self._encoders is not None:
            self._encoders.close()
        if self._loop is not None:
            self._loop.close()
        for tower in self._towers.values():
            tower.release_encoder_cuda_graphs()
