"""What is in a sandbox: pure, on random views."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from worker.builtin.sandbox import Mount, Sandbox, View, mounts

NAMES = st.sampled_from(["a", "b", "usr", "etc", "tmp", "home", "me", ".git", "pods"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map(lambda parts: Path("/", *parts))
PLACES = st.lists(PATHS, max_size=4).map(tuple)


def last(found: list[Mount], path: Path) -> Mount | None:
    """The mount that a path lies in: the last one that covers it."""
    return next((m for m in reversed(found) if path.is_relative_to(m.path)), None)


@given(read=PLACES, write=PLACES, guarded=PLACES, hidden=PLACES, path=PATHS, home=PATHS, private=st.booleans())
def test_nothing_of_the_machine_is_writable_but_write_roots_without_what_is_guarded_or_hidden(
    read: tuple[Path, ...],
    write: tuple[Path, ...],
    guarded: tuple[Path, ...],
    hidden: tuple[Path, ...],
    path: Path,
    home: Path,
    private: bool,
) -> None:
    found = mounts(View((*read, *write), write, guarded, hidden, home, private))
    mount = last(found, path)
    writable = mount is not None and mount.how == "bind"
    in_a_root = any(path.is_relative_to(root) for root in write)
    kept = any(path.is_relative_to(place) for place in (*guarded, *hidden))
    assert not writable or (in_a_root and not kept)
    if in_a_root and not kept and not any(r.is_relative_to(p) for r in write for p in (*guarded, *hidden)):
        assert writable


@given(read=PLACES, write=PLACES, hidden=PLACES, path=PATHS, home=PATHS)
def test_nothing_of_the_machine_is_seen_but_roots_and_the_systems_folders_and_nothing_hidden(
    read: tuple[Path, ...], write: tuple[Path, ...], hidden: tuple[Path, ...], path: Path, home: Path
) -> None:
    mount = last(mounts(View((*read, *write), write, (), hidden, home)), path)
    if mount is None or mount.how not in ("bind", "ro-bind"):
        return
    assert not any(path.is_relative_to(place) for place in hidden)
    assert any(path.is_relative_to(root) for root in (*read, *write)) or path.parts[1] in ("usr", "etc")


@given(read=PLACES, write=PLACES, guarded=PLACES, hidden=PLACES, path=PATHS, home=PATHS)
def test_a_view_without_write_roots_has_nothing_writable(
    read: tuple[Path, ...],
    write: tuple[Path, ...],
    guarded: tuple[Path, ...],
    hidden: tuple[Path, ...],
    path: Path,
    home: Path,
) -> None:
    mount = last(mounts(View((*read, *write), (), guarded, hidden, home, False)), path)
    assert mount is None or mount.how in ("ro-bind", "mask", "dir") or path.is_relative_to("/tmp")


@given(write=PLACES, guarded=PLACES, hidden=PLACES)
def test_no_folder_between_a_root_and_a_guarded_place_can_be_moved_away(
    write: tuple[Path, ...], guarded: tuple[Path, ...], hidden: tuple[Path, ...]
) -> None:
    """A mount can't be renamed, a folder that only holds one can."""
    found = mounts(View(write, write, guarded, hidden))
    own = {m.path for m in found}
    for mount in found:
        if mount.how in ("ro-bind", "mask") and mount.path in (*guarded, *hidden):
            root = next((m.path for m in found if m.how == "bind" and mount.path.is_relative_to(m.path)), None)
            if root is not None:
                assert {p for p in mount.path.parents if p.is_relative_to(root)} <= own


def test_a_sandbox_says_what_it_allows() -> None:
    cwd = Path("/w")
    told = Sandbox("workspace", cwd, (cwd, Path("/data")), (cwd / "out",)).told()
    assert "reads ., /data, out; writes out, but not .git" in told and "no network" in told
    told = Sandbox("read-only", cwd, (cwd,), (cwd,), network=True).told()
    assert "writes nothing;" in told and "; network." in told
