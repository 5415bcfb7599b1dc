"""What a folder's own configuration says counts as far as the user trusts it, and as long as it stays what was trusted."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pod.errors import UsageProblem
from pod.manifest import Loaded, ManifestError, load_manifest
from pod.manifest.load import load_project
from pod.manifest.project import RULES, TIGHTENING, bound, value_at
from pod.manifest.render import show, to_toml, to_toml_with_sources
from pod.manifest.schema import keys
from pod.manifest.source import Layer, Origin
from pod.trust import Decision, Decisions, Refused

MODEL = '[model]\nname = "offline:surveyor"\n'
ASKS = "[tools]\npython = ['json:dumps']\n[limits]\nmax_tool_calls = 10\n"


class World:
    """A working folder with a configuration of its own, and the user's home."""

    def __init__(self, root: Path) -> None:
        self.cwd, self.home, self.config = root / "work", root / "home", root / "config"
        self.file = self.cwd / ".pod" / "config.toml"
        self.file.parent.mkdir(parents=True)
        self.manifest = root / "manifest.toml"
        self.manifest.write_text(MODEL)
        self.decisions = Decisions(self.home)

    def load(self, cwd: Path | None = None, trusted: bool | None = None) -> Loaded:
        env = {"XDG_CONFIG_HOME": str(self.config)}
        return load_manifest(self.manifest, env=env, cwd=cwd or self.cwd, trusted=trusted)

    def trust(self) -> Decision:
        project = load_project(self.cwd, trusted=False, env={}).project
        assert project is not None
        return self.decisions.put(self.cwd.resolve(), "trusted", digest=project.digest, text=project.text)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path)
    monkeypatch.setenv("POD_HOME", str(made.home))
    return made


def standing(loaded: Loaded) -> str:
    assert loaded.project is not None
    return loaded.project.standing


def test_a_trusted_configuration_is_in_force_as_it_stands(world: World) -> None:
    world.file.write_text(ASKS)
    assert world.load().manifest.tools.python == ()
    world.trust()
    loaded = world.load()
    assert (loaded.manifest.tools.python, standing(loaded)) == (("json:dumps",), "trusted")
    assert loaded.warnings == ()


def test_a_changed_configuration_is_not_trusted_and_the_warning_says_the_way_out(world: World) -> None:
    world.file.write_text(ASKS)
    world.trust()
    world.file.write_text(ASKS + "# changed\n")
    loaded = world.load()
    assert (loaded.manifest.tools.python, loaded.manifest.limits.max_tool_calls) == ((), 10)
    assert standing(loaded) == "changed"
    last = loaded.warnings[-1]
    assert last.message.startswith("changed since you trusted it (")
    assert f"`pod trust --diff {world.cwd}`" in last.hint and f"`pod trust {world.cwd}`" in last.hint
    world.file.write_text(ASKS)
    assert standing(world.load()) == "trusted"


def test_trust_reaches_no_folder_below_above_or_beside(world: World) -> None:
    world.file.write_text(ASKS)
    world.trust()
    below = world.cwd / "below"
    for folder in (below, world.cwd.parent, world.cwd.parent / "beside"):
        (folder / ".pod").mkdir(parents=True)
        (folder / ".pod" / "config.toml").write_text(ASKS)
        assert standing(world.load(folder)) == "untrusted"


def test_a_link_to_a_trusted_folder_is_that_folder(world: World) -> None:
    world.file.write_text(ASKS)
    world.trust()
    (world.cwd.parent / "link").symlink_to(world.cwd)
    assert standing(world.load(world.cwd.parent / "link")) == "trusted"


def test_code_that_embeds_decides_over_what_the_user_decided(world: World) -> None:
    world.file.write_text(ASKS)
    assert world.load(trusted=True).manifest.tools.python == ("json:dumps",)
    world.trust()
    assert world.load(trusted=False).manifest.tools.python == ()


