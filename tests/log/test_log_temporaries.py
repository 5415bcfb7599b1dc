"""Two writers of one file at the same moment (case B070)."""

from __future__ import annotations

from pathlib import Path

from pod.log.files import Files


class Meeting(Files):
    """Right before its own bytes are durable, another writer replaces the same file, start to end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.met = False

    def sync(self, fd: int) -> None:
        if not self.met:
            self.met = True
            Files().put(self.path, b"the other's version")
            assert self.path.read_bytes() == b"the other's version"
        super().sync(fd)


def test_writers_that_replace_a_file_at_the_same_moment_have_temporaries_of_their_own(tmp_path: Path) -> None:
    """B070: neither is refused, nothing is mixed, the last one to take its place stands, and no temporary is left."""
    path = tmp_path / "pod.json"
    files = Meeting(path)
    files.put(path, b"mine")
    assert files.met and path.read_bytes() == b"mine"
    assert [p.name for p in tmp_path.iterdir()] == ["pod.json"]
