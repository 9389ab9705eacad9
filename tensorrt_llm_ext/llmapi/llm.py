# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""`LLM`: a model that answers about pictures, videos and sound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from os import PathLike
from types import TracebackType
from typing import Any, overload

from pydantic import ValidationError

from ..engine.engine import TorchEngine
from ..engine.errors import RequestError
from ..engine.loading import resolve_device
from ..engine.prompts import is_token_ids
from ..engine.results import RequestOutput
from ..graphs.lifecycle import refuse_impossible
from ..graphs.report import EncoderCacheStats, EncoderStats, StartupReport
from .llm_args import LlmArgs
from .mm_config import MultimodalConfig
from .problems import explain
from .sampling_params import SamplingParams

_ENGINES: dict[str, type[Any]] = {"torch": TorchEngine}
_BINDING = "tensorrt_llm_ext.trtllm"  # by name: this module imports no host but the embedded one


def _foreign_host(backend: str, device: str) -> Any:
    """The module of TensorRT-LLM as a host, where a backend name means that; else None."""
    if backend in _ENGINES or backend not in ("auto", "tensorrt_llm") or device == "cpu":
        return None
    available: bool = import_module(f"{_BINDING}.arrival").available()
    return import_module(f"{_BINDING}.host") if available else None


def engine_of(backend: str) -> type[Any]:
    """Engine class of a backend name, TensorRT-LLM apart; "auto" is the embedded engine.

    Args:
        backend: "auto", "torch" or "tensorrt_llm".

    Returns:
        The engine class.

    Raises:
        ValueError: No engine of that name is available here.
    """
    if backend == "auto":
        return _ENGINES.get("tensorrt_llm", _ENGINES["torch"])
    if backend not in _ENGINES:
        raise ValueError(
            f"backend {backend!r} is not available here (TensorRT-LLM is not installed or not "
            "bound); "
            f"available: {', '.join(sorted(_ENGINES))}. Use backend='torch' or 'auto'"
        )
    return _ENGINES[backend]


def make_engine(args: LlmArgs) -> Any:
    """The engine that the arguments ask for, loaded, its encoders captured.

    Args:
        args: Engine arguments.

    Returns:
        The engine.

    Raises:
        ValueError: The arguments, the checkpoint or the memory do not allow it to run.
    """
    engine_cls = engine_of(args.backend)
    # Here and nowhere else: an engine that was never asked cannot forget it.
    refuse_impossible(args.multimodal_config, engine_cls, resolve_device(args.device))
    return engine_cls(args)


