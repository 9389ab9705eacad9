# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""`trtllm-ext serve` up to the call of the server: flags, precedence, errors, the API key."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import click
import pytest
from click.testing import CliRunner, Result

from tensorrt_llm_ext.cli import main
from tensorrt_llm_ext.commands.options import FieldOption
from tensorrt_llm_ext.commands.serve import LOG_LEVELS, serve
from tensorrt_llm_ext.llmapi.llm_args import ServeConfig
from tensorrt_llm_ext.serve import HttpOptions
from tensorrt_llm_ext.trtllm import HandOver, Refusal

serve_module = sys.modules["tensorrt_llm_ext.commands.serve"]
ROOT = Path(__file__).parents[3]
GRAPHS = "multimodal_config.encoder_cuda_graph"
FILE = """\
max_batch_size: 8
max_seq_len: 4096
kv_cache_config:
  free_gpu_memory_fraction: 0.5
  max_tokens: 1024
multimodal_config:
  encoder_cuda_graph:
    image:
      max_batch_size: 8
      warmup_steps: 3
"""


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[ServeConfig, HttpOptions]]:
    """What the server was called with; it comes back at once with exit code 7."""
    calls: list[tuple[ServeConfig, HttpOptions]] = []

    def run(config: ServeConfig, http: HttpOptions) -> int:
        calls.append((config, http))
        return 7

    monkeypatch.setattr("tensorrt_llm_ext.serve.run", run)
    monkeypatch.delenv("TRTLLM_EXT_API_KEY", raising=False)
    return calls


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "serve.yaml"
    path.write_text(FILE)
    return path


def run(*args: object, **env: str) -> Result:
    return CliRunner().invoke(main, ["serve", *map(str, args)], env=env)


def fails(*args: object, **env: str) -> list[str]:
    """The lines of a call that ends before the server is started."""
    result = run(*args, **env)
    assert (result.exit_code, result.stdout) == (1, ""), result.output
    assert isinstance(result.exception, SystemExit)
    return result.stderr.splitlines()


def test_defaults_and_exit_code(served: list[Any]) -> None:
    result = run("some/model")
    assert (result.exit_code, result.output) == (7, "")
    ((config, http),) = served
    assert config == ServeConfig(model="some/model")
    assert config.model_fields_set == {"model"}
    assert http == HttpOptions()


def test_precedence_is_file_then_flags_then_set_and_merging_is_deep(
    served: list[Any], file: Path
) -> None:
    path = f"{GRAPHS}.image.max_batch_size"
    result = run(
        *("dir", "--config", file, "--max_batch_size", 16, "--max_seq_len", 512),
        *("--kv_cache_free_gpu_memory_fraction", 0.25),
        *("--set", "max_seq_len=256", "--set", f"{path}=2"),
    )
    assert result.exit_code == 7, result.output
    ((config, _),) = served
    assert config.max_batch_size == 16
    assert config.max_seq_len == 256
    assert config.kv_cache_config.free_gpu_memory_fraction == 0.25
    assert config.kv_cache_config.max_tokens == 1024
    image = config.multimodal_config.encoder_cuda_graph["image"]
    assert (image.max_batch_size, image.warmup_steps) == (2, 3)
    assert result.stderr.splitlines() == [
        f"note: max_batch_size: 8 ({file}) replaced by 16 (--max_batch_size)",
        f"note: max_seq_len: 4096 ({file}) replaced by 512 (--max_seq_len)",
        f"note: kv_cache_config.free_gpu_memory_fraction: 0.5 ({file}) replaced by 0.25 "
        "(--kv_cache_free_gpu_memory_fraction)",
        "note: max_seq_len: 512 (--max_seq_len) replaced by 256 (--set)",
        f"note: {path}: 8 ({file}) replaced by 2 (--set)",
    ]


def test_a_flag_counts_only_where_it_was_given(served: list[Any], file: Path) -> None:
    file.write_text("trust_remote_code: true\ndtype: float16\nmodel: of/the/file\n")
    assert run("--config", file).exit_code == 7
    ((config, _),) = served
    assert config.trust_remote_code
    assert (config.dtype, config.model) == ("float16", "of/the/file")
    assert config.model_fields_set == {"trust_remote_code", "dtype", "model"}
    # A flag that says what the default is has been given all the same.
    assert run("--config", file, "--dtype", "auto").exit_code == 7
    assert served[1][0].dtype == "auto"


def test_the_model_argument_replaces_the_files_model_and_says_so(
    served: list[Any], file: Path
) -> None:
    file.write_text("model: a\n")
    result = run("b", "--config", file)
    assert served[0][0].model == "b"
    assert result.stderr == f'note: model: "a" ({file}) replaced by "b" (MODEL)\n'


@pytest.mark.parametrize("name", ["--config", "--extra_llm_api_options"])
def test_both_names_of_the_file(served: list[Any], file: Path, name: str) -> None:
    assert run("dir", name, file).exit_code == 7
    assert served[0][0].max_batch_size == 8


