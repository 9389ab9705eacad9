# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Capture of a model's towers: once a process, the same on every rank, gone with the model."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
from collections.abc import Callable
from datetime import timedelta
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
from tensorrt_llm_ext.trtllm.host import read_reports
from tensorrt_llm_ext.trtllm.lifecycle import (
    RanksDisagreeError,
    Statement,
    capture_model,
    refuse_without_towers,
    settings_of,
)
from tensorrt_llm_ext.trtllm.memory_file import MemoryFile, held_memory_file
from tensorrt_llm_ext.trtllm.ranks import Ranks, first_difference

from .small import GRAPHS, host_tower, rows

ALONE = Ranks(0, lambda value: [value])


@pytest.fixture(autouse=True)
def _nothing_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "_captured", None)
    monkeypatch.setattr(lifecycle, "_met", None)
    monkeypatch.delenv(VARIABLE, raising=False)


def settings(**changes: Any) -> Settings:
    return Settings.model_validate({"graphs": GRAPHS, **changes})


def capture(vlm: Any, ranks: Ranks = ALONE, **changes: Any) -> list[TowerReport]:
    return capture_model(vlm, lambda: settings(**changes), ranks)


def model(host: Any = None) -> Any:
    made = nn.Module()
    made.mm_encoder = nn.Module()
    made.mm_encoder.visual = host_tower() if host is None else host
    return made


def test_capture_and_replay() -> None:
    vlm = model()
    pixels, grid = rows((1, 4, 4))
    eager = vlm.mm_encoder.visual(pixels, grid)[0]
    (report,) = capture(vlm)
    assert (report.modality, report.status) == ("image", "captured")
    replayed = vlm.mm_encoder.visual(pixels, grid)[0]
    torch.testing.assert_close(replayed, eager)
    assert vlm.mm_encoder.visual.tower.encoder_stats().replays == {"16x2": 1}
    assert capture(vlm) == [report]  # again: nothing new


def test_the_configured_budget_counts() -> None:
    """Metadata is set up for the budget that a scheduler raised; automatic shapes are not."""
    host = host_tower()
    host.setup_attn_metadata(max_num_tokens=4096)
    graphs = {"image": {"max_batch_size": 2}}
    (report,) = capture(model(host), graphs=graphs, max_num_tokens=32)
    assert max(bucket.num_tokens for bucket in report.buckets) == 32


def test_the_first_model_of_a_process_keeps_its_graphs(caplog: pytest.LogCaptureFixture) -> None:
    first, draft = model(), model()
    assert capture(first)
    assert capture(draft) == []
    assert "as a draft model, run eagerly" in caplog.text
    assert not draft.mm_encoder.visual.has_graphs
    first.mm_encoder.visual.release_encoder_cuda_graphs()
    assert capture(draft)


def test_graphs_go_with_the_model() -> None:
    vlm = model()
    host = vlm.mm_encoder.visual
    capture(vlm)
    gc.disable()
    try:
        del vlm
        assert not host.has_graphs  # at once, not when the collector comes
    finally:
        gc.enable()


def test_model_without_towers() -> None:
    assert capture(nn.Linear(1, 1)) == []


def test_settings_of_upstreams_own_encoders_are_upstreams_to_check() -> None:
    def newer() -> Settings:
        raise ValueError("an entry of upstream's that ours does not know")

    assert capture_model(nn.Linear(1, 1), newer, ALONE) == []
    with pytest.raises(ValueError, match="an entry of upstream's"):
        capture_model(model(), newer, ALONE)


def test_what_was_asked_for_is_not_lost() -> None:
    refuse_without_towers(SimpleNamespace())
    reason = r"entry for 'image'.*trtllm-ext doctor"
    with published(settings()), pytest.raises(ValueError, match=reason):
        refuse_without_towers(SimpleNamespace())
    with published(Settings()):
        refuse_without_towers(SimpleNamespace())


