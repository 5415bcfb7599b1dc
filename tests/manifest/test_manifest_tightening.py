"""A layer that may only tighten never allows more: real files, the real loader, the real decision."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import example, given, settings
from hypothesis import strategies as st

from interceptors.deciding import Rule, decide
from interceptors.facts import facts_of
from pod.guarding import sandbox_of
from pod.manifest import Loaded, Manifest, ManifestError, load_manifest
from pod.manifest.project import TIGHTENING, tightens
from worker.builtin.sandbox import View, mounts
from worker.builtin.scope import Scope
from worker.history import History
from worker.interceptor import CallContext
from worker.items import make_call
from worker.tools import Tool

RANK = {"allow": 2, "ask": 1, "deny": 0}
PROFILES = ("safe", "workspace-write", "read-only", "unattended")
TOOLS: dict[str, Any] = {
    "read_file": "read", "search_text": "read", "write_file": "write", "edit_file": "write", "shell": "process",
    "fetch_url": "network", "mine": "write", "session_history": "read",
}  # fmt: skip
ARGUMENTS = {
    "read": st.builds(dict, path=st.sampled_from(["a", "out/b", "../c", "/etc/passwd", "secret/key", "link/key"])),
    "write": st.builds(dict, path=st.sampled_from(["a", "out/b", "../c", "/etc/x", ".git/config", ".pod/config.toml"])),
    "process": st.builds(dict, command=st.sampled_from(["ls", "git push", "ls; rm -rf x", "$(x)", "make test"])),
    "network": st.builds(dict, url=st.sampled_from(["https://a.test/x", "https://b.test/", "http://127.0.0.1/"])),
}
CALLS = st.sampled_from(sorted(TOOLS)).flatmap(lambda name: st.tuples(st.just(name), ARGUMENTS[TOOLS[name]]))
MATCHES = st.sampled_from(
    ["*", "a", "out/*", "secret/*", "git *", "ls", "make*", "*.test", "https://a.test/*", "/etc/*"]
)


def rules(*actions: str) -> st.SearchStrategy[list[dict[str, str]]]:
    made = st.builds(
        lambda tool, match, action: {"tool": tool, "match": match, "action": action},
        st.sampled_from(["*", "shell", "write_file", "read_*", "fetch_url", "mine", "session_history"]),
        MATCHES,
        st.sampled_from(actions),
    )
    return st.lists(made, max_size=4)


def some(**values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=values)


SANDBOX = some(
    mode=st.sampled_from(["off", "workspace", "read-only"]),
    network=st.booleans(),
    git=st.sampled_from(["read-only", "writable"]),
)
PERMISSIONS = some(
    profile=st.sampled_from(PROFILES),
    when_headless=st.sampled_from(["pause", "deny"]),
    rules=rules("allow", "ask", "deny"),
)
ROOTS = st.lists(st.sampled_from([".", "out", "secret"]), unique=True, max_size=3)
LAYER = some(permissions=PERMISSIONS, sandbox=SANDBOX, scope=some(read=ROOTS, write=ROOTS))
PROJECT = some(
    permissions=some(
        profile=st.sampled_from(PROFILES),
        when_headless=st.sampled_from(["pause", "deny"]),
        rules=rules("deny", "deny", "deny", "allow"),
    ),
    sandbox=SANDBOX,
    limits=some(max_tool_calls=st.integers(1, 9)),
    scope=some(write=ROOTS),
)


class Place:
    """A working folder with a user's configuration, a project's and a manifest."""

    def __init__(self, base: Path) -> None:
        self.cwd, self.config = base / "work", base / "config" / "pod" / "config.toml"
        for folder in (self.cwd / ".pod", self.cwd / "out", self.cwd / "secret", self.config.parent):
            folder.mkdir(parents=True)
        (self.cwd / "link").symlink_to("/etc")
        self.env = {"XDG_CONFIG_HOME": str(self.config.parent.parent), "HOME": str(base)}

    def load(self, user: dict[str, Any], project: dict[str, Any] | None, manifest: dict[str, Any]) -> Loaded:
        self.config.write_text(tomli_w.dumps(user))
        own = self.cwd / ".pod" / "config.toml"
        own.unlink(missing_ok=True)
        if project is not None:
            own.write_text(tomli_w.dumps(project))
        path = self.cwd / "agent.toml"
        path.write_text(tomli_w.dumps({"version": 1, "model": {"name": "offline:surveyor"}, **manifest}))
        return load_manifest(path, env=self.env, cwd=self.cwd)

    def action(self, manifest: Manifest, name: str, arguments: dict[str, Any], granted: bool = False) -> str:
        """What becomes of a call where nobody is there."""
        tool = Tool(name=name, description="", parameters={}, call=lambda a, c: None, effect=TOOLS[name])
        ctx = CallContext(make_call("c1", name, "{}"), tool, arguments, History(), "tag")
        scope = Scope(self.cwd, read=manifest.scope.read, write=manifest.scope.write)
        of_manifest = [Rule(rule.tool, rule.match, rule.action) for rule in manifest.permissions.rules]
        facts = facts_of(ctx, scope)
        verdict = decide(facts, manifest.permissions.profile, of_manifest, writes_granted=granted)
        if verdict.action == "ask" and manifest.permissions.when_headless == "deny":
            return "deny"
        return verdict.action


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    base = tmp_path_factory.mktemp("tightening")
    yield Place(base)
    shutil.rmtree(base, ignore_errors=True)


@given(
    user=LAYER, project=PROJECT, manifest=LAYER, calls=st.lists(CALLS, min_size=1, max_size=6), granted=st.booleans()
)
@example(
    user={"permissions": {"profile": "unattended", "rules": [{"tool": "shell", "match": "*", "action": "ask"}]}},
    project={"permissions": {"profile": "read-only"}},
    manifest={},
    calls=[("shell", {"command": "ls"})],
    granted=False,
)
@settings(deadline=None)
def test_a_project_layer_never_turns_a_no_into_a_question_nor_a_question_into_a_yes(
    place: Place,
    user: dict[str, Any],
    project: dict[str, Any],
    manifest: dict[str, Any],
    calls: list[tuple[str, dict[str, Any]]],
    granted: bool,
) -> None:
    before = place.load(user, None, manifest).manifest
    try:
        after = place.load(user, project, manifest).manifest
    except ManifestError:
        return  # nothing runs at all
    for name, arguments in calls:
        was, now = (RANK[place.action(m, name, arguments, granted)] for m in (before, after))
        assert now <= was, (name, arguments)
    assert set(writable(place, after)) <= set(writable(place, before))
    assert reaches(after) <= reaches(before)


PATHS = [
    ("permissions", "profile"),
    ("permissions", "when_headless"),
    ("sandbox", "mode"),
    ("sandbox", "network"),
    ("sandbox", "git"),
]


@given(manifest=LAYER, calls=st.lists(CALLS, min_size=1, max_size=6), key=st.sampled_from(PATHS), data=st.data())
@settings(deadline=None)
def test_a_setting_in_the_place_of_a_looser_one_never_allows_more(
    place: Place,
    manifest: dict[str, Any],
    calls: list[tuple[str, dict[str, Any]]],
    key: tuple[str, str],
    data: st.DataObject,
) -> None:
    before = place.load({}, None, manifest).manifest
    now = getattr(getattr(before, key[0]), key[1])
    values = {"profile": PROFILES, "when_headless": ("pause", "deny"), "mode": ("off", "workspace", "read-only")}
    choice = values.get(key[1], (True, False) if key[1] == "network" else ("read-only", "writable"))
    tighter = [value for value in choice if tightens(TIGHTENING[key], now, value)]
    value = data.draw(st.sampled_from(tighter))
    changed = {**manifest, key[0]: {**manifest.get(key[0], {}), key[1]: value}}
    after = place.load({}, None, changed).manifest
    for name, arguments in calls:
        assert RANK[place.action(after, name, arguments)] <= RANK[place.action(before, name, arguments)]
    assert set(writable(place, after)) <= set(writable(place, before))
    assert reaches(after) <= reaches(before)


@given(manifest=LAYER, calls=st.lists(CALLS, min_size=1, max_size=6), data=st.data())
@settings(deadline=None)
def test_a_stricter_rule_or_a_smaller_scope_never_allows_more(
    place: Place, manifest: dict[str, Any], calls: list[tuple[str, dict[str, Any]]], data: st.DataObject
) -> None:
    before = place.load({}, None, manifest).manifest
    mine = list(before.permissions.rules)
    if mine:
        at = data.draw(st.integers(0, len(mine) - 1))
        stricter = {"allow": ("ask", "deny"), "ask": ("deny",), "deny": ("deny",)}[mine[at].action]
        mine[at] = mine[at].model_copy(update={"action": data.draw(st.sampled_from(stricter))})
    write = before.scope.write[: data.draw(st.integers(0, len(before.scope.write)))]
    after = before.model_copy(
        update={
            "permissions": before.permissions.model_copy(update={"rules": tuple(mine)}),
            "scope": before.scope.model_copy(update={"write": write}),
        }
    )
    for name, arguments in calls:
        assert RANK[place.action(after, name, arguments)] <= RANK[place.action(before, name, arguments)]


@given(manifest=LAYER, call=CALLS)
@settings(deadline=None)
def test_no_rule_reaches_out_of_the_scope(
    place: Place, manifest: dict[str, Any], call: tuple[str, dict[str, Any]]
) -> None:
    name, arguments = call
    if TOOLS[name] not in ("read", "write"):
        return
    everything = [*manifest.get("permissions", {}).get("rules", []), {"tool": "*", "match": "*", "action": "allow"}]
    permissions = {**manifest.get("permissions", {}), "rules": everything}
    made = place.load({}, None, {**manifest, "permissions": permissions}).manifest
    roots = made.scope.write if TOOLS[name] == "write" else (*made.scope.read, *made.scope.write)
    real = (place.cwd / arguments["path"]).resolve()
    kept = TOOLS[name] == "write" and bool({".git", ".pod"} & {*real.parts})
    if kept or not any(real.is_relative_to(root) for root in roots):
        assert place.action(made, name, arguments, granted=True) == "deny"


def writable(place: Place, manifest: Manifest) -> Iterator[Path]:
    """What a command could write, of some paths."""
    paths = [place.cwd / name for name in ("a", "out/b", "secret/c", ".git/config", "out/.git/x")] + [Path("/etc/x")]
    made = sandbox_of(manifest, place.cwd.parent / "home", place.cwd)
    if made is None:
        yield from paths
        return
    write = made.write if made.mode == "workspace" else ()
    guarded = () if made.git == "writable" else tuple(place.cwd / name for name in (".git", "out/.git"))
    found = mounts(View((*made.read, *made.write), write, guarded, made.hidden))
    for path in paths:
        mount = next((m for m in reversed(found) if path.is_relative_to(m.path)), None)
        if mount is not None and mount.how == "bind":
            yield path


def reaches(manifest: Manifest) -> bool:
    """Whether a command has a network."""
    return manifest.sandbox.mode == "off" or manifest.sandbox.network
