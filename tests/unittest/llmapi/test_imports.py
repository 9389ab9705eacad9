# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The configuration can be read without torch."""

import subprocess
import sys

import pytest

import tensorrt_llm_ext.llmapi as llmapi

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


def test_names_are_lazy_and_unknown_ones_are_errors():
    assert llmapi.LlmArgs.__name__ == "LlmArgs"
    assert set(llmapi.__all__) <= set(dir(llmapi))
    assert set(llmapi.__all__) == set(llmapi._EXPORTS)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        getattr(llmapi, "Nothing")  # noqa: B009