@pytest.mark.parametrize(
    "name", ["--kv_cache_free_gpu_memory_fraction", "--free_gpu_memory_fraction"]
)
def test_both_names_of_the_memory_fraction(served: list[Any], name: str) -> None:
    assert run("dir", name, "0.5").exit_code == 7
    assert served[0][0].kv_cache_config.free_gpu_memory_fraction == 0.5


def test_every_problem_is_a_line_and_the_server_is_not_started(
    served: list[Any], file: Path
) -> None:
    file.write_text("max_batch_size: 0\nmax_sequence: 1\n")
    lines = fails("dir", "--config", file, "--max_num_tokens", 0, "--set", "kv_cache_config.x=1")
    assert len(lines) == 4
    assert lines[0].startswith("error: --max_num_tokens: max_num_tokens: ")
    assert lines[1].startswith("error: --set: kv_cache_config.x: unknown key")
    assert lines[2].startswith(f"error: {file}:1: max_batch_size: ")
    assert lines[3].startswith(f"error: {file}:2: max_sequence: unknown key")

    file.write_text("a: [1\n")
    (line,) = fails("dir", "--config", file)
    assert line.startswith(f"error: {file}:2: ")
    (line,) = fails("dir", "--config", file.parent / "none.yaml")
    assert line.endswith("none.yaml: cannot be read: No such file or directory")
    assert fails() == [
        "error: no model: give its folder, trtllm-ext serve MODEL, or the file's key model"
    ]
    file.write_text("max_batch_size: 8\n")
    (line,) = fails("dir", "--config", file, "--set", "a=1", "--set", "a.b=1")
    assert line.startswith("error: command line: --set a and --set a.b overlap")
    assert served == []


def test_values_that_contradict_each_other(served: list[Any], file: Path) -> None:
    (line,) = fails("dir", "--config", file, "--set", f"{GRAPHS}.image.buckets=[[256, 1]]")
    assert f"both buckets (--set) and max_batch_size ({file})" in line
    # Neither value is wrong alone, and none has a line of the file.
    (line,) = fails("dir", "--max_num_tokens", 4, "--set", f"{GRAPHS}.audio.max_batch_size=8")
    assert line.startswith(
        f"error: command line: {GRAPHS}.audio.max_batch_size (8) is above the encoder's token "
    ), line
    assert served == []


def test_options_of_the_server(served: list[Any]) -> None:
    result = run(
        *("dir", "--host", "127.0.0.1", "--port", 0, "--served_model_name", "m"),
        *("--max_queue_size", 3, "--shutdown_grace_period", 1.5, "--log_format", "json"),
        *("--log_level", "trace", "--no_metrics_require_key"),
    )
    assert result.exit_code == 7, result.output
    assert served[0][1] == HttpOptions(
        host="127.0.0.1",
        port=0,
        served_model_name="m",
        max_queue_size=3,
        shutdown_grace_period=1.5,
        log_format="json",
        log_level="debug",
        metrics_require_key=False,
    )


def test_bad_options_of_the_server(served: list[Any]) -> None:
    lines = fails("dir", "--port", 70000, "--max_queue_size", 0)
    assert lines[0].startswith("error: --max_queue_size: max_queue_size: ")
    assert lines[1].startswith("error: --port: port: ")
    assert "65535" in lines[1]
    assert len(lines) == 2
    (line,) = fails("dir", "--max_body_bytes", 2**30 + 1)
    assert "max_total_body_bytes is 1073741824, less than max_body_bytes 1073741825" in line
    assert served == []


@pytest.mark.parametrize("level", LOG_LEVELS)
def test_every_log_level_of_upstream_is_one_of_ours(served: list[Any], level: str) -> None:
    assert run("dir", "--log_level", level).exit_code == 7


def test_api_key_from_environment_or_file(served: list[Any], tmp_path: Path) -> None:
    assert run("dir", TRTLLM_EXT_API_KEY="from-environment").exit_code == 7
    assert served[0][1].api_key.get_secret_value() == "from-environment"
    path = tmp_path / "key"
    path.write_text("from-file\n")
    run("dir", "--api_key_file", path, TRTLLM_EXT_API_KEY="from-environment")
    assert served[1][1].api_key.get_secret_value() == "from-file"
    assert run("dir").exit_code == 7
    assert served[2][1].api_key is None


@pytest.mark.parametrize("key", ["", " \n", "two words", "s\u00e9cret", "x" * 5000, "a\nb"])
def test_a_key_that_is_none_is_refused_and_not_shown(
    served: list[Any], tmp_path: Path, key: str
) -> None:
    path = tmp_path / "key"
    path.write_text(key, encoding="utf-8")
    for line in (*fails("dir", "--api_key_file", path), *fails("dir", TRTLLM_EXT_API_KEY=key)):
        assert "no key: it must be 1 to 4096 visible ASCII characters" in line
        assert not key.strip() or key[:4] not in line
    (line,) = fails("dir", "--api_key_file", tmp_path / "none")
    assert "cannot be read" in line
    assert served == []


def test_no_argument_takes_a_key() -> None:
    names = {name for option in serve.params for name in option.opts}
    assert "--api_key" not in names
    assert run("dir", "--api_key", "x").exit_code == 2


