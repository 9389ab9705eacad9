# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Registration waits for TensorRT-LLM, happens once, and is all or nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tensorrt_llm_ext.trtllm import arrival, nccl, probe

STUB = 'print("upstream is loaded")\n__version__ = "0"\n'


def run(code: str, stub: Path | None, **env: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(stub or ""), os.getcwd()]))
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path, **env},
    )


@pytest.fixture
def stub(tmp_path: Path) -> Path:
    (tmp_path / "tensorrt_llm").mkdir()
    (tmp_path / "tensorrt_llm" / "__init__.py").write_text(STUB)
    return tmp_path


def test_import_waits_for_upstream(stub: Path) -> None:
    code = (
        "import tensorrt_llm_ext, sys; assert 'tensorrt_llm' not in sys.modules; "
        "assert 'torch' not in sys.modules; import tensorrt_llm, tensorrt_llm as again; "
        "print(again.__version__, again.__spec__.loader is again.__loader__); "
        "from tensorrt_llm_ext.trtllm.registration import _done; print(_done.refusal)"
    )
    out = run(code, stub).stdout.splitlines()
    assert out[:2] == ["upstream is loaded", "0 True"]
    assert "modeling_multimodal_encoder" in out[2]


def test_who_asks_whether_upstream_is_there_does_not_end_the_wait(stub: Path) -> None:
    code = (
        "import tensorrt_llm_ext, sys, importlib.util; "
        "print(importlib.util.find_spec('tensorrt_llm').name); "
        "from tensorrt_llm_ext.trtllm.arrival import installed; print(installed()); "
        "import tensorrt_llm; "
        "print(sys.modules['tensorrt_llm_ext.trtllm.registration']._done.active); "
        "print([f for f in sys.meta_path if type(f).__module__.startswith('tensorrt_llm_ext')])"
    )
    out = run(code, stub).stdout.splitlines()
    assert out == ["tensorrt_llm", "True", "upstream is loaded", "False", "[]"]


DONE = "print(sys.modules['tensorrt_llm_ext.trtllm.registration']._done.active)"


def test_an_import_in_the_middle_of_upstreams_is_not_lost(stub: Path) -> None:
    init = stub / "tensorrt_llm" / "__init__.py"
    init.write_text("import sys, tensorrt_llm_ext\nprint('ours', 'torch' in sys.modules)\n" + STUB)
    out = run(f"import tensorrt_llm, sys; {DONE}", stub).stdout.splitlines()
    assert out == ["ours False", "upstream is loaded", "False"]


def test_an_import_in_the_middle_of_one_that_fails_is_not_lost(stub: Path) -> None:
    init = stub / "tensorrt_llm" / "__init__.py"
    init.write_text(
        "import os, tensorrt_llm_ext\nif not os.environ.pop('READY', ''): raise OSError('x')\n"
    )
    code = (
        "import sys, os\n"
        "try:\n    import tensorrt_llm\nexcept OSError:\n    os.environ['READY'] = '1'\n"
        f"import tensorrt_llm\n{DONE}"
    )
    assert run(code, stub).stdout.splitlines() == ["False"]


def test_an_import_by_another_thread_is_followed(stub: Path) -> None:
    init = stub / "tensorrt_llm" / "__init__.py"
    init.write_text("import time, builtins\nbuiltins.begun = True\ntime.sleep(1)\n" + STUB)
    code = (
        "import builtins, importlib, sys, threading, time\n"
        "other = threading.Thread(target=importlib.import_module, args=['tensorrt_llm'])\n"
        "other.start()\n"
        "while not hasattr(builtins, 'begun'): time.sleep(0.01)\n"
        "import tensorrt_llm_ext\nprint('ours')\nother.join()\n"
        f"{DONE}"
    )
    assert run(code, stub).stdout.splitlines() == ["ours", "upstream is loaded", "False"]


def test_nothing_of_upstreams_import_is_ours(stub: Path) -> None:
    init = stub / "tensorrt_llm" / "__init__.py"
    init.write_text(
        "import importlib.util as u\n"
        "print(type(__loader__).__name__, type(__spec__.loader).__name__)\n"
    )
    code = (
        "import tensorrt_llm_ext, importlib.util as u, sys\n"
        "print(type(u.find_spec('tensorrt_llm').loader).__name__)\n"
        "import tensorrt_llm\nprint(type(tensorrt_llm.__spec__).__module__)\n"
        "print(type(tensorrt_llm.__spec__) is type(sys.__spec__))"
    )
    source = "SourceFileLoader"
    expected = [source, f"{source} {source}", "_frozen_importlib", "True"]
    assert run(code, stub).stdout.splitlines() == expected


OTHER = """
import sys
from importlib.machinery import ModuleSpec, PathFinder
import tensorrt_llm_ext

class Spec(ModuleSpec):
    {member}

class Finder:
    @staticmethod
    def find_spec(name, path, target=None):
        if name != "tensorrt_llm":
            return None
        found = PathFinder.find_spec(name, path, target)
        spec = Spec(name, found.loader, origin=found.origin)
        spec.submodule_search_locations = found.submodule_search_locations
        spec.has_location = True
        return spec

sys.meta_path.insert({place}, Finder)
import tensorrt_llm
print(type(tensorrt_llm.__spec__) is Spec)
"""


@pytest.mark.parametrize("place", [0, 1])
def test_other_finders_may_come_before_and_after(stub: Path, place: int) -> None:
    """One that comes before ours is noticed by what upstream imports next."""
    (stub / "tensorrt_llm" / "sub.py").write_text("")
    (stub / "tensorrt_llm" / "__init__.py").write_text("import tensorrt_llm.sub\n" + STUB)
    code = OTHER.format(member="pass", place=place) + DONE
    assert run(code, stub).stdout.splitlines() == ["upstream is loaded", "True", "False"]


