# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Our settings beside upstream's: what travels where, `expand`, and the hand-over of `serve`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from tensorrt_llm_ext import KvCacheConfig, SamplingParams
from tensorrt_llm_ext.cli import main
from tensorrt_llm_ext.llmapi.mm_config import MultimodalConfig
from tensorrt_llm_ext.trtllm import arrival, config, host, serve
from tensorrt_llm_ext.trtllm.config import (
    VARIABLE,
    Settings,
    checked_graphs,
    entries_of_upstream,
    known_to_upstream,
    published,
    received,
    spelling_of,
)
from tensorrt_llm_ext.trtllm.expand import expand
from tensorrt_llm_ext.trtllm.host import upstream_params
from tensorrt_llm_ext.trtllm.serve import (
    HandOver,
    Refusal,
    refuse_uncarried_keys,
    serve_command,
    split,
    wants_hand_over,
)

from .small import QWEN

BEFORE = ("buckets", "enable_padding", "warmup_steps", "enable_replay_stats")
AFTER = (*BEFORE, "max_batch_size", "max_num_tokens")
OURS = {"image": {"max_batch_size": 2, "max_graph_memory": "64MiB", "warmup_steps": 1}}


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    return str(tmp_path)


@pytest.fixture(params=[BEFORE, AFTER], ids=["before #20213", "after #20213"])
def fields(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    found: tuple[str, ...] = request.param
    for module in (config, serve):
        monkeypatch.setattr(module, "entry_fields", lambda: found)
    return found


# ---- the side channel ----


def test_settings_reach_processes_that_start_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    reports = {"path": "/proc/1/fd/2", "name": "ours"}
    sent = Settings.model_validate({"graphs": OURS, "max_num_tokens": 64, "reports": reports})
    with published(sent):
        code = (
            "from tensorrt_llm_ext.trtllm.config import received; "
            "print(received().model_dump_json(exclude_unset=True))"
        )
        run = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        with published(Settings()):
            assert received() == Settings()
        assert received() == sent
    assert Settings.model_validate_json(run.stdout) == sent
    assert received() is None
    assert VARIABLE not in os.environ


def test_foreign_text_in_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, '{"graphs": {"image": {"max_batch": 2}}}')
    with pytest.raises(ValueError, match=rf"{VARIABLE} does not hold.*max_batch"):
        received()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"encoder_cuda_graph": {"image": {}, "vision": {}}}, "one of buckets and max_batch_size"),
        (
            {"encoder_cuda_graph": {m: {"max_batch_size": 1} for m in ("image", "vision")}},
            "keep one",
        ),
        (
            {"encoder_cuda_graph": OURS, "encoder_side_stream_max_ahead": 1},
            "exclude each other",
        ),
        ([1], "is a list; expected a mapping"),
    ],
)
def test_wrong_entries(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checked_graphs(value, "LLM")


def test_upstreams_own_keys_are_upstreams_to_check() -> None:
    given = {"encoder_cuda_graph": OURS, "encoder_scheduling_policy": "EAGER", "newer": 1}
    assert checked_graphs(given, "LLM").encoder_cuda_graph.keys() == {"image"}  # type: ignore[union-attr]


def test_entries_that_came_through_upstream() -> None:
    entry = MultimodalConfig.model_validate({"encoder_cuda_graph": OURS}).encoder_cuda_graph
    theirs = SimpleNamespace(encoder_cuda_graph={"vision": entry["image"]})  # type: ignore[index]
    assert entries_of_upstream(theirs) == entry
    assert entries_of_upstream(None) == {}


def test_upstream_sees_what_it_knows(fields: tuple[str, ...]) -> None:
    ours = checked_graphs({"encoder_cuda_graph": OURS}, "LLM")
    seen = known_to_upstream(ours, {"image": "vision"})
    if "max_batch_size" in fields:
        assert seen == {"vision": {"max_batch_size": 2, "warmup_steps": 1}}
    else:
        assert seen == {}  # shapes in a way that it does not know: all of it travels beside
    buckets = checked_graphs({"encoder_cuda_graph": {"image": {"buckets": [(8, 1)]}}}, "LLM")
    assert known_to_upstream(buckets, {"image": "image"}) == {"image": {"buckets": [(8, 1)]}}
    assert known_to_upstream(buckets, {}) == {}


@pytest.mark.parametrize(
    ("model_type", "key"),
    [
        ("qwen3_vl", "image"),
        ("qwen3_vl_moe", "image"),
        ("glm5_next", "image"),
        ("NemotronH_Nano_VL_V2", "vision"),
        ("nemotron_h_omni", "vision"),
    ],
)
def test_the_key_that_upstreams_model_reads(model_type: str, key: str) -> None:
    assert spelling_of(model_type) == {"image": key}


def test_split(checkpoint: str, fields: tuple[str, ...]) -> None:
    values = {
        "backend": "auto",
        "tensor_parallel_size": 2,
        "max_num_tokens": 128,
        "multimodal_config": {"encoder_cuda_graph": OURS, "video_pruning_rate": 0.5},
    }
    theirs, settings = split(values, checkpoint)
    multimodal: dict[str, Any] = {"video_pruning_rate": 0.5}
    if "max_batch_size" in fields:
        multimodal["encoder_cuda_graph"] = {"image": {"max_batch_size": 2, "warmup_steps": 1}}
    assert theirs == {
        "tensor_parallel_size": 2,
        "max_num_tokens": 128,
        "multimodal_config": multimodal,
    }
    assert settings.max_num_tokens == 128
    assert settings.graphs["image"].max_graph_memory == 64 << 20
    assert split({"encoder_max_num_tokens": 32, **values}, checkpoint)[1].max_num_tokens == 32
    assert split({}, checkpoint) == ({}, Settings(graphs={}, max_num_tokens=8192))


def test_models_of_ours_become_what_upstream_takes(
    checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kv = KvCacheConfig(free_gpu_memory_fraction=0.5)
    assert split({"kv_cache_config": kv}, checkpoint)[0] == {
        "kv_cache_config": {"free_gpu_memory_fraction": 0.5}
    }
    theirs = SimpleNamespace(SamplingParams=lambda **given: given)
    monkeypatch.setitem(sys.modules, "tensorrt_llm", theirs)  # type: ignore[arg-type]
    one = SamplingParams(max_tokens=4, temperature=0.5)
    assert upstream_params(one) == {"max_tokens": 4, "temperature": 0.5}
    assert upstream_params([one, None]) == [{"max_tokens": 4, "temperature": 0.5}, None]
    assert upstream_params("theirs") == "theirs"


def test_upstreams_other_arguments_may_stand_by_their_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Upstream:
        def generate(self, inputs: Any, params: Any = None, use_tqdm: bool = True) -> Any:
            return inputs, params, use_tqdm

        def generate_async(self, inputs: Any, params: Any = None, lora: Any = None) -> Any:
            return inputs, params, lora

    theirs = SimpleNamespace(SamplingParams=lambda **given: given, LLM=Upstream)
    monkeypatch.setitem(sys.modules, "tensorrt_llm", theirs)  # type: ignore[arg-type]
    llm, params = host._llm_class()(), SamplingParams(max_tokens=4)
    assert llm.generate("a", params, False) == ("a", {"max_tokens": 4}, False)
    assert llm.generate_async("a", params, "lora") == ("a", {"max_tokens": 4}, "lora")


# ---- expand ----


def test_expand(checkpoint: str) -> None:
    values = {
        "model": checkpoint,
        "device": "cuda",
        "backend": "auto",
        "max_num_tokens": 32,
        "kv_cache_config": {"max_tokens": 64},
        "multimodal_config": {"encoder_cuda_graph": {"vision": OURS["image"]}},
    }
    result = expand(values)
    assert result.values == {
        "max_num_tokens": 32,
        "kv_cache_config": {"max_tokens": 64},
        "multimodal_config": {
            "encoder_cuda_graph": {"image": {"warmup_steps": 1, "buckets": [[32, 2]]}}
        },
    }
    assert [note.split(" ")[0] for note in result.notes] == [
        "device",
        "backend",
        "multimodal_config.encoder_cuda_graph.image.max_batch_size",
        "multimodal_config.encoder_cuda_graph.image.max_graph_memory",
    ]


def test_expand_keeps_the_keys_of_each_level_apart() -> None:
    result = expand({"max_batch_size": 2, "encoder_cuda_graph": {"image": {"max_batch_size": 1}}})
    assert result.values == {"max_batch_size": 2}
    assert result.notes == ("encoder_cuda_graph left out: not a key of upstream's",)


def test_entries_for_an_encoder_that_is_off(checkpoint: str) -> None:
    values = {"disable_mm_encoder": True, "multimodal_config": {"encoder_cuda_graph": OURS}}
    for refuses in (split, expand):
        with pytest.raises(ValueError, match=r"disable_mm_encoder is set.*mm_encoder_only"):
            refuses(values, checkpoint)  # type: ignore[operator]
    theirs, settings = split({"disable_mm_encoder": True}, checkpoint)
    assert theirs == {"disable_mm_encoder": True}
    assert settings.graphs == {}


def test_expand_command(checkpoint: str, tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(yaml.safe_dump({"multimodal_config": {"encoder_cuda_graph": OURS}}))
    result = CliRunner().invoke(main, ["expand", str(file)])
    assert result.exit_code == 1
    assert "error: graphs are configured and no model is named: give --model DIR" in result.stderr
    result = CliRunner().invoke(main, ["expand", str(file), "--model", checkpoint])
    assert result.exit_code == 0
    entry = yaml.safe_load(result.stdout)["multimodal_config"]["encoder_cuda_graph"]["image"]
    assert set(entry) <= set(BEFORE)
    assert "note: multimodal_config.encoder_cuda_graph.image.max_graph_memory" in result.stderr
    checked_graphs({"encoder_cuda_graph": {"image": entry}}, "what was printed")


def test_expand_refuses(checkpoint: str) -> None:
    audio = {"encoder_cuda_graph": {"audio": {"max_batch_size": 1}}}
    with pytest.raises(ValueError, match=r"qwen3_vl has no such encoder; it has \['image'\]"):
        expand({"multimodal_config": audio}, checkpoint)
    both = {"encoder_cuda_graph": {m: {"max_batch_size": 1} for m in ("image", "vision")}}
    with pytest.raises(ValueError, match="keep one"):
        expand({"multimodal_config": both}, checkpoint)
    assert expand({"max_batch_size": 2}).values == {"max_batch_size": 2}


# ---- serve ----


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT-LLM is installed and something is registered."""
    monkeypatch.setattr(serve, "installed", lambda: True)
    monkeypatch.setattr(serve, "disabled", lambda: False)
    monkeypatch.setattr(serve, "register_now", lambda: SimpleNamespace(active=True))


@pytest.mark.usefixtures("there")
def test_hand_over(checkpoint: str, fields: tuple[str, ...]) -> None:
    values = {"max_batch_size": 4, "multimodal_config": {"encoder_cuda_graph": OURS}}
    call = serve_command(checkpoint, values, ["--port", "9"])
    assert isinstance(call, HandOver)
    package = str(Path(serve.__file__).parents[1])
    assert call.argv == (
        *("trtllm-serve", checkpoint, "--config", str(call.config_file)),
        *("--custom_module_dirs", package, "--port", "9"),
    )
    written = yaml.safe_load(call.config_file.read_text())
    assert written["max_batch_size"] == 4
    entries = written.get("multimodal_config", {}).get("encoder_cuda_graph", {})
    assert all(set(entry) <= set(fields) for entry in entries.values())
    sent = Settings.model_validate_json(call.env[VARIABLE])
    assert sent.graphs["image"].max_graph_memory == 64 << 20


READS_AND_WAITS = """
import os, sys, time
print(os.path.realpath(sys.argv[1]), open(sys.argv[1]).read(), flush=True)
time.sleep(60)
"""


@pytest.mark.usefixtures("there")
def test_the_file_of_a_hand_over_ends_with_the_process(checkpoint: str) -> None:
    """Also with one that is killed, and also through ``exec``."""
    code = (
        "import os, sys\n"
        "from types import SimpleNamespace\n"
        "from tensorrt_llm_ext.trtllm import serve\n"
        "serve.installed = lambda: True\n"
        "serve.register_now = lambda: SimpleNamespace(active=True)\n"
        f"call = serve.serve_command({checkpoint!r}, {{'max_batch_size': 4}})\n"
        "file = str(call.config_file)\n"
        "print(file, flush=True)\n"
        f"os.execv(sys.executable, [sys.executable, '-c', {READS_AND_WAITS!r}, file])\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        file = Path(process.stdout.readline().strip())
        seen = process.stdout.readline()
        assert seen.endswith(" max_batch_size: 4\n")
        assert seen.startswith("/memfd:trtllm-ext-serve.yaml-")  # of no folder
        assert file.exists()
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()  # type: ignore[union-attr]
    assert process.returncode == -signal.SIGTERM
    assert not file.exists()


@pytest.mark.usefixtures("there")
def test_no_hand_over(checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = serve_command(checkpoint, {"multimodal_config": {"encoder_cuda_graph": {"image": {}}}})
    assert isinstance(wrong, Refusal)
    assert "one of buckets and max_batch_size is required" in wrong.reason
    alone = serve_command(checkpoint, {"mm_encoder_only": True})
    assert isinstance(alone, Refusal)
    assert "mm_embedding_serve" in alone.reason
    nothing = SimpleNamespace(active=False, refusal="no place to capture")
    monkeypatch.setattr(serve, "register_now", lambda: nothing)
    assert serve_command(checkpoint, {}) == Refusal("no place to capture; see trtllm-ext doctor")
    monkeypatch.setattr(serve, "installed", lambda: False)
    assert "not installed" in serve_command(checkpoint, {}).reason  # type: ignore[union-attr]
    monkeypatch.setattr(serve, "disabled", lambda: True)
    assert "TRTLLM_EXT_DISABLE" in serve_command(checkpoint, {}).reason  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("values", "there", "off", "wanted"),
    [
        ({}, True, False, True),
        ({}, False, False, False),
        ({}, True, True, False),
        ({"device": "cpu"}, True, False, False),
        ({"backend": "torch"}, True, False, False),
        ({"backend": "tensorrt_llm"}, False, True, True),  # serve_command says why not
    ],
)
def test_who_wants_it(
    values: dict[str, str], there: bool, off: bool, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrival, "installed", lambda: there)
    monkeypatch.setattr(arrival, "disabled", lambda: off)
    assert wants_hand_over(values) is wanted


def test_becoming_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(os, "execvpe", lambda *call: calls.append(call))
    HandOver(("trtllm-serve", "m"), {VARIABLE: "{}"}, Path("f")).go()
    ((file, argv, env),) = calls
    assert (file, argv) == ("trtllm-serve", ("trtllm-serve", "m"))
    assert env[VARIABLE] == "{}"
    assert env["PATH"] == os.environ["PATH"]


@pytest.mark.parametrize("form", ["file", "file=", "--set"])
def test_keys_that_plain_serve_cannot_carry(
    form: str, fields: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "serve.yaml"
    entry = {"buckets": [[8, 1]], "max_batch_size": None, "prune_slower_than_eager": False}
    file.write_text(yaml.safe_dump({"multimodal_config": {"encoder_cuda_graph": {"image": entry}}}))
    given = {
        "file": ["--config", str(file)],
        "file=": [f"--extra_llm_api_options={file}"],
        "--set": ["--set", f"multimodal_config.encoder_cuda_graph.image={json.dumps(entry)}"],
    }[form]
    monkeypatch.setattr(sys, "argv", ["trtllm-serve", "model", *given])
    refuse_uncarried_keys(True)  # nobody's command
    lost = [key for key in entry if key not in fields]
    reason = f"has {', '.join(lost)}, which"
    with click.Context(main), pytest.raises(click.ClickException, match=reason) as e:
        refuse_uncarried_keys(True)
    assert "Start `trtllm-ext serve`" in str(e.value)
    assert "`trtllm-ext expand FILE`" in str(e.value)


@pytest.mark.parametrize("active", [True, False])
def test_a_loss_is_told_where_the_version_has_no_entries(
    active: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no version carries is lost; of the rest upstream says what it takes."""
    monkeypatch.setattr(serve, "entry_fields", lambda: ())
    place = "multimodal_config.encoder_cuda_graph.image"
    monkeypatch.setattr(sys, "argv", ["trtllm-serve", "--set", f"{place}.max_graph_memory=1GiB"])
    reason = "has max_graph_memory, which"
    with click.Context(main), pytest.raises(click.ClickException, match=reason) as e:
        refuse_uncarried_keys(active)
    assert "`trtllm-ext expand FILE`" in str(e.value)
    assert ("nothing of ours is registered here" in str(e.value)) is not active
    monkeypatch.setattr(sys, "argv", ["trtllm-serve", "--set", f"{place}.max_batch_size=2"])
    with click.Context(main):
        refuse_uncarried_keys(active)


def test_keys_that_plain_serve_carries(
    fields: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "serve.yaml"
    graphs = {"image": dict.fromkeys(fields, 1), "audio": None}
    file.write_text(yaml.safe_dump({"multimodal_config": {"encoder_cuda_graph": graphs}}))
    odd = ["--set", "multimodal_config.encoder_cuda_graph=[1]"]  # upstream says what is wrong
    odder = ["--set", "multimodal_config.encoder_cuda_graph.image=1"]
    for argv in (
        ["--config", str(file)],
        ["--config", "missing.yaml"],
        ["--set", "x"],
        ["--set"],
        odd,
        odder,
    ):
        monkeypatch.setattr(sys, "argv", ["trtllm-serve", "model", *argv])
        with click.Context(main):
            refuse_uncarried_keys(True)


def test_module_dir_is_printed_and_nothing_else() -> None:
    result = CliRunner().invoke(main, ["module-dir"])
    assert result.stdout == f"{Path(serve.__file__).parents[1]}\n"
