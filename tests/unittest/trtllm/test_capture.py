# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Capture of a model's towers: once a process, the same on every rank, gone with the model."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from torch import nn

from tensorrt_llm_ext.graphs.report import TowerReport
from tensorrt_llm_ext.trtllm import lifecycle
from tensorrt_llm_ext.trtllm.config import VARIABLE, Settings, published
from tensorrt_llm_ext.trtllm.lifecycle import (
    RanksDisagreeError,
    capture_model,
    capture_together,
    refuse_without_towers,
    settings_of,
)
from tensorrt_llm_ext.trtllm.ranks import Ranks, first_difference

from .small import GRAPHS, host_tower, rows

ALONE = Ranks(0, lambda value: [value])


@pytest.fixture(autouse=True)
def _nothing_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "_captured", None)
    monkeypatch.delenv(VARIABLE, raising=False)


def settings(**changes: Any) -> Settings:
    return Settings.model_validate({"graphs": GRAPHS, **changes})


def model(host: Any = None) -> Any:
    made = nn.Module()
    made.mm_encoder = nn.Module()
    made.mm_encoder.visual = host_tower() if host is None else host
    return made


def test_capture_and_replay() -> None:
    vlm = model()
    pixels, grid = rows((1, 4, 4))
    eager = vlm.mm_encoder.visual(pixels, grid)[0]
    (report,) = capture_model(vlm, settings(), ALONE)
    assert (report.modality, report.status) == ("image", "captured")
    replayed = vlm.mm_encoder.visual(pixels, grid)[0]
    torch.testing.assert_close(replayed, eager)
    assert vlm.mm_encoder.visual.tower.encoder_stats().replays == {"16x2": 1}
    assert capture_model(vlm, settings(), ALONE) == [report]  # again: nothing new


def test_the_configured_budget_counts() -> None:
    """Metadata is set up for the budget that a scheduler raised; automatic shapes are not."""
    host = host_tower()
    host.setup_attn_metadata(max_num_tokens=4096)
    ladder = settings(graphs={"image": {"max_batch_size": 2}}, max_num_tokens=32)
    (report,) = capture_model(model(host), ladder, ALONE)
    assert max(bucket.num_tokens for bucket in report.buckets) == 32


def test_the_first_model_of_a_process_keeps_its_graphs(caplog: pytest.LogCaptureFixture) -> None:
    first, draft = model(), model()
    assert capture_model(first, settings(), ALONE)
    assert capture_model(draft, settings(), ALONE) == []
    assert "as a draft model, run eagerly" in caplog.text
    assert not draft.mm_encoder.visual.has_graphs
    first.mm_encoder.visual.release_encoder_cuda_graphs()
    assert capture_model(draft, settings(), ALONE)


def test_graphs_go_with_the_model() -> None:
    vlm = model()
    host = vlm.mm_encoder.visual
    capture_model(vlm, settings(), ALONE)
    gc.disable()
    try:
        del vlm
        assert not host.has_graphs  # at once, not when the collector comes
    finally:
        gc.enable()


def test_model_without_towers() -> None:
    assert capture_model(nn.Linear(1, 1), settings(), ALONE) == []


def test_what_was_asked_for_is_not_lost() -> None:
    refuse_without_towers(SimpleNamespace())
    with published(settings()):
        with pytest.raises(ValueError, match=r"entry for 'image'.*trtllm-ext doctor"):
            refuse_without_towers(SimpleNamespace())
        refuse_without_towers(SimpleNamespace(disable_mm_encoder=True))
    with published(Settings()):
        refuse_without_towers(SimpleNamespace())


def test_settings_that_cannot_work_stop_the_start() -> None:
    with pytest.raises(ValueError, match="no such encoder"):
        capture_model(model(), settings(graphs={"audio": {"max_batch_size": 1}}), ALONE)


def test_report_is_written(tmp_path: Path) -> None:
    capture_model(model(), settings(report_dir=str(tmp_path)), Ranks(3, lambda value: [value]))
    (line,) = (tmp_path / "rank3.jsonl").read_text().splitlines()
    assert TowerReport.model_validate(json.loads(line)).status == "captured"


def test_report_of_a_rank_on_another_machine_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    there = str(tmp_path / "of_another_machine")
    (report,) = capture_model(model(), settings(report_dir=there), ALONE)
    assert report.status == "captured"
    assert "encoder 'image': captured" in caplog.text


# ---- where settings come from ----


def test_settings_of_upstreams_arguments() -> None:
    entry = {"buckets": [(16, 1)]}
    args = SimpleNamespace(
        multimodal_config=SimpleNamespace(encoder_cuda_graph={"vision": entry}),
        encoder_max_num_tokens=64,
        max_num_tokens=512,
    )
    found = settings_of(args)
    assert found.graphs["image"].buckets == [(16, 1)]
    assert found.max_num_tokens == 64
    args.encoder_max_num_tokens = None
    assert settings_of(args).max_num_tokens == 512
    with published(settings(max_num_tokens=7)):
        assert settings_of(args) == settings(max_num_tokens=7)


