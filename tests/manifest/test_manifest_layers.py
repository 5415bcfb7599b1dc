"""Layers lie over each other in the documented order, and what a project brings can only tighten."""

from __future__ import annotations

from pathlib import Path

import pytest

from pod.manifest import Loaded, ManifestError, Problem, load_manifest

MODEL = '[model]\nname = "offline:surveyor"\n'


class World:
    """A working folder with a manifest, a user's and a project's configuration."""

    def __init__(self, root: Path) -> None:
        self.cwd = root / "work"
        self.config = root / "config"
        self.manifest = root / "manifests" / "m.toml"
        for folder in (self.cwd, self.config, self.manifest.parent):
            folder.mkdir()
        self.manifest.write_text(MODEL)

    def user(self, text: str) -> None:
        self._write(self.config / "pod" / "config.toml", text)

    def project(self, text: str) -> None:
        self._write(self.cwd / ".pod" / "config.toml", text)

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def load(self, *overrides: str, env: dict[str, str] | None = None, trusted: bool = False) -> Loaded:
        environment = {"XDG_CONFIG_HOME": str(self.config), **(env or {})}
        return load_manifest(self.manifest, overrides, env=environment, cwd=self.cwd, trusted=trusted)

    def problems(self, *overrides: str, env: dict[str, str] | None = None) -> list[Problem]:
        with pytest.raises(ManifestError) as caught:
            self.load(*overrides, env=env)
        return caught.value.problems


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_each_layer_lies_over_the_one_before(world: World) -> None:
    def value(*overrides: str, env: dict[str, str] | None = None) -> tuple[int, str]:
        loaded = world.load(*overrides, env=env)
        return loaded.manifest.retry.max_attempts, loaded.sources["retry.max_attempts"].layer

    assert value() == (6, "default")
    world.user("[retry]\nmax_attempts = 5\n")
    assert value() == (5, "user")
    world.project("[retry]\nmax_attempts = 4\n")
    assert value() == (4, "project")
    world.manifest.write_text(MODEL + "[retry]\nmax_attempts = 7\n")
    assert value() == (7, "manifest")
    env = {"POD__RETRY__MAX_ATTEMPTS": "8"}
    assert value(env=env) == (8, "environment")
    assert value("retry.max_attempts=9", env=env) == (9, "set")
    assert value("retry.max_attempts=9", "retry.max_attempts=10", env=env) == (10, "set")


def test_tables_merge_key_by_key_and_arrays_are_replaced(world: World) -> None:
    world.user("[tools]\nenable = ['shell']\n[prune]\nprotected_tokens = 1\nexcerpt_chars = 2\n")
    world.manifest.write_text(MODEL + "[tools]\nenable = ['tasks']\n[prune]\nexcerpt_chars = 3\n")
    manifest = world.load().manifest
    assert manifest.tools.enable == ("tasks",)
    assert (manifest.prune.protected_tokens, manifest.prune.excerpt_chars) == (1, 3)


def test_rules_of_all_layers_add_up_each_with_its_origin(world: World) -> None:
    rule = "[[permissions.rules]]\ntool = '{}'\naction = 'deny'\n"
    world.user(rule.format("a"))
    world.project("# comment\n" + rule.format("b"))
    world.manifest.write_text(MODEL + rule.format("c"))
    loaded = world.load()
    assert [r.tool for r in loaded.manifest.permissions.rules] == ["a", "b", "c"]
    origins = [loaded.sources[f"permissions.rules[{n}]"] for n in range(3)]
    assert [(o.layer, o.line) for o in origins] == [("user", 1), ("project", 2), ("manifest", 3)]


def test_an_environment_variable_is_read_as_toml_else_as_text(world: World) -> None:
    env = {
        "POD__TOOLS__ENABLE": '["tasks"]',
        "POD__COMPACTION__THRESHOLD": "60%",
        "POD__POD__NAME": "123",
        "POD__LOG__REDACT": "false",
        "POD__MODEL__NAME": "anthropic:x",
        "POD_HOME": "/ignored",
    }
    manifest = world.load(env=env).manifest
    assert manifest.tools.enable == ("tasks",)
    assert manifest.triggers == {"threshold": "60%"}
    assert manifest.pod.name == "123"
    assert manifest.log.redact is False
    assert manifest.model.name == "anthropic:x"


