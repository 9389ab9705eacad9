# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorrt_llm_ext.llmapi.yaml_io import (
    MAX_BYTES,
    MAX_NODES,
    ConfigFileError,
    load_yaml_file,
    load_yaml_text,
    parse_yaml_value,
)

BOMB = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{b}: &{b} [{','.join([f'*{a}'] * 10)}]\n" for a, b in zip("abcd", "bcde", strict=True)
)

# Deep only once the alias is expanded. The line is that of the value, not of the alias.
DEEP = "b: 1\na: &a " + "[" * 40 + "]" * 40 + "\nb2: " + "[" * 40 + "*a" + "]" * 40


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "duplicate key 'a', first given in line 1"),
        ("a:\n  b: 1\n  'b': 2\n", 3, "duplicate key 'b'"),
        ("- 1\n", 1, "the file holds a list; it must hold a mapping"),
        ("# x\n5\n", 2, "the file holds a single value"),
        ("a:\n\tb: 1\n", 2, "a tab: indent and separate with spaces"),
        ("a: !!python/object:os.system x\n", 1, "python/object:os.system' is not allowed"),
        ("a: !!python/object/apply:os.system [x]\n", 1, "is not allowed"),
        ("a: !!binary aGk=\n", 1, "is not allowed"),
        ("a: !own {b: 1}\n", 1, "is not allowed"),
        ("a: !!int x\n", 1, "is not allowed"),
        ("a: .inf\n", 1, "not a finite number"),
        ("a: -.INF\n", 1, "not a finite number"),
        ("a: .nan\n", 1, "not a finite number"),
        ("a: 1e999\n", 1, "not a finite number"),
        ("a: " + "9" * 5000, 1, "too many digits"),
        ("a: 1\nb: 0777\n", 2, "starts with 0"),
        (BOMB, 1, f"aliases expand to more than {MAX_NODES} values"),
        ("a: &a [*a]\n", 1, "an alias refers to a value that contains it"),
        ("a: &a {b: *a}\n", 1, "an alias refers to a value that contains it"),
        ("a: *b\n", 1, "undefined alias"),
        ("a: " + "[" * 1000 + "]" * 1000, 1, "nested more than 64 levels deep"),
        ("a: [" + "1," * MAX_NODES + "]", 1, f"more than {MAX_NODES} values; that is no"),
        (DEEP, 2, "nested more than 64 levels deep"),
        ("a: 1\n---\nb: 1\n", 2, "more than one document"),
        ("a: [1\nb: 2\n", 2, "expected ',' or ']'"),
        ("a: b: c\n", 1, "mapping values are not allowed here"),
        ("b: 1\na: 'x\n", 3, "unexpected end of stream"),
        ("1: 1\n", 1, "the key '1' is not a name"),
        ("null: 1\n", 1, "the key 'null' is not a name"),
        ("? [a]\n: 1\n", 1, "a key is a list or a mapping"),
        ("a: &x {b: 1}\nc:\n  <<: *x\n", 3, "merge keys (<<) are not supported"),
        ("a: 1\nb: \x01\n", 2, "U+0001 is not allowed"),
        (b"a: 1\nb: \xff\n", 2, "not UTF-8 (byte 0xff)"),
        ("a: 1\n".encode("utf-16"), 1, "not UTF-8"),
        ("#" + "x" * MAX_BYTES, None, "larger than 256 KiB"),
    ],
    ids=lambda v: repr(v)[:40],
)
def test_traps_are_errors_of_one_line_with_their_place(text, line, reason):
    with pytest.raises(ConfigFileError) as caught:
        load_yaml_text(text, "c.yaml")
    error = caught.value
    assert reason in error.reason
    assert error.line == line
    assert str(error).startswith("c.yaml" if line is None else f"c.yaml:{line}: ")
    assert "\n" not in str(error)
    assert len(str(error)) < 300


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on", "on"),
        ("yes", "yes"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("1e3", 1000.0),
        ("-1.5", -1.5),
        (".5", 0.5),
        ("1.", 1.0),
        ("+12", 12),
        ("0o17", 15),
        ("0x1F", 31),
        ("1_000", "1_000"),
        ("12:30:00", "12:30:00"),
        ("2026-01-01", "2026-01-01"),
        ("'8'", "8"),
        ("!!str 8", "8"),
        ("[[256, 1], [512, 2]]", [[256, 1], [512, 2]]),
        ("{a: {b: [1]}}", {"a": {"b": [1]}}),
        ("[&x [1], *x]", [[1], [1]]),
    ],
)
def test_values_follow_the_yaml_1_2_core_schema(text, value):
    result = parse_yaml_value(text, "test")
    assert result == value
    assert type(result) is type(value)


def test_aliased_values_are_not_shared():
    values = load_yaml_text("a: &x {b: 1}\nc: *x\n", "t").values
    values["a"]["b"] = 2
    assert values["c"] == {"b": 1}


def test_lines_of_every_key_and_item():
    document = load_yaml_text("a: 1\nb:\n  c:\n    - [1, 2]\n    - 3\n", "t")
    assert document.lines[("a",)] == 1
    assert document.lines[("b",)] == 2
    assert document.lines[("b", "c")] == 3
    assert document.lines[("b", "c", 0)] == 4
    assert document.lines[("b", "c", 0, 1)] == 4
    assert document.lines[("b", "c", 1)] == 5


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "~\n", b"\xef\xbb\xbf"])
def test_an_empty_file_is_an_empty_mapping(text):
    assert load_yaml_text(text, "t").values == {}


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigFileError, match="No such file"):
        load_yaml_file(tmp_path / "none.yaml")
    with pytest.raises(ConfigFileError, match="directory"):
        load_yaml_file(tmp_path)


def test_only_the_limit_is_read(tmp_path):
    path = tmp_path / "big.yaml"
    path.write_bytes(b"#" * (MAX_BYTES + 5))
    with pytest.raises(ConfigFileError, match="larger than"):
        load_yaml_file(path)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.text(alphabet="ab:,[]{}&*!<>-?|'\"#% \n\t01.~\x00é", max_size=40) | st.binary(max_size=30)
)
def test_any_text_is_a_mapping_or_a_clear_error(text):
    message, values = "", {}
    try:
        values = load_yaml_text(text, "t").values
    except ConfigFileError as error:
        message = str(error)
    assert isinstance(values, dict)
    assert "\n" not in message