def test_every_field_of_the_server_is_a_flag_of_its_name() -> None:
    options = {o.path[0]: o for o in serve.params if isinstance(o, FieldOption)}
    ours = {name: o for name, o in options.items() if o.model is HttpOptions}
    assert set(ours) == set(HttpOptions.model_fields) - {"api_key"}
    for name, option in ours.items():
        assert option.opts == [f"--{name}"]


def test_flags_take_type_default_and_help_from_the_field() -> None:
    options = {o.name: o for o in serve.params if isinstance(o, FieldOption)}
    assert options["max_seq_len"].type is click.INT
    assert options["dtype"].type.choices == ("auto", "float32", "bfloat16", "float16")
    assert options["trust_remote_code"].is_flag
    field = ServeConfig.model_fields["max_batch_size"]
    assert options["max_batch_size"].help == f"{field.description} [default: 2048] [stable]"
    fraction = options["kv_cache_free_gpu_memory_fraction"]
    assert fraction.help.startswith("kv_cache_config.free_gpu_memory_fraction: Share")
    assert fraction.type is click.FLOAT


def test_other_commands_do_not_load_the_server() -> None:
    code = (
        "import sys, tensorrt_llm_ext.cli; "
        "bad = {'pydantic', 'torch', 'fastapi', 'uvicorn'} & set(sys.modules); sys.exit(str(bad) "
        "if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_help_needs_no_server_packages() -> None:
    code = (
        "import sys; sys.modules['fastapi'] = sys.modules['uvicorn'] = None\n"
        "from tensorrt_llm_ext.cli import main; main(['serve', '--help'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "--max_queue_size" in done.stdout


@pytest.fixture
def handed_over(monkeypatch: pytest.MonkeyPatch, served: list[Any]) -> list[Any]:
    """As where TensorRT-LLM is installed; notes the calls of trtllm-serve."""
    calls: list[Any] = []

    class Call(HandOver):
        def go(self) -> NoReturn:
            calls.append(self.argv)
            sys.exit(0)

    def command(model: str, values: dict[str, Any], flags: list[str]) -> HandOver:
        return Call((model, json.dumps(values), *flags), {}, Path("written.yaml"))

    monkeypatch.setattr("tensorrt_llm_ext.trtllm.serve.available", lambda: True)
    monkeypatch.setattr(serve_module, "serve_command", command)
    return calls


def test_trtllm_serve_takes_over_with_file_and_flags(handed_over: list[Any], file: Path) -> None:
    """What it is given is not for our schema to check."""
    file.write_text("tensor_parallel_size: 2\nmax_batch_size: 4\n")
    result = run("m", "--config", file, "--port", 81, "--log_level", "verbose", "--set", "x=1")
    assert result.exit_code == 0
    assert result.stderr.startswith("note: TensorRT-LLM is the host (--backend torch: not): m ")
    ((model, values, *words),) = handed_over
    assert model == "m"
    assert {"tensor_parallel_size": 2, "max_batch_size": 4, "x": 1}.items() <= json.loads(
        values
    ).items()
    assert words == ["--port", "81", "--log_level", "verbose"]


@pytest.mark.parametrize("choice", [("--backend", "torch"), ("--device", "cpu")])
def test_the_embedded_engine_serves_when_asked_for(
    handed_over: list[Any], served: list[Any], choice: tuple[str, str]
) -> None:
    assert run("m", *choice).exit_code == 7
    assert len(served) == 1
    assert handed_over == []


def test_what_trtllm_serve_cannot_take_over_is_named(
    handed_over: list[Any], served: list[Any], tmp_path: Path
) -> None:
    (line,) = fails("m", "--max_queue_size", 3, "--api_key_file", tmp_path / "key", "--port", 9)
    assert line.startswith("error: --max_queue_size, --api_key_file: of the embedded server only")
    (line,) = fails("m", "--set", "media_limits.max_frames=3")
    assert line.startswith("error: media_limits: of the embedded server only")
    (line,) = fails("--port", 9)
    assert line.startswith("error: no model")
    (line,) = fails("m", TRTLLM_EXT_API_KEY="secret")
    assert line.startswith("error: TRTLLM_EXT_API_KEY: of the embedded server only")
    assert handed_over == served == []


def test_a_refusal_and_a_missing_command_are_a_line(
    handed_over: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve_module, "serve_command", lambda *call: Refusal("because"))
    assert fails("m") == ["error: because"]
    missing = HandOver(("/no/such/command",), {}, Path("written.yaml"))
    monkeypatch.setattr(serve_module, "serve_command", lambda *call: missing)
    *_, line = fails("m")
    assert line == "error: /no/such/command cannot be started: No such file or directory"


def test_a_missing_server_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Without(ModuleType):
        """The package where fastapi is not installed."""

        def __getattr__(self, name: str) -> Any:
            raise ModuleNotFoundError("No module named 'fastapi'", name="fastapi")

    monkeypatch.setitem(sys.modules, "tensorrt_llm_ext.serve", Without("tensorrt_llm_ext.serve"))
    assert fails("dir") == [
        "error: serving needs fastapi: pip install 'tensorrt_llm_ext[serve]'",
    ]
