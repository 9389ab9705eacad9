# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Case 39: files of one folder and no others."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from media_files import picture

from tensorrt_llm_ext.media import MediaDoor, MediaError, MediaLimits, MediaPart, local

PNG = picture()
NOT_THERE = "does not lead to a regular file"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The allowed folder, with a picture; beside it a secret one."""
    (tmp_path / "media" / "deep er").mkdir(parents=True)
    (tmp_path / "media" / "a.png").write_bytes(PNG)
    (tmp_path / "media" / "deep er" / "b.png").write_bytes(PNG)
    (tmp_path / "secret.png").write_bytes(PNG)
    (tmp_path / "media2").mkdir()
    (tmp_path / "media2" / "c.png").write_bytes(PNG)
    return tmp_path / "media"


def open_local(root: Path, source: str, **limits: int) -> None:
    door = MediaDoor(MediaLimits(allowed_local_media_path=str(root), **limits))
    part = MediaPart("image", source)
    door.check([part])
    assert door.open(part).size == (32, 24)


def refused(root: Path, source: str, match: str = NOT_THERE, **limits: int) -> None:
    with pytest.raises(MediaError, match=match) as caught:
        open_local(root, source, **limits)
    assert str(root.parent) not in str(caught.value)


def test_case_39_no_file_is_read_by_default(root: Path) -> None:
    for source in (f"{root}/a.png", f"file://{root}/a.png"):
        with pytest.raises(MediaError, match="reads no files"):
            MediaDoor(MediaLimits()).check([MediaPart("image", source)])


def test_case_39_inside_the_folder(root: Path) -> None:
    (root / "link.png").symlink_to("deep er/b.png")
    (root / "folder").symlink_to(root / "deep er")
    for source in (
        *(f"{root}/a.png", f"file://{root}/a.png", f"FILE://localhost{root}/a.png"),
        *(f"{root}/deep er/b.png", f"file://{root}/deep%20er/b.png", f"{root}/deep er/../a.png"),
        *(f"{root}/link.png", f"{root}/folder/b.png", f"{root}//a.png", f"{root}/./a.png"),
    ):
        open_local(root, source)


def test_case_39_the_folder_may_be_a_link_itself(root: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(root)
    open_local(tmp_path / "alias", f"{tmp_path}/alias/a.png")
    open_local(tmp_path / "alias", f"{root}/a.png")


def test_case_39_outside_the_folder(root: Path) -> None:
    (root / "out.png").symlink_to("../secret.png")
    (root / "up").symlink_to("..")
    (root / "ring").symlink_to("ring")
    for source in (
        *(f"{root}/../secret.png", f"{root}/../media2/c.png", f"{root}2/c.png", "/etc/passwd"),
        *(f"file://{root}/%2e%2e/secret.png", f"file://{root}/..%2fsecret.png"),
        *(f"{root}/out.png", f"{root}/up/secret.png", f"{root}/ring", f"{root}/none.png"),
        *(f"{root}/%2e%2e/secret.png", f"{root}/a.png/b", "/", str(root)),
        *(f"{root}/" + "a" * 5000, f"{root}/deep er", "/proc/self/environ", "/dev/zero"),
    ):
        refused(root, source)


def test_case_39_odd_forms(root: Path) -> None:
    for source in (
        *("a.png", "../secret.png", "~/a.png", "C:\\a.png", f"file:{root}/a.png", "file://"),
        *(f"file://evil.com{root}/a.png", f"file://{root}/a.png?x", f"file://{root}/a.png#x"),
        *(f"/{root}/a.png", f"{root}/a.png\0", f"file://{root}/a.png%00", "file:////host/share"),
        *(f"file://127.0.0.1{root}/a.png", f"file://user@localhost{root}/a.png"),
    ):
        refused(root, source, r"neither|must be|plain")


def test_case_39_regular_files_only(root: Path) -> None:
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "socket"))
        for name in ("fifo", "socket", ".", "deep er"):
            refused(root, f"{root}/{name}")


def test_case_39_devices(root: Path) -> None:
    for source in ("/dev/zero", "/dev/null", "/dev/stdin"):
        refused(Path("/dev"), source)


@pytest.mark.parametrize("swapped", ["a.png", "deep er"])
def test_case_39_what_is_swapped_after_the_check_is_not_followed(
    swapped: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = root / "a.png" if swapped == "a.png" else root / "deep er" / "b.png"
    (root.parent / "b.png").write_bytes(PNG)
    below = local._read_below

    def swap_first(base: Path, parts: tuple[str, ...], most: int) -> bytes:
        (root / swapped).rename(root / "gone")
        (root / swapped).symlink_to(root.parent / "secret.png" if swapped == "a.png" else "..")
        return below(base, parts, most)

    monkeypatch.setattr(local, "_read_below", swap_first)
    refused(root, str(source))


def test_case_39_a_fifo_that_takes_a_files_place_does_not_hang(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = os.stat

    def swap_after(path: str, **options: object) -> os.stat_result:
        found = stat(path, **options)  # type: ignore[arg-type]
        if path == "a.png" and "dir_fd" in options:
            (root / "a.png").unlink()
            os.mkfifo(root / "a.png")
        return found

    monkeypatch.setattr(os, "stat", swap_after)
    refused(root, f"{root}/a.png")


def test_case_39_size(root: Path) -> None:
    open_local(root, f"{root}/a.png", max_part_bytes=len(PNG))
    refused(root, f"{root}/a.png", r"more than .* bytes", max_part_bytes=len(PNG) - 1)
    refused(root, f"{root}/a.png", r"more than .* together", max_request_bytes=len(PNG) - 1)


def test_case_39_no_descriptor_is_left_open(root: Path) -> None:
    os.mkfifo(root / "fifo")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        open_local(root, f"{root}/deep er/b.png")
        refused(root, f"{root}/fifo")
        refused(root, f"{root}/none/none.png")
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_folder_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"allowed_local_media_path .* is not a folder"):
        MediaDoor(MediaLimits(allowed_local_media_path=str(tmp_path / "none")))