# ---- ranks ----


def ranks_of(*others: Any) -> Ranks:
    """This rank is 0; what the others say in turn."""
    said = iter(others)
    return Ranks(0, lambda value: [value, next(said)])


def sent(**changes: Any) -> str:
    return settings(**changes).model_dump_json(exclude={"report_dir"})


def test_failure_elsewhere_makes_all_eager(caplog: pytest.LogCaptureFixture) -> None:
    host = host_tower()
    ranks = ranks_of((sent(), None), "image: out of memory")
    (report,) = capture_together({"image": host}, settings(), ranks)
    assert (report.status, report.reason) == ("eager", "rank 1: image: out of memory")
    assert not host.has_graphs
    assert "eagerly on all ranks" in caplog.text


def test_failure_elsewhere_may_stop_the_start() -> None:
    graphs = {"image": {"buckets": [(16, 2)], "on_capture_failure": "raise"}}
    ranks = ranks_of((sent(graphs=graphs), None), "image: out of memory")
    host = host_tower()
    with pytest.raises(RanksDisagreeError, match="rank 1: image: out of memory"):
        capture_together({"image": host}, settings(graphs=graphs), ranks)
    assert not host.has_graphs


def test_other_settings_elsewhere_make_all_eager() -> None:
    ranks = ranks_of((sent(max_num_tokens=9), None))
    host = host_tower()
    (report,) = capture_together({"image": host}, settings(), ranks)
    assert report.status == "eager"
    assert "rank 1 received other settings" in report.reason
    assert not host.has_graphs


def test_wrong_settings_elsewhere_stop_the_start() -> None:
    with pytest.raises(ValueError, match="rank 1: no such thing"):
        capture_together({"image": host_tower()}, settings(), ranks_of((sent(), "no such thing")))


def test_failure_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(lifecycle, "setup_mm_encoder_cuda_graphs", fail)
    (report,) = capture_together({"image": host_tower()}, settings(), ALONE)
    assert (report.status, report.reason) == ("eager", "RuntimeError: CUDA error: out of memory")


def test_first_difference() -> None:
    assert first_difference([1, 1, 2]) == 2
    assert first_difference([1]) is None


def test_whom_to_ask() -> None:
    dist = SimpleNamespace(allgather=lambda value: [value, "b"])
    several = SimpleNamespace(world_size=2, rank=1)
    ranks = Ranks.of(dist, several)
    assert (ranks.rank, ranks.gather("a")) == (1, ["a", "b"])
    older = SimpleNamespace(tp_allgather=lambda value: [value, "c"])
    assert Ranks.of(older, several).gather("a") == ["a", "c"]
    assert Ranks.of(dist, SimpleNamespace(world_size=1)).gather("a") == ["a"]
    assert Ranks.of().gather("a") == ["a"]
    with pytest.raises(ValueError, match="2 ranks build this engine"):
        Ranks.of(None, several)


def _break_capture(rank: int) -> Any:
    host = host_tower()
    if rank == 1:
        host.tower.encoder_forward = _raise
    return host


def _raise(*args: Any) -> Any:
    raise RuntimeError("no memory on this rank")


def _outcome(rank: int, case: str) -> dict[str, Any]:
    graphs: dict[str, Any] = {"image": dict(GRAPHS["image"])}
    host = host_tower() if case == "all well" else _break_capture(rank)
    if case == "raise":
        graphs["image"]["on_capture_failure"] = "raise"
    vlm, said, reports = model(host), "", []
    try:
        reports = capture_model(vlm, settings(graphs=graphs), Ranks.of())
    except RanksDisagreeError as error:
        said = str(error)
    pixels, grid = rows((1, 4, 4))
    return {
        "status": [report.status for report in reports],
        "reason": "".join(report.reason for report in reports) + said,
        "graphs": host.has_graphs,
        "rows": len(host(pixels, grid)[0]) if rank == 0 else None,
    }


def _work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    outcomes = {case: _outcome(rank, case) for case in ("all well", "eager", "raise")}
    Path(folder, f"{rank}.json").write_text(json.dumps(outcomes))
    torch.distributed.destroy_process_group()


def test_two_processes_agree(tmp_path: Path) -> None:
    work: Callable[..., None] = _work
    mp.start_processes(work, (str(tmp_path),), nprocs=2, start_method="spawn")
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    for outcome in ranks:
        assert outcome["all well"]["status"] == ["captured"]
        assert outcome["all well"]["graphs"]
        assert outcome["eager"]["status"] == ["eager"]
        assert outcome["raise"]["status"] == []
        for case in ("eager", "raise"):
            assert not outcome[case]["graphs"]
            assert "rank 1" in outcome[case]["reason"]
            assert "no memory on this rank" in outcome[case]["reason"]
    assert [outcome["rows"] for outcome in ranks[0].values()] == [4, 4, 4]  # it goes on encoding


def test_variable_is_one_that_upstreams_mpi_pool_passes_on() -> None:
    assert VARIABLE.startswith("TRTLLM")
    assert VARIABLE not in os.environ