def test_an_ignored_configuration_is_not_even_read(world: World) -> None:
    os.mkfifo(world.file)
    with pytest.raises(ManifestError, match="pod trust --ignore"):
        world.load()
    world.decisions.put(world.cwd.resolve(), "ignored")
    loaded = world.load()
    assert (standing(loaded), loaded.warnings) == ("ignored", ())


def test_a_decision_that_others_may_have_written_is_not_taken(world: World) -> None:
    world.file.write_text(ASKS)
    world.trust()
    (path,) = world.decisions.path.iterdir()
    path.chmod(0o666)
    loaded = world.load()
    assert standing(loaded) == "untrusted"
    assert any("others may write" in warning.message for warning in loaded.warnings)
    path.chmod(0o600)
    path.write_text("{")
    with pytest.raises(Refused):
        world.decisions.of(world.cwd.resolve())


def test_a_decision_is_durable_whole_and_readable_by_its_user_alone(world: World) -> None:
    world.file.write_text(ASKS)
    made = world.trust()
    (path,) = world.decisions.path.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600 and world.decisions.path.stat().st_mode & 0o777 == 0o700
    assert world.decisions.of(world.cwd.resolve()) == made
    assert world.decisions.remove(world.cwd.resolve()) and not world.decisions.remove(world.cwd.resolve())
    assert standing(world.load()) == "untrusted"