class LLM:
    """A multimodal model, loaded, its encoders captured, ready to generate.

    Where TensorRT-LLM is the backend, by name or because it is installed, what is returned is
    TensorRT-LLM's own ``LLM`` (a subclass with ``startup_report``), and ``args`` are its arguments.

    Args:
        model: Checkpoint folder.
        backend: "auto", "torch" (the embedded engine) or "tensorrt_llm".
        multimodal_config: How the encoders run; a mapping or a model.
        **args: Every other field of :class:`LlmArgs`, such as ``device``, ``dtype``,
            ``max_seq_len``, ``kv_cache_config``, ``encoder_max_num_tokens``.

    Raises:
        ValueError: The arguments, the checkpoint or the memory do not allow the model to run.
    """

    def __new__(
        cls,
        model: str | PathLike[str],
        *,
        backend: str = "auto",
        multimodal_config: MultimodalConfig | Mapping[str, Any] | None = None,
        **args: Any,
    ) -> Any:
        """See the class."""
        host = _foreign_host(backend, str(args.get("device", "auto")))
        if host is None:
            return super().__new__(cls)
        return host.make_llm(model, multimodal_config, args)

    def __init__(
        self,
        model: str | PathLike[str],
        *,
        backend: str = "auto",
        multimodal_config: MultimodalConfig | Mapping[str, Any] | None = None,
        **args: Any,
    ) -> None:
        if "media_limits" in args:
            raise ValueError(
                "media_limits is for servers: LLM takes media that are decoded already; leave it "
                "out, or serve the model with trtllm-ext serve"
            )
        fields = {
            "model": model,
            "backend": backend,
            "multimodal_config": multimodal_config,
            **args,
        }
        if multimodal_config is None:
            del fields["multimodal_config"]
        try:
            self.args = LlmArgs.model_validate(fields)
        except ValidationError as error:
            raise ValueError(explain(error, "LLM", LlmArgs)) from error
        self._engine: Any = make_engine(self.args)

    @overload
    def generate(
        self,
        inputs: str | Mapping[str, Any] | list[int],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> RequestOutput: ...

    @overload
    def generate(
        self,
        inputs: Sequence[Any],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]: ...

    def generate(
        self,
        inputs: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> RequestOutput | list[RequestOutput]:
        """Generate text for one prompt or a list of prompts, batched together.

        Args:
            inputs: One prompt or a list. A prompt is a string, token ids, or a mapping with
                ``prompt``, ``prompt_token_ids`` or ``messages``, and ``multi_modal_data``.
                Pictures are PIL images or arrays; videos are lists of frames, arrays [T, H, W, 3]
                or ``{"frames": ..., "fps": ...}``, their frames used as given. Clips of sound are
                ``(samples, rate)``, or samples at the model's rate (16 kHz).
            sampling_params: For all prompts, or a list with one entry a prompt.

        Returns:
            One result for one prompt, a list for a list. In a list, a request that cannot be
            served comes back with ``error`` set and no outputs; the others are not affected.

        Raises:
            RequestError: The single prompt cannot be served.
            ValueError: The number of sampling parameters is not the number of prompts.
            EngineClosedError: ``shutdown`` was called.
            EncoderOnlyError: The model was loaded with ``mm_encoder_only``.
        """
        single = not isinstance(inputs, (list, tuple)) or is_token_ids(inputs)
        prompts = [inputs] if single else list(inputs)
        outputs: list[RequestOutput] = self._engine.generate(
            prompts, _params_list(sampling_params, len(prompts))
        )
        if not single:
            return outputs
        if outputs[0].error is not None:
            raise RequestError(outputs[0].error)
        return outputs[0]

    def encode_multimodal(self, data: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Encode pictures, videos and sound without generating.

        Args:
            data: ``{"image": [...], "video": [...], "audio": [...]}``.

        Returns:
            One output an item of each modality: ``features`` [tokens, out], dtype of the model,
            and what else the encoder gives (``deepstack``, or RADIO's ``summary``).

        Raises:
            RequestError: An item cannot be used.
            EngineClosedError: ``shutdown`` was called.
        """
        outputs: dict[str, list[Any]] = self._engine.encode_multimodal(data)
        return outputs

    @property
    def startup_report(self) -> StartupReport:
        """What was captured, dropped and why; memory and KV tokens."""
        report: StartupReport = self._engine.startup_report
        return report

    def encoder_stats(self) -> dict[str, EncoderStats]:
        """Counters of each encoder since start-up."""
        stats: dict[str, EncoderStats] = self._engine.encoder_stats()
        return stats

    def encoder_cache_stats(self) -> EncoderCacheStats:
        """Hits, misses, evictions and size of the encoder output cache since start-up."""
        stats: EncoderCacheStats = self._engine.encoder_cache_stats()
        return stats

    def clear_encoder_cache(self) -> None:
        """Forget all encoder outputs.

        Needed after encoder weights were written in a way that torch does not count: through
        ``.data`` or ``numpy()``, or where the weights were made in inference mode. Every other
        change is noticed.
        """
        self._engine.clear_encoder_cache()

    def shutdown(self) -> None:
        """Cancel what runs and release the encoder graphs. May be called twice."""
        self._engine.shutdown()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown()


def _params_list(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    """One set of sampling parameters a prompt."""
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    wrong = [p for p in params if not isinstance(p, SamplingParams)]
    if wrong:
        raise ValueError(f"sampling_params holds a {type(wrong[0]).__name__}; use SamplingParams")
    if len(params) != count:
        raise ValueError(
            f"{len(params)} sampling_params for {count} prompts; give one, or one a prompt"
        )
    return list(params)
