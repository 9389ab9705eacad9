# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The arms of a comparison: one tower in six forms, with the same weights."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from published_towers import (
    Call,
    Items,
    PublishedTower,
    audio_items,
    copy_weights,
    outputs_of,
    relative,
    vision_items,
)

from tensorrt_llm_ext import MultimodalConfig
from tensorrt_llm_ext.graphs.layout import Replay

from .layouts import (
    Budget,
    Case,
    Shapes,
    audio_budget,
    audio_cases,
    frames_of,
    grids_of,
    vision_budget,
    vision_cases,
)
from .rivals import call_transformers, compiled_call, packed_copy
from .timing import Deadline, Failures

ARMS = {
    "transformers": "transformers as shipped",
    "packed": "transformers, flash attention over the packed batch (torch's variable-length "
    "kernel)",
    "compiled": "the same through torch.compile, reduce-overhead, one graph per layout; positions "
    "and offsets are computed outside its time",
    "eager": "ours without graphs",
    "plain": "ours, plain layers (torch's linear layers, norms and flash attention), captured",
    "ours": "ours as it comes",
}
OWN = ("eager", "plain", "ours")
SEED = 0
WEIGHT_STD = 0.02
_COMPILE_SECONDS = 120


def make_plain(tower: Any, device: torch.device) -> None:
    """Torch's own layers and, where it has it, its flash attention."""
    tower.fused_layers = False
    if device.type == "cuda":
        tower.attention_backend = "varlen"