def test_a_folder_can_not_bring_the_decision_about_itself(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.file.write_text(ASKS)
    inside = world.cwd / ".pod" / "home"
    monkeypatch.setenv("POD_HOME", str(inside))
    with pytest.raises(UsageProblem, match="can't be kept in it"):
        Decisions().put(world.cwd.resolve(), "trusted")
    world.trust()
    inside.mkdir()
    (inside / "trust").symlink_to(world.decisions.path)
    assert standing(world.load()) == "trusted"  # a link to the user's own state is that state
    (inside / "trust").unlink()
    world.decisions.path.rename(inside / "trust")
    assert standing(world.load()) == "untrusted"


def test_what_is_left_out_leaves_no_mistake_of_its_own(world: World) -> None:
    world.file.write_text(
        "[model]\nname = 3\napi_key = 'x'\nbase_url = 'https://${NOT_SET}'\n[compaction.model]\nmax_output_tokens = 5\n"
        "[sandbox]\n[rollover]\nat = '50%'\n[[hooks]]\nevent = 'x'\ncommand = ['y']\n[scope]\nread = ['/']\n"
    )
    with pytest.raises(ManifestError) as caught:
        world.load()
    assert [problem.key for problem in caught.value.problems] == ["[model] api_key"]
    world.file.write_text(world.file.read_text().replace("api_key = 'x'\n", ""))
    loaded = world.load()
    assert loaded.digest == load_manifest(world.manifest, env={}, cwd=world.manifest.parent / "work").digest
    assert loaded.manifest.rollover is None and loaded.manifest.compaction is None
    assert not any(origin.layer == "project" for origin in loaded.sources.values())


def test_rules_that_deny_stay_with_their_lines_where_others_are_left_out(world: World) -> None:
    rule = "[[permissions.rules]]\ntool = '{}'\naction = '{}'\n"
    world.file.write_text(
        rule.format("a", "allow") + rule.format("b", "deny") + rule.format("c", "ask") + rule.format("d", "deny")
    )
    loaded = world.load()
    assert [each.tool for each in loaded.manifest.permissions.rules] == ["b", "d"]
    assert [loaded.sources[f"permissions.rules[{n}]"].line for n in (0, 1)] == [4, 10]
    assert [warning.line for warning in loaded.warnings][:2] == [1, 7]


def test_a_tightened_value_is_shown_with_what_it_was(world: World) -> None:
    (world.config / "pod").mkdir(parents=True)
    (world.config / "pod" / "config.toml").write_text("[retry]\nmax_attempts = 5\n")
    world.file.write_text("[retry]\nmax_attempts = 4\n[limits]\nmax_tool_calls = 9\n")
    loaded = world.load()
    rows = {line.split()[0]: line for line in show(loaded).splitlines()}
    user = world.config / "pod" / "config.toml"
    assert rows["retry.max_attempts"].endswith(f"{world.file}:2, tightened from 5 ({user}:2)")
    assert rows["limits.max_tool_calls"].endswith(f"{world.file}:4, tightened from unset")
    world.manifest.write_text(MODEL + "[retry]\nmax_attempts = 6\n")
    assert "tightened from" not in next(line for line in show(world.load()).splitlines() if "max_attempts" in line)


def test_toml_with_sources_reads_as_the_plain_one_and_names_the_place_of_each_value(world: World) -> None:
    world.manifest.write_text(
        MODEL + "[worker]\nsystem_prompt = '''\n[not.a.table]\nx = 1\n'''\n[tools]\nenable = ['shell', 'tasks']\n"
        "[permissions]\nrules = [{ tool = 'shell', match = '# no', action = 'deny' }]\n[model.extra_body]\n'a b' = [{ c = 1 }]\n"
    )
    world.file.write_text("[log]\nredact = true\n[retry]\nmax_attempts = 2\n")
    loaded = world.load()
    text = to_toml_with_sources(loaded)
    assert tomllib.loads(text) == tomllib.loads(to_toml(loaded.manifest))
    assert f'name = "offline:surveyor"  # {world.manifest}:2' in text
    assert f"max_attempts = 2  # {world.file}:4, tightened from 6 (default)" in text
    assert f"# {world.manifest}:9\nenable = [" in text
    assert f"{world.manifest}:11" in text


VALUES = st.one_of(
    st.integers(-5, 10**6), st.floats(), st.booleans(), st.text(max_size=5), st.just([]), st.just({}),
    st.sampled_from(["50%", "99%", "off", "warn", "safe", "read-only", "unattended", "workspace-write", "deny", "pause"]),
    st.lists(st.fixed_dictionaries({"tool": st.just("*"), "action": st.sampled_from(["allow", "ask", "deny", 3])}), max_size=3),
)  # fmt: skip
PLAIN = [path for path, key in keys().items() if key.section is None and path != ("version",)]


@given(
    st.dictionaries(st.sampled_from(PLAIN), VALUES, max_size=6),
    st.dictionaries(st.sampled_from(PLAIN), VALUES, max_size=6),
)
def test_what_stays_of_a_project_only_tightens_whatever_it_holds(
    given_: dict[tuple[str, ...], object], below: dict[tuple[str, ...], object]
) -> None:
    layer = Layer("project", "p", Path("/"), nested(given_), {path: Origin("project", "p", 1, 1) for path in given_})
    under = nested(below)
    left = bound(layer, under)
    for path, value in flat(layer.data):
        if path == RULES:
            rules = value if isinstance(value, list) else []
            assert not any(isinstance(rule, dict) and rule.get("action") in {"allow", "ask"} for rule in rules)
            continue
        assert path in TIGHTENING
        now = value_at(under, path)
        if TIGHTENING[path] == "lower" and all(type(each) in {int, float} for each in (now, value)):
            assert value <= now or now == 0
    assert all(each.problem.severity == "warning" for each in left)
    assert bound(layer, under) == []


def nested(values: dict[tuple[str, ...], object]) -> dict[str, object]:
    made: dict[str, object] = {}
    for path, value in values.items():
        table: dict[str, object] = made
        for part in path[:-1]:
            inner = table.setdefault(part, {})
            assert isinstance(inner, dict)
            table = inner
        table[path[-1]] = value
    return made


def flat(value: dict[str, object], path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], object]]:
    found: list[tuple[tuple[str, ...], object]] = []
    for name, inner in value.items():
        here = (*path, name)
        table = isinstance(inner, dict) and here not in {*PLAIN, RULES}
        found += flat(inner, here) if isinstance(inner, dict) and table else [(here, inner)]
    return found
