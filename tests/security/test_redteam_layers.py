"""A stranger's folder over random configurations of the user: whatever it says, no call is freer than without it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interceptors.deciding import Rule, decide
from interceptors.facts import CallFacts
from pod.manifest import Manifest, load_manifest

TOOLS = ("shell", "write_file", "read_file", "fetch_url", "own")
MATCHES = ("*", "a*", "git *", "git push*", "https://a.test/*", "a.test")
ACTIONS = {"deny": 0, "ask": 1, "allow": 2}

rules = st.lists(
    st.fixed_dictionaries(
        {"tool": st.sampled_from((*TOOLS, "*", "s*")), "action": st.sampled_from(list(ACTIONS))},
        optional={"match": st.sampled_from(MATCHES)},
    ),
    max_size=4,
)
layers = st.fixed_dictionaries(
    {},
    optional={
        "permissions": st.fixed_dictionaries(
            {},
            optional={
                "profile": st.sampled_from(["safe", "workspace-write", "read-only", "unattended"]),
                "when_headless": st.sampled_from(["pause", "deny"]),
                "rules": rules,
            },
        ),
        "scope": st.fixed_dictionaries({}, optional={"read": st.just(["/"]), "write": st.just(["/"])}),
        "sandbox": st.fixed_dictionaries(
            {}, optional={"mode": st.sampled_from(["off", "workspace", "read-only"]), "network": st.booleans()}
        ),
        "log": st.fixed_dictionaries({}, optional={"redact": st.booleans()}),
    },
)
names = st.sampled_from(["a", "a/b", "git status", "git push", "https://a.test/x", "a.test", "rm"]).map(
    lambda n: frozenset({n})
)
calls = st.builds(
    lambda tool, effect, parts, plain: CallFacts(tool, effect, frozenset().union(*parts), tuple(parts), plain),
    st.sampled_from(TOOLS),
    st.sampled_from(["read", "write", "process", "network"]),
    st.lists(names, min_size=1, max_size=3),
    st.booleans(),
)


def loaded(root: Path, user: dict[str, Any], project: dict[str, Any] | None, over: dict[str, Any]) -> Manifest:
    work = root / "work"
    for file, table in (("config/pod/config.toml", user), ("work/.pod/config.toml", project), ("agent.toml", over)):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).unlink(missing_ok=True)
        if table is not None:
            (root / file).write_text(tomli_w.dumps({"version": 1, **table}))
    env = {"XDG_CONFIG_HOME": str(root / "config"), "HOME": str(root)}
    return load_manifest(root / "agent.toml", env=env, cwd=work, trusted=False, model_required=False).manifest


def freedom(manifest: Manifest, call: CallFacts, granted: bool) -> tuple[int, int]:
    """What becomes of a call: while somebody is there, and while nobody is."""
    held = [Rule(rule.tool, rule.match, rule.action) for rule in manifest.permissions.rules]
    action = decide(call, manifest.permissions.profile, held, writes_granted=granted).action
    alone = "deny" if action == "ask" and manifest.permissions.when_headless == "deny" else action
    return ACTIONS[action], ACTIONS[alone]


MODES = ("off", "workspace", "read-only")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(layers, layers, layers, calls, st.booleans())
def test_no_folder_of_a_stranger_makes_any_call_freer(
    user: dict[str, Any], project: dict[str, Any], over: dict[str, Any], call: CallFacts, granted: bool
) -> None:
    """Over the user's own configuration and below the manifest: rules, profile, scope, sandbox and redaction."""
    with tempfile.TemporaryDirectory() as folder:
        before, after = (loaded(Path(folder), user, each, over) for each in (None, project))
    assert all(
        one >= other for one, other in zip(freedom(before, call, granted), freedom(after, call, granted), strict=True)
    )
    assert after.scope == before.scope and after.log.redact >= before.log.redact
    assert MODES.index(after.sandbox.mode) >= MODES.index(before.sandbox.mode)
    assert after.sandbox.network <= before.sandbox.network
