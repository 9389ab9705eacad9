# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Double of ``pyexecutor/py_executor_creator.py``: engines, estimation, then the executor."""

from __future__ import annotations

from typing import Any

from tensorrt_llm import _double
from tensorrt_llm.llmapi.llm_args import TorchLlmArgs
from tensorrt_llm.mapping import Mapping

from ..distributed import Distributed
from ._util import KvCacheCreator
from .model_engine import PyTorchModelEngine
from .py_executor import PyExecutor


def create_py_executor(
    llm_args: TorchLlmArgs,
    checkpoint_dir: str | None = None,
    tokenizer: Any = None,
    profiling_stage_data: dict | None = None,
    **kwargs: Any,
) -> PyExecutor:
    if llm_args.mm_encoder_only:
        llm_args.disable_overlap_scheduler = True
    mapping = Mapping(
        world_size=llm_args.tensor_parallel_size,
        rank=_double.rank,
        tp_size=llm_args.tensor_parallel_size,
        enable_attention_dp=llm_args.enable_attention_dp,
    )
    dist = Distributed(mapping)
    checkpoint_dir = checkpoint_dir or llm_args.model
    spec_config = llm_args.speculative_config
    engine = PyTorchModelEngine(
        model_path=checkpoint_dir,
        llm_args=llm_args,
        mapping=mapping,
        dist=dist,
        spec_config=spec_config,
    )
    draft_engine = None
    if spec_config is not None:
        # Two-model speculative decoding: the draft's engine does all of the above again.
        draft_engine = PyTorchModelEngine(
            model_path=spec_config.speculative_model,
            llm_args=llm_args,
            mapping=mapping,
            dist=dist,
            spec_config=spec_config,
        )
    resources: dict[str, Any] = {}
    creator, estimating = None, False
    if engine.model.model_config.is_generation:
        creator = KvCacheCreator(
            model_engine=engine,
            draft_model_engine=draft_engine,
            mapping=mapping,
            llm_args=llm_args,
            kv_cache_config=llm_args.kv_cache_config,
            max_num_tokens=engine.max_num_tokens,
            max_seq_len=engine.max_seq_len,
            max_batch_size=engine.batch_size,
        )
        estimating = creator.try_prepare_estimation()
        creator.build_managers(resources, estimating)
    executor = PyExecutor(resources, engine, draft_engine, dist)
    if estimating:
        creator.configure_kv_cache_capacity(executor)
        _double.record("mid_init_release")
        executor.shutdown()
        creator.teardown_managers(resources)
        for each in (engine, draft_engine):
            if each is not None:
                each._release_cuda_graphs()
        creator.build_managers(resources, False)
        executor = PyExecutor(resources, engine, draft_engine, dist)
    executor.start_worker()
    for each in (engine, draft_engine):
        if each is not None:
            each.warmup(resources)
    _double.record("executor_ready")
    return executor