class Subject:
    """One published tower in all the arms that are asked for.

    Attributes:
        ours: The tower as it comes; eager runs are its too.
        plain: A second one with plain layers, or None.
        device: Of everything.
        dtype: Of weights and inputs: bf16, on a CPU fp32.
    """

    def __init__(
        self, published: PublishedTower, arms: Sequence[str], device: torch.device, *, tiny: bool
    ) -> None:
        """Makes the towers of ours, with random weights; nothing is captured yet."""
        self.published = published.tiny() if tiny else published
        self.arms = tuple(arms)
        self.device = device
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.tiny = tiny
        make_tower = partial(self.published.make_tower, device, self.dtype, std=WEIGHT_STD)
        self.ours = make_tower()
        self.plain: Any = None
        if "plain" in arms:
            self.plain = make_tower(prepare=lambda tower: make_plain(tower, device))
        self._rivals: dict[str, torch.nn.Module] = {}

    @property
    def audio(self) -> bool:
        """Clips, not pictures."""
        return self.published.modality == "audio"

    def cases(self) -> list[Case]:
        """Every batch that is measured."""
        if self.audio:
            return audio_cases()
        cases = vision_cases(self.ours.config.temporal_patch_size, tiny=self.tiny)
        if self.published.model_type == "qwen3_vl":
            return cases
        return [case._replace(compiled=False) for case in cases]

    def budget(self) -> Budget:
        """Of the ladder."""
        if self.audio:
            return audio_budget(self.ours.geometry.chunk_tokens, tiny=self.tiny)
        return vision_budget(tiny=self.tiny)

    def items(self, shapes: Shapes, seed: int = SEED) -> Items:
        """A batch of noise on the device."""
        if self.audio:
            return audio_items(frames_of(shapes), seed, self.device, self.dtype)
        radio = self.published.model_type == "radio"
        dim = self.ours.config.patch_dim
        return vision_items(dim, grids_of(shapes), seed, radio, self.device, self.dtype)

    # ---- capture -----------------------------------------------------------------------------

    def capture(
        self, arm: str, *, again: bool = False, budget: Budget | None = None
    ) -> dict[str, Any]:
        """Captures a tower's ladder.

        Args:
            arm: ``ours`` or ``plain``. The plain one keeps buckets that lose to its eager run:
                it is what a captured graph alone gives.
            again: Capture once more, with kernels compiled and forms chosen: that is what a later
                start takes, and what is reported.
            budget: Of the ladder; by default ``budget()``.

        Returns:
            Seconds of the first capture and of the reported one, and what both together left on
            the device by its driver's count.
        """
        tower = self.ours if arm == "ours" else self.plain
        budget = budget or self.budget()
        entry: dict[str, Any] = budget._asdict()
        if arm == "plain":
            entry["prune_slower_than_eager"] = False
        config = {"encoder_cuda_graph": {self.published.modality: entry}}
        tower.configure_encoder_cuda_graph(MultimodalConfig.model_validate(config))
        tower.setup_attn_metadata(max_num_tokens=budget.max_num_tokens)
        tower.encode(self.items(self.cases()[0].shapes))  # libraries load at first use
        before, start = self.memory_in_use(), time.perf_counter()
        report = tower.capture_encoder_cuda_graphs()
        seconds = first = time.perf_counter() - start
        if again:
            start = time.perf_counter()
            report = tower.recapture()
            seconds = time.perf_counter() - start
        taken = self.memory_in_use() - before
        captures = [b.capture_ms for b in report.buckets if b.capture_ms is not None]
        return {
            "entry": entry,
            "status": report.status,
            "first_seconds": round(first, 2),
            "seconds": round(seconds, 2),
            "captures_seconds": round(sum(captures) / 1e3, 2),
            "driver_mib": round(taken / 2**20, 1) if self.device.type == "cuda" else None,
            "buckets": len(report.buckets),
            "kept": sum(b.kept for b in report.buckets),
            "report": report.model_dump(mode="json"),
        }

    def memory_in_use(self) -> int:
        """Bytes taken on the device by its driver's count; 0 on a CPU."""
        if self.device.type != "cuda":
            return 0
        gc.collect()
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self.device)
        return int(total - free)

    # ---- calls -------------------------------------------------------------------------------

    def call(self, arm: str, items: Items) -> Call:
        """What an arm does with a batch; everything but the encoding is done before.

        Raises:
            ValueError: The arm is none, or transformers has no such form of this tower.
        """
        if arm == "eager":
            return Call(lambda: self.ours.encode(items, eager=True), outputs_of)
        if arm == "plain":
            return Call(lambda: self.plain.encode(items), outputs_of)
        if arm == "ours":
            return Call(lambda: self.ours.encode(items), outputs_of)
        if arm not in ("transformers", "packed"):
            raise ValueError(f"arm {arm!r}; allowed here: transformers, packed, {', '.join(OWN)}")
        return call_transformers(self._rival(arm), items, self.dtype)

    def compiled(self, items: Items) -> tuple[Call, dict[str, Any]]:
        """The compiled arm for one batch, and what compiling took."""
        return compiled_call(self._rival("packed"), items, self.dtype)

    def exact(self, items: Items) -> list[torch.Tensor]:
        """Outputs of transformers in fp32 for these weights and inputs."""
        with torch.no_grad():
            return call_transformers(self._rival("fp32"), items, torch.float32).ask()

    def _rival(self, which: str) -> torch.nn.Module:
        """A tower of transformers, made when it is first needed."""
        if which not in self._rivals:
            if which == "packed":
                self._rivals[which] = packed_copy(self._rival("transformers"))
            else:
                dtype = torch.float32 if which == "fp32" else self.dtype
                oracle = self.published.make_oracle(dtype, self.device)
                copy_weights(self.ours, oracle, self.published.model_type)
                self._rivals[which] = oracle
        return self._rivals[which]

    def steps(self, arm: str, items: Items) -> list[str]:
        """How a tower of ours would cut a batch: a bucket's label, or why it runs eagerly."""
        tower = self.plain if arm == "plain" else self.ours
        lengths = [tower.pack_item(item).segment_lengths for item in items]
        return [
            step.bucket.label if isinstance(step, Replay) else f"eager: {step.reason.value}"
            for step in tower.plan(lengths, eager=arm == "eager")
        ]

    def release(self) -> None:
        """Gives graphs, towers and their memory back."""
        for tower in (self.ours, self.plain):
            if tower is not None:
                tower.release_encoder_cuda_graphs()
        self._rivals.clear()
        self.ours = self.plain = None
        self.memory_in_use()


def prepared(
    subject: Subject,
    arms: Sequence[str],
    case: Case,
    items: Items,
    failures: Failures,
    deadline: Deadline,
) -> tuple[dict[str, Call], dict[str, Any]]:
    """Calls of the arms that take part in a case.

    Args:
        subject: The tower.
        arms: Those that are wanted; the compiled one takes part where the case says so.
        case: The case.
        items: Its batch.
        failures: Gets the arms that could not be made.
        deadline: Nothing is compiled when little time is left.

    Returns:
        Call by arm, and what the compiled one took to make.
    """
    calls: dict[str, Call] = {}
    compiling: dict[str, Any] = {}
    for arm in arms:
        if arm == "compiled" and not case.compiled:
            continue
        if arm == "compiled" and deadline.over(_COMPILE_SECONDS):
            failures[arm] = f"less than {_COMPILE_SECONDS} s were left to compile"
            continue
        with failures.of(arm):
            if arm == "compiled":
                calls[arm], compiling = subject.compiled(items)
            else:
                calls[arm] = subject.call(arm, items)
    return calls, compiling


def worst_error(outputs: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> float:
    """Relative L2 error of the worst output.

    Raises:
        ArithmeticError: An output is not finite.
    """
    errors = [relative(a, b) for a, b in zip(outputs, exact, strict=True)]
    if not all(map(math.isfinite, errors)):
        raise ArithmeticError(f"an output is not finite: errors {errors}")
    return max(errors)