def test_an_unknown_environment_variable_is_an_error_b138(world: World) -> None:
    """B138."""
    (problem,) = world.problems(env={"POD__RETRY__MAX_ATTEMPS": "3"})
    assert str(problem) == "POD__RETRY__MAX_ATTEMPS: [retry] max_attemps: unknown key; did you mean max_attempts?"


def test_set_values_are_toml_else_text(world: World) -> None:
    manifest = world.load(
        "worker.system_prompt=true", "limits.max_cost_usd=2", 'scope.write=["."]', "worker.max_requests = 5"
    ).manifest
    assert manifest.worker.system_prompt == "true"
    assert manifest.limits.max_cost_usd == 2
    assert manifest.scope.write == (str(world.cwd.resolve()),)
    assert manifest.worker.max_requests == 5


@pytest.mark.parametrize("text", ["retry", "retry.max_attempts", "=3", "retry.=3"])
def test_a_set_without_key_or_value_is_an_error(world: World, text: str) -> None:
    (problem,) = world.problems(text)
    assert problem.message == "should be written section.key=value"


def test_a_set_cannot_smuggle_in_a_second_key(world: World) -> None:
    (problem,) = world.problems("retry.max_attempts=1\nother = 2")
    assert problem.message == "should be a whole number, not a string"


def test_old_names_work_in_every_layer(world: World) -> None:
    loaded = world.load("compaction.compact_threshold=70000", env={"POD__COMPACTION__PRUNE_MIN_SAVINGS": "10"})
    assert loaded.manifest.triggers == {"threshold": 70000}
    assert loaded.manifest.prune.min_savings == 10


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[model]\nname = 'a:b'\n", "[model] name"),
        ("[model]\nbase_url = 'https://x'\n", "[model] base_url"),
        ("[tools]\npython = ['a:b']\n", "[tools] python"),
        ("[scope]\nwrite = ['/']\n", "[scope] write"),
        ("[worker]\nsystem_prompt = 'x'\n", "[worker] system_prompt"),
        ("[[interceptors]]\nuse = 'a:b'\n", "[[interceptors]]"),
        ("[retry]\nmax_attempts = 7\n", "[retry] max_attempts"),
        ("[context]\nbuffer_tokens = 100\n", "[context] buffer_tokens"),
        ("[context]\npolicy = 'off'\n", "[context] policy"),
        ("[permissions]\nprofile = 'workspace-write'\n", "[permissions] profile"),
        ("[permissions]\nprofile = 'unattended'\n", "[permissions] profile"),
        ("[permissions]\nrules = [{tool='x', action='allow'}]\n", "[permissions.rules #1]"),
        ("[model]\nmax_output_tokens = 0\n", "[model] max_output_tokens"),
        ("[log]\nredact = false\n", "[log] redact"),
        ("[tools.shell]\ntimeout = 121\n", "[tools.shell] timeout"),
    ],
)
def test_what_loosens_or_chooses_in_a_project_is_left_out_and_the_run_goes_on(
    world: World, text: str, key: str
) -> None:
    plain = world.load()
    world.project(text)
    loaded = world.load()
    assert loaded.digest == plain.digest
    assert not any(origin.layer == "project" for origin in loaded.sources.values())
    left_out, why = loaded.warnings
    assert left_out.key == key and left_out.message.startswith("left out: ")
    assert left_out.file == why.file == str(world.cwd / ".pod" / "config.toml")
    assert why.hint == f"`pod trust {world.cwd}` shows what it asks for, and trusts it"


def test_a_project_may_tighten(world: World) -> None:
    world.user("[limits]\nmax_cost_usd = 5.0\n[context]\npolicy = 'warn'\n[compaction]\nthreshold = '60%'\n")
    world.project(
        "version = 1\n[limits]\nmax_cost_usd = 1.0\nmax_tool_calls = 10\n[context]\npolicy = 'compact'\n"
        "buffer_tokens = 9000\n[permissions]\nprofile = 'read-only'\n[compaction]\nthreshold = '50%'\n"
    )
    manifest = world.load().manifest
    assert (manifest.limits.max_cost_usd, manifest.limits.max_tool_calls) == (1.0, 10)
    assert (manifest.policy, manifest.context.buffer_tokens) == ("compact", 9000)
    assert manifest.permissions.profile == "read-only"
    assert manifest.triggers == {"threshold": "50%"}


