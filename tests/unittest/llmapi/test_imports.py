# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The configuration can be read without torch, and public names are imported on first use."""

import subprocess
import sys

import pytest

import tensorrt_llm_ext
from tensorrt_llm_ext import llmapi

MODULES = ("mm_config", "llm_args", "sampling_params", "schema", "overrides", "problems", "yaml_io")


@pytest.mark.parametrize("module", [*(f"llmapi.{name}" for name in MODULES), "cli"])
def test_configuration_imports_no_torch(module):
    code = (
        f"import sys, tensorrt_llm_ext.{module}; "
        "heavy = {'torch', 'transformers', 'numpy'} & set(sys.modules); "
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", [tensorrt_llm_ext, llmapi])
def test_names_are_lazy_and_unknown_ones_are_errors(package):
    assert package.LLM.__name__ == "LLM"
    assert set(package.__all__) - {"__version__"} == set(package._EXPORTS)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        package.Nothing  # noqa: B018


@pytest.mark.parametrize("package", ["tensorrt_llm_ext", "tensorrt_llm_ext.llmapi"])
def test_dir_lists_public_names_before_their_first_use(package):
    code = (
        f"import sys, {package} as package; "
        "missing = {*package.__all__, '__name__'} - set(dir(package)); "
        "sys.exit(f'missing: {missing}' if missing else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