def test_a_process_without_encoders_is_told_that_it_captures_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    multimodal = SimpleNamespace(encoder_cuda_graph=None)
    off = SimpleNamespace(disable_mm_encoder=True, multimodal_config=multimodal)
    for sent_here in (None, Settings()):
        with published(sent_here) if sent_here else contextlib.nullcontext():
            assert capture_model(nn.Linear(1, 1), lambda: settings_of(off), ALONE, off) == []
    assert caplog.text == ""
    message = "entries for image and disable_mm_encoder is set.*mm_encoder_only"
    with published(settings()), pytest.raises(ValueError, match=f"{message}.*{VARIABLE} brought"):
        capture_model(nn.Linear(1, 1), lambda: settings_of(off), ALONE, off)
    multimodal.encoder_cuda_graph = {"image": {"buckets": [(16, 1)]}}  # which upstream ignores
    assert capture_model(nn.Linear(1, 1), lambda: settings_of(off), ALONE, off) == []
    assert re.search(message, caplog.text)


def test_a_draft_model_without_encoders_lacks_none() -> None:
    """An engine of newer versions does not say that its model is a draft."""
    text_only = nn.Linear(1, 1)
    with published(settings()):
        target = model()
        assert capture(target)
        assert capture(text_only) == []
        del target
        gc.collect()
        with pytest.raises(ValueError, match="entry for 'image'"):
            capture(text_only)


def test_settings_that_cannot_work_stop_the_start() -> None:
    with pytest.raises(ValueError, match="no such encoder"):
        capture(model(), graphs={"audio": {"max_batch_size": 1}})


def test_reports_are_written_and_read() -> None:
    with held_memory_file("reports") as file:
        for rank in (3, 1):
            capture(model(), Ranks(rank, lambda value: [value]), reports=file)
        reports = read_reports(file)
    assert list(reports) == [1, 3]
    assert [tower.status for tower in reports[3]] == ["captured"]
    assert not file.is_here


def test_report_of_a_rank_on_another_machine_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The path may lead to a file there too, which is another's."""
    caplog.set_level("INFO")
    (other := tmp_path / "file").write_text("theirs")
    for path in (str(other), "/proc/0/fd/0"):
        (report,) = capture(model(), reports=MemoryFile(path=path, name="/memfd:ours"))
        assert report.status == "captured"
        assert "encoder 'image': captured" in caplog.text
        caplog.clear()
    assert other.read_text() == "theirs"


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


def sent(**changes: Any) -> Statement:
    return Statement(settings(**changes).model_dump_json(exclude={"reports"}))


def test_failure_elsewhere_makes_all_eager(caplog: pytest.LogCaptureFixture) -> None:
    vlm = model()
    (report,) = capture(vlm, ranks_of(sent(), "image: out of memory"))
    assert (report.status, report.reason) == ("eager", "rank 1: image: out of memory")
    assert not vlm.mm_encoder.visual.has_graphs
    assert "eagerly on all ranks" in caplog.text


def test_failure_elsewhere_may_stop_the_start() -> None:
    graphs = {"image": {"buckets": [(16, 2)], "on_capture_failure": "raise"}}
    vlm = model()
    with pytest.raises(RanksDisagreeError, match="rank 1: image: out of memory"):
        capture(vlm, ranks_of(sent(graphs=graphs), "image: out of memory"), graphs=graphs)
    assert not vlm.mm_encoder.visual.has_graphs


def test_other_settings_elsewhere_make_all_eager() -> None:
    vlm = model()
    (report,) = capture(vlm, ranks_of(sent(max_num_tokens=9)))
    assert report.status == "eager"
    assert "rank 1 received other settings" in report.reason
    assert not vlm.mm_encoder.visual.has_graphs


def test_wrong_settings_elsewhere_stop_the_start() -> None:
    with pytest.raises(ValueError, match="rank 1: no such thing"):
        capture(model(), ranks_of(Statement(problem="no such thing")))


def test_graphs_of_another_model_elsewhere_count_here(caplog: pytest.LogCaptureFixture) -> None:
    """A rank without towers has none of its own."""
    assert capture(model(), ranks_of(sent()._replace(is_taken=True))) == []
    assert "as a draft model, run eagerly" in caplog.text


def test_encoders_may_be_other_ranks_alone() -> None:
    text_only = nn.Linear(1, 1)
    assert capture(text_only, ranks_of(sent(), "")) == []
    graphs = {"image": {"buckets": [(16, 2)], "on_capture_failure": "raise"}}
    with pytest.raises(RanksDisagreeError, match="rank 1: out of memory"):
        capture(text_only, ranks_of(sent(graphs=graphs), "out of memory"), graphs=graphs)
    with published(settings()):  # the other rank has them
        assert capture(text_only, ranks_of(sent(), "")) == []