def test_an_import_that_cannot_be_followed_is_told(stub: Path) -> None:
    final = "def __init_subclass__(cls): raise TypeError('final')"
    ran = run(OTHER.format(member=final, place=1), stub)
    assert ran.stdout.splitlines() == ["upstream is loaded", "True"]
    assert "cannot see the end of the import of tensorrt_llm (final)" in ran.stderr
    assert "call tensorrt_llm_ext.trtllm.register() after it" in ran.stderr


def test_upstream_may_become_importable_later(stub: Path) -> None:
    code = f"import tensorrt_llm_ext, sys; sys.path.append({str(stub)!r}); import tensorrt_llm; "
    assert run(code + DONE, None).stdout.splitlines() == ["upstream is loaded", "False"]


def test_an_import_that_fails_may_be_tried_again(stub: Path) -> None:
    init = stub / "tensorrt_llm" / "__init__.py"
    init.write_text("import os\nif not os.environ.pop('READY', ''): raise OSError('no driver')\n")
    code = (
        "import tensorrt_llm_ext, sys, os\n"
        "try:\n    import tensorrt_llm\nexcept OSError:\n    os.environ['READY'] = '1'\n"
        "import tensorrt_llm\n"
        "print(sys.modules['tensorrt_llm_ext.trtllm.registration']._done.active)"
    )
    assert run(code, stub).stdout.splitlines() == ["False"]


def test_registers_at_once_where_upstream_is_loaded(stub: Path) -> None:
    code = (
        "import tensorrt_llm, tensorrt_llm_ext, sys; "
        "print(sys.modules['tensorrt_llm_ext.trtllm.registration']._done.active)"
    )
    ran = run(code, stub)
    assert ran.stdout.splitlines() == ["upstream is loaded", "False"]
    assert "registered nothing" in ran.stderr


def test_switched_off(stub: Path) -> None:
    code = (
        "import tensorrt_llm_ext, sys; before = list(sys.meta_path); import tensorrt_llm; "
        "assert not [m for m in sys.modules if m.startswith('tensorrt_llm_ext.trtllm.reg')]; "
        "from tensorrt_llm_ext.trtllm import register; print(register().refusal)"
    )
    out = run(code, stub, TRTLLM_EXT_DISABLE="1").stdout.splitlines()
    assert out == ["upstream is loaded", "TRTLLM_EXT_DISABLE is set"]


def test_module_dir_stays_silent(stub: Path) -> None:
    out = run("from tensorrt_llm_ext.cli import main; main(['module-dir'])", stub)
    assert out.stdout == f"{arrival.module_dir()}\n"


def test_doctor(stub: Path) -> None:
    code = "from tensorrt_llm_ext.cli import main; main(['doctor'])"
    without = run(code, None).stdout
    assert "TensorRT-LLM: not installed" in without
    off = run(code, stub, TRTLLM_EXT_DISABLE="1").stdout
    assert "Switched off by TRTLLM_EXT_DISABLE" in off
    assert "upstream is loaded" not in off
    with pytest.raises(subprocess.CalledProcessError) as broken:
        run(code, stub)
    assert broken.value.returncode == 1
    assert "Nothing registered: not found: tensorrt_llm._torch" in broken.value.stdout


def test_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, off in (("", False), ("0", False), ("1", True), ("true", True)):
        monkeypatch.setenv(arrival.DISABLE, value)
        assert arrival.disabled() is off


def test_find() -> None:
    assert probe.find("os:path.sep") == os.sep
    assert probe.find("no_such_module:x", "os:sep") == os.sep
    missing = probe.find("no_such_module:x", "os:no_such")
    assert not missing
    assert "no_such_module:x" in missing.reason
    assert "no_such" in missing.reason


@pytest.mark.parametrize("fault", ["OSError('no driver')", "SystemExit(3)", "RuntimeError('x')"])
def test_whatever_an_import_raises_is_a_reason(stub: Path, fault: str) -> None:
    (stub / "tensorrt_llm" / "_torch").mkdir()
    (stub / "tensorrt_llm" / "_torch" / "__init__.py").write_text(f"raise {fault}\n")
    code = "from tensorrt_llm_ext.cli import main; main(['doctor'])"
    with pytest.raises(subprocess.CalledProcessError) as refused:
        run(code, stub)
    assert refused.value.returncode == 1
    assert "Traceback" not in refused.value.stderr
    cause = fault.replace("('", ": ").replace("')", "").replace("(", ": ").replace(")", "")
    lines = refused.value.stdout.splitlines()
    assert next(line for line in lines if line.startswith("Nothing registered")).count(cause) > 0


def test_takes() -> None:
    def function(one: object, *, two: int = 2) -> None: ...

    assert probe.takes(function, None, two=3)
    assert not probe.takes(function, None, three=3)
    assert not probe.takes(function)


def test_owner_of_communication_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert nccl.nccl_window_owner() is None
    calls = []

    class Bound:
        def __enter__(self) -> None:
            calls.append("bound")

        def __exit__(self, *error: object) -> None:
            calls.append("out")

    functions = {
        "nccl_window_graph_owner": lambda pool: Bound(),
        "release_nccl_window_graph_owner": calls.append,
    }
    monkeypatch.setattr(nccl, "find", lambda *names: functions[names[0].partition(":")[2]])
    owner = nccl.nccl_window_owner()
    assert owner is not None
    with owner.binding((1, 2)):
        calls.append("capture")
    owner.release((1, 2))
    assert calls == ["bound", "capture", "out", (1, 2)]
