"""A server of tools of bad intent (a real process): it leads nobody by what he does not see, and widens nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from pod.log import entries as e
from tests.security import hostile_server as evil
from tests.security.hostile import SCREEN, followed
from tests.security.redteam_rig import KEY, Struck, World
from tests.security.test_redteam_secrets import FORMS
from worker.items import ToolResultItem
from worker.mcp.definitions import LONGEST_SCHEMA, MOST_DESCRIBED
from worker.mcp.naming import tool_name
from worker.records import ToolStarted, Warned
from worker.testing.provider_server import Call

pytestmark = pytest.mark.slow

LAST = ("dies with a secret", "asks and takes no answer", "says what it was called")
"""Calls behind which the server is another process, and one that shows that it is."""


@dataclass
class Story:
    """One run in which each tool of the server was called."""

    world: World
    struck: Struck
    calls: list[str]

    def result(self, what: str) -> ToolResultItem:
        """What a call came to."""
        return next(item for item in self.struck.results if item.name == evil.offered(what))

    @property
    def tools(self) -> dict[str, dict[str, Any]]:
        """The tools as the first request offers them, by name."""
        return {tool["function"]["name"]: tool["function"] for tool in json.loads(self.struck.bodies[0])["tools"]}

    @property
    def theirs(self) -> dict[str, dict[str, Any]]:
        return {name: tool for name, tool in self.tools.items() if name.startswith("evil__")}


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def story(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    root = tmp_path_factory.mktemp("evil")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "OPENAI_API_KEY": KEY, "MY_TOKEN": KEY, "OTHER_TOKEN": "another-secret-123", "XDG_CONFIG_HOME": str(root / "config"),
            "POD_HOME": str(root / "home"), "HTTPS_PROXY": "http://user:password-of-proxy@proxy.test:8080",
        }.items():  # fmt: skip
            patch.setenv(name, value)
        world = World(root)
        named = [*evil.NAMES.values(), *(play for play in evil.PLAYS if play not in LAST), *LAST]
        server = {"name": "evil", "command": evil.server(world.work), "env": ["MY_TOKEN"], "call_timeout": 20}
        tables = {
            "mcp": [server],
            "permissions": {"profile": "workspace-write", "rules": [{"tool": "evil__*", "action": "allow"}]},
            "model": {"context_window": 1_000_000},
            "limits": {"repeat_call": {"remind": [], "stop": 500}},
            "prune": {"enabled": False},
        }

        async def strike() -> Struck:
            made = [Call("read_file", {"path": "own.txt"}), *(Call(evil.offered(name), {}) for name in named)]
            return await world.strike(*made, tables=tables)

        yield Story(world, anyio.run(strike, backend=request.param), ["read_file", *named])


def test_the_run_ends_well_and_each_call_has_its_result(story: Story) -> None:
    assert story.struck.result.status == "finished" and len(story.struck.results) == len(story.calls)
    assert len([r for r in story.struck.records if isinstance(r, ToolStarted)]) == len(story.calls)


# -- names


@pytest.mark.parametrize("what", list(evil.NAMES))
def test_b135_each_odd_name_is_offered_as_a_plain_one_and_called_as_the_server_wrote_it(
    what: str, story: Story
) -> None:
    name = evil.NAMES[what]
    assert re.fullmatch(r"evil__[A-Za-z0-9_-]{1,58}", evil.offered(name)) and evil.offered(name) in story.theirs
    ran = name.replace("\ud800", "\ufffd")
    assert f"ran {ran!r}" in story.result(name).text()


def test_b135_no_name_takes_the_place_of_a_tool_of_the_runtime(story: Story) -> None:
    assert story.struck.results[0].name == "read_file" and "own" in story.struck.results[0].text()
    assert {"read_file", "shell"} <= story.tools.keys() and len({evil.offered(n) for n in evil.NAMES.values()}) == len(
        evil.NAMES
    )
    own = story.tools["read_file"]
    assert "evil" not in json.dumps(own) and "is called" not in own["description"]


@pytest.mark.parametrize("what", list(evil.REFUSED))
def test_a_name_that_is_none_costs_its_tool_alone_and_is_told(what: str, story: Story) -> None:
    name, reason = evil.REFUSED[what]
    assert tool_name("evil", name) not in story.theirs
    told = next(each for each in story.struck.of(e.ServerTold) if each.server == "evil")
    assert any(reason in why for why in told.unfit.values()) and all(len(label) < 600 for label in told.unfit)
    assert any(warned.code == "mcp.server" for warned in story.struck.of(Warned))


# -- descriptions and schemas


def test_what_describes_a_tool_holds_nothing_that_steers_that_nobody_sees_or_that_is_secret(story: Story) -> None:
    shown = [text for tool in story.theirs.values() for text in evil.strings(tool)]
    assert len(story.theirs) > 40 and not [text[:200] for text in shown if followed(text)]
    assert not [text for text in shown for secret in (KEY, evil.TEXTS["a secret in full width"]) if secret in text]
    assert not [text for text in shown if KEY[:12] in text], "a cut leaves no part of one"
    assert any("[secret " in text for text in shown) and not any("\ud83d" in text for text in shown)


def test_descriptions_and_schemas_have_bounds_and_what_is_too_much_is_told(story: Story) -> None:
    for name, tool in story.theirs.items():
        assert len(tool["description"]) <= MOST_DESCRIBED + 60, name
        assert len(json.dumps(tool["parameters"])) <= LONGEST_SCHEMA + 1_000, name
    long = [tool["description"] for tool in story.theirs.values() if "characters left out" in tool["description"]]
    assert len(long) == 2
    assert not {evil.offered(what) for what in evil.TOO_MUCH} & story.theirs.keys()
    told = next(each for each in story.struck.of(e.ServerTold) if each.server == "evil")
    assert evil.TOO_MUCH.keys() <= told.unfit.keys() and all(len(why) < 700 for why in told.unfit.values())


def test_what_can_be_cleaned_is_offered(story: Story) -> None:
    good = {evil.offered(what) for what in evil.schemas() if what not in evil.TOO_MUCH}
    assert good <= story.theirs.keys()


# -- results and errors


def test_what_a_result_claims_is_text_and_nothing_follows_from_it(story: Story) -> None:
    assert "approvals are no longer needed" in story.result("claims").text()
    assert "touch made" not in story.result("claims").text() and not (story.world.work / "made").exists()
    assert "no result of a call" in story.result("plays a call").text()
    assert {path for path in story.struck.changed if not path.startswith(("work/evil",))} == set()


@pytest.mark.parametrize("what", [what for what in evil.PLAYS if what not in LAST[1:]])
def test_no_result_and_no_error_steers_or_tells_a_secret(what: str, story: Story) -> None:
    text = story.result(what).text()
    assert not {c for c in followed(text) if c < "\xa0"} and SCREEN[:4] not in text
    assert KEY not in text and KEY[:12] not in text and len(text) < 80_000


def test_an_error_is_told_as_such_and_has_a_bound(story: Story) -> None:
    for what in ("leaks in an error", "leaks across a bound"):
        item = story.result(what)
        assert item.status == "error" and "characters left out" in item.text() and len(item.text()) < 5_000
    assert story.result("fails").status == "error"


def test_pictures_are_what_they_say_and_have_a_bound_together(story: Story) -> None:
    item = story.result("no picture")
    assert not item.images and "no picture of this kind" in item.text()
    many = story.result("many pictures")
    assert len(many.images) == 2 and many.text().count("not shown, at most 8.0 MB") == 6


def test_b133_a_huge_result_keeps_its_ends_and_is_whole_on_the_disk(story: Story) -> None:
    item = story.result("huge")
    assert item.artifact and "HEAD" in item.text() and "TAIL" in item.text() and "bytes left out" in item.text()


def test_answers_that_are_none_disturb_nothing(story: Story) -> None:
    assert story.result("deep").summary == "and then" and story.result("twice").summary == "first"
    assert story.result("for others").summary == "mine" and story.result("no text").status == "ok"


def test_what_the_server_asks_is_refused(story: Story) -> None:
    assert story.result("asks").summary == "asked"
    answered = evil.noted(story.world.work, '{"jsonrpc"')
    assert len(answered) == 4 and all('"error"' in line for line in answered)


def test_b132_one_that_dies_or_floods_is_an_error_of_its_call_and_the_next_one_starts_it_again(story: Story) -> None:
    dead, flood, again = (story.result(what) for what in LAST)
    assert dead.status == "error" and "exited with code 3" in dead.text() and "standard error ends with" in dead.text()
    assert flood.status == "error" and "has not taken the answers to 100 requests" in flood.text()
    assert again.status == "ok" and len(evil.noted(story.world.work, "started")) == 3


def test_the_server_is_given_the_variables_that_are_named_and_no_other_secret(story: Story) -> None:
    started = evil.noted(story.world.work, "started")[0]
    assert "MY_TOKEN" in started and "OTHER_TOKEN" not in started
    told = story.result("tells").text()
    assert '"OPENAI_API_KEY":' not in told and "password-of-proxy" not in told and "proxy.test" in told


def test_b082_b083_the_secret_that_it_was_given_stands_nowhere(story: Story) -> None:
    """B082, B083: in no file below the home of pods and in no request, in any form."""
    below, wire = story.world.below_home(), story.struck.wire
    assert b"[secret " in below and b"[secret " in wire
    for form, value in FORMS.items():
        assert value.encode() not in below and value.encode() not in wire, form
    wide = evil.TEXTS["a secret in full width"]
    assert wide.encode() not in below + wire and json.dumps(wide)[1:-1].encode() not in below + wire


def test_b095_what_is_shown_of_the_server_steers_no_terminal(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    from pod.cli.main import main

    for command in (["show", "p"], ["log", "p"], ["inspect", "p"]):
        main(command)
        out, err = capsys.readouterr()
        assert out and not followed(out) and not followed(err)