def test_failure_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(lifecycle, "setup_mm_encoder_cuda_graphs", fail)
    (report,) = capture(model())
    assert (report.status, report.reason) == ("eager", "RuntimeError: CUDA error: out of memory")


def test_first_difference() -> None:
    assert first_difference([1, 1, 2]) == 2
    assert first_difference([1]) is None


def test_whom_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    dist = SimpleNamespace(allgather=lambda value: [value, "b"])
    several = SimpleNamespace(world_size=2, rank=1)
    ranks = Ranks.of(dist, several)
    assert (ranks.rank, ranks.gather("a")) == (1, ["a", "b"])
    older = SimpleNamespace(tp_allgather=lambda value: [value, "c"])
    assert Ranks.of(older, several).gather("a") == ["a", "c"]
    assert Ranks.of(dist, SimpleNamespace(world_size=1)).gather("a") == ["a"]
    assert Ranks.of().gather("a") == ["a"]
    with monkeypatch.context() as patch:
        patch.setattr("tensorrt_llm_ext.trtllm.ranks.find", lambda name: dist.allgather)
        over_mpi = Ranks.of(None, several)
        assert (over_mpi.rank, over_mpi.gather("a")) == (1, ["a", "b"])
        assert Ranks.of(None, SimpleNamespace(world_size=1)).gather("a") == ["a"]
    deaf = Ranks.of(None, several)
    with pytest.raises(ValueError, match="2 ranks build this engine"):
        capture(model(), deaf)
    assert capture(model(), deaf, graphs={})[0].status == "off"  # nothing to agree about


CASES = ("all well", "eager", "raise", "settings", "odd fault", "towers elsewhere")


def _find_settings(rank: int, case: str) -> Settings:
    """As configured; on rank 1, what does not work."""
    if rank == 1 and case == "settings":
        os.environ[VARIABLE] = '{"graphs": {"image": {"max_batch": 2}}}'
        try:
            return settings_of(SimpleNamespace())
        finally:
            del os.environ[VARIABLE]
    if rank == 1 and case == "odd fault":
        raise OSError("no such driver")
    failure = {"on_capture_failure": "raise"} if case == "raise" else {}
    return settings(graphs={"image": {**GRAPHS["image"], **failure}})


def _raise(*args: Any) -> Any:
    raise RuntimeError("no memory on this rank")


def _outcome(rank: int, case: str) -> dict[str, Any]:
    host = host_tower()
    if rank == 1 and case in ("eager", "raise"):
        host.tower.encoder_forward = _raise
    elsewhere = rank == 1 and case == "towers elsewhere"
    vlm = nn.Linear(1, 1) if elsewhere else model(host)
    said, reports = "", []
    try:
        reports = capture_model(vlm, lambda: _find_settings(rank, case), Ranks.of())
    except (RanksDisagreeError, ValueError) as error:
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
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),  # a rank that waits for one that gave up
    )
    outcomes = {case: _outcome(rank, case) for case in CASES}
    Path(folder, f"{rank}.json").write_text(json.dumps(outcomes))
    torch.distributed.destroy_process_group()


@pytest.mark.timeout(240)
def test_two_processes_agree(tmp_path: Path) -> None:
    work: Callable[..., None] = _work
    mp.start_processes(work, (str(tmp_path),), nprocs=2, start_method="spawn")
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    for outcome in ranks:
        assert outcome["all well"]["status"] == ["captured"]
        assert outcome["all well"]["graphs"]
        assert outcome["eager"]["status"] == ["eager"]
        for case in ("raise", "settings", "odd fault"):
            assert outcome[case]["status"] == []
        for case in ("eager", "raise"):
            assert not outcome[case]["graphs"]
            assert "rank 1" in outcome[case]["reason"]
            assert "no memory on this rank" in outcome[case]["reason"]
        assert f"rank 1: {VARIABLE} does not hold" in outcome["settings"]["reason"]
        assert outcome["odd fault"]["reason"] == "rank 1: OSError: no such driver"
    for case in CASES[:-1]:
        assert ranks[0][case]["reason"] == ranks[1][case]["reason"]
    assert [r["towers elsewhere"]["status"] for r in ranks] == [["captured"], []]
    assert [outcome["rows"] for outcome in ranks[0].values()] == [4] * 6  # it goes on encoding


def test_variable_is_one_that_upstreams_mpi_pool_passes_on() -> None:
    assert VARIABLE.startswith("TRTLLM")
    assert VARIABLE not in os.environ