def test_a_limit_of_the_user_is_not_raised_by_a_project(world: World) -> None:
    world.user("[limits]\nmax_cost_usd = 1.0\n")
    world.project("[limits]\nmax_cost_usd = 2.0\n")
    loaded = world.load()
    assert loaded.manifest.limits.max_cost_usd == 1.0
    assert loaded.warnings[0].message == "left out: 2.0 is not tighter than 1.0"


def test_what_a_project_may_not_loosen_is_told_as_it_is_written(world: World) -> None:
    world.project("[sandbox]\nnetwork = true\n[permissions]\nprofile = 'workspace-write'\n")
    assert [each.message for each in world.load().warnings[:2]] == [
        "left out: true is not tighter than false",
        'left out: "workspace-write" is not tighter than "safe"',
    ]


def test_a_trusted_project_may_choose(world: World) -> None:
    world.project("[tools]\npython = ['a:b']\n")
    assert world.load(trusted=True).manifest.tools.python == ("a:b",)


def test_a_broken_configuration_of_the_user_is_named(world: World) -> None:
    world.user("[retry\n")
    world.project("x = [\n")
    files = {problem.file for problem in world.problems()}
    assert files == {str(world.config / "pod" / "config.toml"), str(world.cwd / ".pod" / "config.toml")}


def test_a_manifest_extends_a_shipped_one_by_its_name_unless_a_file_is_named_so(world: World) -> None:
    world.manifest.write_text("extends = 'coder'\n[model]\nname = 'offline:surveyor'\n")
    assert "software engineer" in (world.load().manifest.worker.system_prompt or "")
    (world.manifest.parent / "coder").write_text("[worker]\nsystem_prompt = 'Mine.'\n")
    assert world.load().manifest.worker.system_prompt == "Mine."
    world.manifest.write_text("extends = 'codr'\n")
    with pytest.raises(ManifestError, match=r"no such file: .*codr; shipped manifests: batch-triage, coder"):
        world.load()


def test_a_manifest_extends_another_relative_to_itself(world: World) -> None:
    folder = world.manifest.parent
    (folder / "base").mkdir()
    (folder / "base" / "a.toml").write_text(MODEL + "max_output_tokens = 1\n")
    (folder / "base" / "b.toml").write_text("extends = 'a.toml'\n[prune]\nexcerpt_chars = 1\nprotected_tokens = 1\n")
    world.manifest.write_text("extends = 'base/b.toml'\n[prune]\nexcerpt_chars = 2\n")
    loaded = world.load()
    manifest = loaded.manifest
    assert (manifest.model.max_output_tokens, manifest.prune.excerpt_chars, manifest.prune.protected_tokens) == (
        1,
        2,
        1,
    )
    assert manifest.extends is None
    assert [path.name for path in loaded.files] == ["a.toml", "b.toml", "m.toml"]
    assert str(loaded.sources["prune.protected_tokens"]).endswith("b.toml:4")


def test_a_mistake_in_a_base_is_named_there(world: World) -> None:
    (world.manifest.parent / "a.toml").write_text(MODEL + "\nnam = 1\n")
    world.manifest.write_text("extends = 'a.toml'\n")
    (problem,) = world.problems()
    assert (problem.file or "").endswith("a.toml")
    assert problem.line == 4


def test_a_cycle_prints_the_chain(world: World) -> None:
    folder = world.manifest.parent
    (folder / "a.toml").write_text("extends = 'b.toml'\n")
    (folder / "b.toml").write_text("\nextends = './a.toml'\n")
    world.manifest.write_text("extends = 'a.toml'\n")
    (problem,) = world.problems()
    names = [Path(part).name for part in problem.message.split(": ")[1].split(" -> ")]
    assert names == ["m.toml", "a.toml", "b.toml", "a.toml"]
    assert ((problem.file or "").endswith("b.toml"), problem.line) == (True, 2)


def test_a_base_that_does_not_exist_is_named(world: World) -> None:
    world.manifest.write_text("extends = 'none.toml'\n")
    (problem,) = world.problems()
    assert (problem.key, problem.line) == ("extends", 1)
    assert "none.toml" in problem.message


def test_only_a_manifest_may_extend(world: World) -> None:
    world.user("extends = 'x.toml'\n")
    (problem,) = world.problems()
    assert problem.message == "only a manifest may extend another"
    world.user("")
    assert world.problems("extends=x.toml")[0].message == "only a manifest may extend another"
