"""Promises to whoever looks at a memory, and of the start-up check: model, tokens and hash, its text on request."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pod.cli.contexts import native_line
from pod.cli.main import main
from pod.foresight import foresee
from pod.log.folder import PodFolder
from pod.outlook import Outlook, outlook
from pod.proof import NoNativeCompaction, check_native
from tests.pod.native_rig import NativeAgent, memories, native
from tests.pod.pod_rig import Counted, Rig, caller, manifest
from worker.models.registry import BUILT_IN
from worker.text import sha256

NAMED = {"name": "sealed:one"}


@pytest.fixture(autouse=True)
def sealed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider `sealed`, for manifests that name its models."""
    monkeypatch.setitem(BUILT_IN, "sealed", "tests.pod.native_rig:create")
    monkeypatch.setenv("POD_HOME", str(rig.home))


class Looked:
    """A pod with memories, and what commands say of it."""

    def __init__(self, rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
        self.rig, self._capsys = rig, capsys
        self.memory = memories(rig)[-1]

    def __call__(self, *args: str) -> str:
        assert main(list(args)) == 0
        return self._capsys.readouterr().out


@pytest.fixture
async def looked(rig: Rig, capsys: pytest.CaptureFixture[str], anyio_backend: Any) -> Looked:
    agent = NativeAgent(caller(14))
    async with rig.open(agent, native(model=NAMED), tools=[Counted(1_000).tool]) as pod:
        await pod.run("go")
    capsys.readouterr()
    return Looked(rig, capsys)


pytestmark = pytest.mark.anyio


def seen_by(view: Outlook, model: NativeAgent) -> Outlook:
    """The same context before another model."""
    sizes = replace(view.sizes, models=(model,))
    return replace(view, sizes=sizes, budget=sizes.budget(model), occupancy=sizes.occupancy())


async def test_the_context_names_model_tokens_and_hash(looked: Looked) -> None:
    shown = looked("context", "p")
    [line] = [line for line in shown.splitlines() if "native memory" in line and "summary" not in line]
    digest = sha256(looked.memory.payload)
    assert "sealed:one, 304 tokens" in line and digest[:12] in line and "another model" not in line
    [summary] = [line for line in shown.splitlines() if line.lstrip().startswith("summary")]
    assert "by compacted" not in summary and summary.count("sealed:one") == 1
    assert "native memory" in looked("compact", "p", "--dry-run")
    facts = json.loads(looked("context", "p", "--json"))
    assert facts["native"] == {
        "model": "sealed:one", "tokens": 304, "payload_sha256": digest, "source_hash": looked.memory.source_hash,
        "readable_characters": len(looked.memory.readable), "read": True,
    }  # fmt: skip
    assert facts["summary_made"]["rung"] == "native" and not facts["tool_clearing"]
    prune = next(one for one in facts["next"] if one["rule"] == "prune")
    assert not prune["happens"] and prune["reason"] == "[prune] is off"


async def test_a_pod_that_is_shown_names_its_memory(looked: Looked) -> None:
    digest = sha256(looked.memory.payload)
    assert f"native, sealed:one, 304 tokens, sha256 {digest[:12]}; pod show p --summary" in looked("show", "p")
    assert json.loads(looked("show", "p", "--json"))["native"]["payload_sha256"] == digest


async def test_its_text_is_shown_on_request_and_its_payload_is_not(looked: Looked) -> None:
    for shown in (looked("show", "p", "--item", looked.memory.id[:30]), looked("show", "p", "--summary")):
        assert "Quotes from the record" in shown and "sealed 1" not in shown
    head = looked("show", "p", "--item", looked.memory.id).splitlines()[0]
    assert "native memory" in head and "sealed:one, 304 tokens" in head and sha256(looked.memory.payload) in head
    made = next(line for line in json.loads(f"[{','.join(looked('log', 'p', '--json').split(chr(10))[:-1])}]")
                if line.get("type") == "compaction.native")  # fmt: skip
    assert made["model"] == "sealed:one" and made["payload_sha256"] and "payload" not in made
    assert looked.memory.readable.splitlines()[0] in looked("show", "p", "--item", str(made["seq"]))


async def test_the_timeline_and_the_page_have_the_rung_with_its_cost(looked: Looked) -> None:
    told = looked("inspect", "p")
    assert (
        "compacted by native" in told
        and "memory by sealed:one (responses.compact): 1 request, 9,000 in, 300 out" in told
    )
    page = looked.rig.cwd / "p.html"
    looked("inspect", "p", "--html", str(page))
    assert "compaction.native" in page.read_text() and "sealed 1 sealed 1" not in page.read_text()
    requests = [step for step in json.loads(looked("inspect", "p", "--json"))["timeline"] if "cost_so_far" in step]
    cost = json.loads(looked("show", "p", "--json"))["cost_usd"]
    assert requests[-1]["cost_so_far"] == pytest.approx(cost, abs=1e-6), "the memories are counted, once"


async def test_doctor_finds_nothing_and_search_reads_the_text(looked: Looked) -> None:
    assert "fine" in looked("doctor", "p") or "no damage" in looked("doctor", "p")
    from pod.tools.history_rows import row_of

    row = row_of(looked.memory, "s", 1, "now")
    assert (row.type, row.text) == ("context", looked.memory.readable)


async def test_it_is_said_where_another_model_reads_its_text(looked: Looked) -> None:
    view = outlook(looked.rig.folder())
    other = seen_by(view, NativeAgent(caller(1), name="sealed:two")).native
    assert view.native is not None and other is not None
    assert (view.native["read"], other["read"]) == (True, False)
    assert native_line(other).endswith("; another model made it: its text is sent in its place")


# -- the start-up check ----------------------------------------------------------------------------------------------


def written(folder: Path, model: str, fallback: str = "", policy: str = "native") -> Path:
    path = folder / "agent.toml"
    path.write_text(
        f'version = 1\n[model]\nname = "{model}"\n' + (f'fallback = ["{fallback}"]\n' if fallback else "")
        + f'[context]\npolicy = "{policy}"\n[compaction]\nrequest_threshold = 90000\n'
    )  # fmt: skip
    return path


@pytest.mark.parametrize("command", ["check", "run"])
def test_the_policy_without_a_model_that_can_do_it_is_refused_before_anything_is_spent(
    rig: Rig, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    path = str(written(rig.cwd, "sealed:plain"))
    args = ["manifest", "check", path] if command == "check" else ["run", path, "go", "--name", "x"]
    assert main(args) != 0
    said = capsys.readouterr().err
    assert 'policy = "native" can\'t work: the provider of sealed:plain does not compact by itself' in said
    assert "pod models" in said and "ladder" in said and "Traceback" not in said
    assert not (rig.home / "x").exists()


@pytest.mark.parametrize(("model", "fallback"), [("sealed:one", ""), ("sealed:one", "sealed:plain")])
def test_a_fallback_without_it_is_fine(rig: Rig, capsys: pytest.CaptureFixture[str], model: str, fallback: str) -> None:
    assert main(["manifest", "check", str(written(rig.cwd, model, fallback))]) == 0
    check_native(native(model={"name": "sealed:plain", "fallback": [model]}))
    with pytest.raises(NoNativeCompaction, match="the providers of sealed:plain, sealed:plain do"):
        check_native(native(model={"name": "sealed:plain", "fallback": ["sealed:plain"]}))
    check_native(manifest(model={"name": "sealed:plain"}, context={"policy": "compact"}))
    for ladder in (("native", "rollover"), ("native",)):
        context = {"policy": "compact", "ladder": ladder}
        check_native(manifest(model={"name": "sealed:one"}, context=context))
        if ladder == ("native",):
            with pytest.raises(NoNativeCompaction, match=r'ladder = \["native"\] can\'t work'):
                check_native(manifest(model={"name": "sealed:plain"}, context=context))
        else:
            check_native(manifest(model={"name": "sealed:plain"}, context=context))
    capsys.readouterr()


def test_pod_models_says_what_the_provider_itself_does(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(written(rig.cwd, "sealed:one", "sealed:plain"))
    assert main(["models", "--manifest", path]) == 0
    lines = capsys.readouterr().out.splitlines()
    [line] = [line for line in lines if line.startswith("the provider ")]
    assert "compacts by responses.compact and clears tool results" in line and line.endswith("): sealed:one")
    assert main(["models", "--manifest", path, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["models"]
    assert [(r["native_compaction"], r["tool_clearing"]) for r in rows] == [(["responses.compact"], True), ([], False)]
    assert all(r["native_source"] for r in rows)


async def test_what_would_be_too_large_for_the_provider_to_compact_is_said_ahead(rig: Rig) -> None:
    """By `pod context` and by a dry run: with what the provider clears, since the request to compact has all of it."""
    made = native(None, ladder=("native",), model=NAMED | {"context_window": 9_000}, prune={"enabled": True})
    agent = NativeAgent(caller(12), tool_clearing=True, history_binding="thinking_prefix")
    async with rig.open(agent, made, tools=[Counted(1_000).tool]) as pod:
        await pod.run("go")
    view = outlook(PodFolder(rig.home, "p"))
    plan = view.plan()

    def at(window: int) -> Outlook:
        return seen_by(
            view, NativeAgent(caller(1), tool_clearing=True, history_binding="thinking_prefix", window=window)
        )

    large, small = at(9_000), at(200_000)
    assert "above the ceiling" in str(large.as_dict()["native_passed_over"])
    assert small.as_dict()["native_passed_over"] is None
    assert view.uncleared > 12_000
    [told] = [one for one in foresee(large, plan, 0.0) if one.rule == "compaction"]
    assert (
        not told.happens and "of which the provider clears a part" in told.reason and "above the ceiling" in told.reason
    )
    near = at(int(view.uncleared * 1.1) + 1_000 + 1_000)
    [told] = [one for one in foresee(near, plan, 0.0) if one.rule == "compaction"]
    assert told.happens and "before the next request, by native" in told.reason
