# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest
from click.testing import CliRunner

from tensorrt_llm_ext import __version__
from tensorrt_llm_ext.cli import main

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "serve" / "qwen3_vl.yaml"
BAD = Path(__file__).parent / "data" / "bad.yaml"


def run(*args):
    return CliRunner().invoke(main, [str(arg) for arg in args])


def test_version():
    result = run("--version")
    assert (result.exit_code, result.output) == (0, f"trtllm-ext, version {__version__}\n")


@pytest.mark.parametrize("command", [(), ("validate",), ("schema",)])
def test_help_says_how_stable_things_are(command):
    result = run(*command, "--help")
    assert result.exit_code == 0
    if command:
        assert "beta" in result.output


def test_a_good_file_is_ok():
    result = run("validate", EXAMPLE)
    assert (result.exit_code, result.output) == (0, "ok\n")


def test_every_problem_is_reported_with_line_path_value_and_allowed():
    result = run("validate", BAD)
    assert result.exit_code == 1
    assert result.stdout == ""
    lines = [line.removeprefix(f"error: {BAD}") for line in result.stderr.splitlines()]
    expected = [
        (":2: trust_remote_code: must be true or false", '(got "on")'),
        (":3: max_batch_sizes: unknown key", "did you mean 'max_batch_size'? allowed: backend,"),
        (":4: dtype: ", "'auto', 'float32', 'bfloat16' or 'float16' (got \"bf16\")"),
        (":5: tensor_parallel_size: ", "use backend tensorrt_llm. (got 2)"),
        (":7: kv_cache_config.free_gpu_memory_fraction: ", "greater than 0 (got 0)"),
        (
            ":8: kv_cache_config.tokens: unknown key",
            "allowed: free_gpu_memory_fraction, max_tokens, and without effect: attention_dp_",
        ),
        (
            ":11: multimodal_config.encoder_cuda_graph.img: unknown modality",
            "allowed: audio, image",
        ),
        (
            ":16: multimodal_config.encoder_cuda_graph.vision.buckets[1][0]: ",
            "not the bool true (got true)",
        ),
        (":17: multimodal_config.encoder_cuda_graph.vision.bukets: ", "did you mean 'buckets'?"),
    ]
    assert len(lines) == len(expected)
    for line, (start, part) in zip(lines, expected, strict=True):
        assert line.startswith(start)
        assert part in line


def test_unreadable_files_are_one_line(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("a: 1\na: 2\n")
    result = run("validate", path)
    assert result.exit_code == 1
    assert result.stderr == (
        f"error: {path}:2: duplicate key 'a', first given in line 1; keep one\n"
    )
    result = run("validate", tmp_path / "none.yaml")
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1


def test_set_replaces_values_and_says_so():
    path = "multimodal_config.encoder_cuda_graph.image"
    result = run("validate", EXAMPLE, "--set", f"{path}.max_batch_size=4")
    assert (result.exit_code, result.stdout) == (0, "ok\n")
    assert f"{path}.max_batch_size: 8 ({EXAMPLE}) replaced by 4 (--set)" in result.stderr

    result = run("validate", EXAMPLE, "--set", f"{path}.max_batch_size=0")
    assert result.exit_code == 1
    assert f"error: --set: {path}.max_batch_size: " in result.stderr

    result = run("validate", EXAMPLE, "--set", f"{path}.buckets=[[4, 1]]")
    assert result.exit_code == 1
    assert f"both buckets (--set) and max_batch_size ({EXAMPLE})" in result.stderr

    result = run("validate", EXAMPLE, "--set", "a.b=1", "--set", "a=1")
    assert result.exit_code == 1
    assert "overlap" in result.stderr


def test_keys_without_effect_are_noted(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("attn_backend: FLASHINFER\n")
    result = run("validate", path)
    assert (result.exit_code, result.stdout) == (0, "ok\n")
    assert "accepted without effect by the embedded engine: attn_backend" in result.stderr


def test_schema_writes_and_checks(tmp_path):
    where = ("--output_dir", tmp_path / "s", "--docs_dir", tmp_path / "d")
    result = run("schema", *where, "--check")
    assert result.exit_code == 1
    assert result.stderr.count("missing") == 3
    assert not (tmp_path / "s").exists()
    assert run("schema", *where).exit_code == 0
    assert (run("schema", *where, "--check").exit_code, run("schema", *where).output) == (0, "")
    for name in ("multimodal-config.schema.json", "trtllm-ext-serve-config.schema.json"):
        assert (tmp_path / "s" / name).read_bytes() == (ROOT / "schemas" / name).read_bytes()
    (tmp_path / "d" / "upstream-keys.md").write_text("old")
    result = run("schema", *where, "--check")
    assert result.exit_code == 1
    assert "upstream-keys.md: differs" in result.stderr
    assert "run `trtllm-ext schema`" in result.stderr
