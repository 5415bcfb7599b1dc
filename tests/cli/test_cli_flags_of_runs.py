"""Flags and manifests of runs: an answer to a schema, a limit on cost without a price, another manifest at resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli.cli_rig import Rig
from cli.cli_shell import Shell

from pod.log.folder import PodFolder
from pod.pod import Pod
from pod.stored import stored_manifest
from worker.testing.provider_server import Answer, Call, ProviderServer

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


@pytest.fixture
def shell(rig: Rig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(rig, capsys, monkeypatch)


@pytest.fixture
def schema(rig: Rig) -> Path:
    path = rig.work / "answer $1.json"
    path.write_text(json.dumps(SCHEMA))
    return path


# -- --output-schema ------------------------------------------------------------------------------------------


def test_text_output_is_the_json_value_and_json_has_it_as_output(shell: Shell, schema: Path) -> None:
    with ProviderServer([Answer('```json\n{"n": 3}\n```'), Answer('{"n": 4}')]) as server:
        manifest = shell.rig.manifest(server)
        out = shell("run", manifest, "count", "--output-schema", schema.name, "-q")
        assert json.loads(out) == {"n": 3} and "```" not in out
        result = shell.json("run", manifest, "count", "--output-schema", schema, "-q")
        assert (result["output"], result["text"]) == ({"n": 4}, '{"n": 4}')
        assert json.dumps(SCHEMA, sort_keys=True) in server.requests[0].json["messages"][0]["content"]


def test_the_flag_wins_over_the_manifest_and_starts_from_the_current_folder_not_from_the_working_folder(
    shell: Shell, schema: Path
) -> None:
    other = shell.rig.root / "other.json"
    other.write_text('{"type": "string"}')
    elsewhere = shell.rig.root / "elsewhere"
    elsewhere.mkdir()
    with ProviderServer([Answer('{"n": 3}')]) as server:
        manifest = shell.rig.manifest(server)
        manifest.write_text(manifest.read_text().replace("[worker]", f'[worker]\noutput_schema = "{other}"'))
        assert shell("run", manifest, "x", "-C", elsewhere, "--output-schema", schema.name, "-q")
        assert len(server.requests) == 1


def test_a_schema_that_comes_with_a_later_run_reaches_the_model_and_each_run_has_its_own_repair(
    shell: Shell, schema: Path
) -> None:
    answers = ["hello", "three", '{"n": 3}', "four", '{"n": 4}']
    with ProviderServer([Answer(text) for text in answers]) as server:
        manifest = shell.rig.manifest(server)
        shell("run", manifest, "hi", "--name", "a", "-q")
        for n in (3, 4):
            begun = ("run", manifest, f"count {n}", "--name", "a") if n == 3 else ("resume", "a", f"count {n}")
            out = shell(*begun, "--output-schema", schema, "-q")
            assert json.loads(out) == {"n": n}
        sent = [json.dumps(r.json["messages"]).count("must be one JSON value") for r in server.requests]
        assert sent == [0, 1, 1, 1, 1], "told once, in the request of the run that brought it"


def test_an_answer_that_never_meets_the_schema_fails_the_run(shell: Shell, schema: Path) -> None:
    with ProviderServer([Answer('{"n": "x"}'), Answer('{"n": "y"}')]) as server:
        out = shell("run", shell.rig.manifest(server), "x", "--output-schema", schema, "-q", code=1)
    assert out == "" and "output_invalid" in shell.err


@pytest.mark.parametrize(
    ("text", "said"), [(None, "no such file"), ("{", "can't be read as JSON"), ('{"type": 3}', "is no JSON Schema")]
)
def test_a_schema_that_is_none_stops_the_run_before_anything_is_made(text: str | None, said: str, shell: Shell) -> None:
    path = shell.rig.work / "s.json"
    if text is not None:
        path.write_text(text)
    with ProviderServer([]) as server:
        shell("run", shell.rig.manifest(server), "x", "--output-schema", path, code=2)
        assert said in shell.err and "s.json" in shell.err and shell.err.count("\n") == 1
        assert server.requests == []
    assert not (shell.rig.home / "pods").exists()


def test_the_proof_counts_the_schema_as_part_of_the_prompt(shell: Shell) -> None:
    path = shell.rig.work / "big.json"
    words = " ".join(f"word{n}" for n in range(30_000))
    path.write_text(json.dumps({"type": "object", "description": words}))
    with ProviderServer([]) as server:
        shell("run", shell.rig.manifest(server), "x", "--output-schema", path, code=2)
    assert "the context can't work with these numbers" in shell.err


# -- --max-cost -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ((), "openai-chat:test-model"),
        (("--model", "openai:gpt-4o", "--set", "model.base_url=https://api.openai.com/v1",
          "--set", 'model.fallback=["openai-chat:strange"]'), "openai-chat:strange"),
    ],
)  # fmt: skip
def test_a_limit_on_cost_with_a_model_of_unknown_price_is_refused_before_anything_is_made(
    more: tuple[str, ...], named: str, shell: Shell
) -> None:
    with ProviderServer([]) as server:
        shell("run", shell.rig.manifest(server), "x", "--name", "a", "--max-cost", "5", *more, code=2)
        assert server.requests == []
    assert f"the price of {named} is not known; nothing was sent" in shell.err
    for way in ("pod models", "checkout[prices]", "max_total_tokens"):
        assert way in shell.err
    assert not (shell.rig.home / "pods").exists()


def test_the_compact_workers_own_model_needs_a_price_too_and_check_says_so(shell: Shell) -> None:
    more = '[limits]\nmax_cost_usd = 2.5\n[compaction]\nrequest_threshold = 40000\n[compaction.model]\nname = "openai-chat:odd"\n'
    manifest = shell.rig.manifest(None, more=more)
    text = manifest.read_text().replace("openai-chat:test-model", "openai-chat:gpt-4o")
    manifest.write_text(text.replace('base_url = "http://127.0.0.1:9/v1"', 'base_url = "https://example.com/v1"'))
    shell("manifest", "check", manifest, code=2)
    assert "limits.max_cost_usd = 2.5" in shell.err and "openai-chat:odd" in shell.err and "gpt-4o" not in shell.err


def test_a_limit_on_cost_can_be_added_at_resume_only_where_the_price_is_known(shell: Shell) -> None:
    with ProviderServer([Answer("one")]) as server:
        shell("run", shell.rig.manifest(server), "x", "--name", "a", "-q")
        before = {p: p.read_bytes() for p in (shell.rig.home / "pods" / "a").glob("*.jsonl")}
        shell("resume", "a", "y", "--max-cost", "1", code=2)
        assert len(server.requests) == 1
    assert {p: p.read_bytes() for p in (shell.rig.home / "pods" / "a").glob("*.jsonl")} == before


# -- another manifest -----------------------------------------------------------------------------------------


def test_another_manifest_at_resume_counts_in_that_run_and_in_a_later_plain_resume(shell: Shell) -> None:
    calls = [Answer(calls=[Call("list_files", {"path": "."})])]
    with ProviderServer([Answer("one"), *calls, *calls]) as server:
        shell("run", shell.rig.manifest(server, tools=["list_files"]), "x", "--name", "a", "-q")
        other = shell.rig.manifest(server, tools=["list_files"], name="other.toml")
        other.write_text(
            other.read_text().replace("test-model", "better-model").replace("[worker]", "[worker]\nmax_requests = 1")
        )
        shell("resume", "a", "go on", "--manifest", other, "-q", code=4)
        assert "max_requests" in shell.err
        shell("resume", "a", "and on", "-q", code=4)
        assert [r.json["model"] for r in server.requests] == ["test-model", "better-model", "better-model"]


@pytest.mark.anyio
async def test_reopening_a_pod_takes_the_manifest_that_is_in_force(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    import anyio.to_thread

    monkeypatch.setenv("TEST_KEY", "sk-test-1234567890")
    with ProviderServer([Answer("one"), Answer("two"), Answer("three")]) as server:

        def both() -> None:
            rig.pod("run", rig.manifest(server), "x", "--name", "a", "-q")
            other = rig.manifest(server, name="other.toml")
            other.write_text(other.read_text().replace("test-model", "better-model"))
            assert rig.pod("resume", "a", "go on", "--manifest", other, "-q").code == 0

        await anyio.to_thread.run_sync(both)
        async with Pod.reopen("a", home=rig.home) as pod:
            assert pod.manifest.model.name == "openai-chat:better-model"
            assert pod.cwd == rig.work.resolve()
            assert (await pod.run("more")).text == "three"
    assert [r.json["model"] for r in server.requests] == ["test-model", "better-model", "better-model"]
    assert stored_manifest(PodFolder(rig.home, "a"))[0].model.name == "openai-chat:better-model"


# -- models and tools -----------------------------------------------------------------------------------------


def test_models_have_a_source_for_each_figure(shell: Shell) -> None:
    rows = {row["model"]: row for row in shell.json("models")["models"]}
    for row in rows.values():
        assert row["window_source"] and row["max_output_source"]
        assert (row["price_source"] is None) == (row["input"] is None)
    assert rows["openai:gpt-4o"]["window_source"] == "table"
    text = shell("models")
    assert text.splitlines()[0].split()[:5] == ["MODEL", "WINDOW", "FROM", "OUTPUT", "FROM"]
    (line,) = (line for line in text.splitlines() if line.startswith("openai:gpt-4o "))
    window, output = line.split()[1:3], line.split()[3:5]
    assert (window[0], output[0]) == ("128,000", "16,384")
    (origins,) = (line for line in text.splitlines() if line.startswith("from: "))
    assert f"{window[1]} {rows['openai:gpt-4o']['window_origin']}" in origins
    assert f"{output[1]} own table, 2026-" in origins, "source and date"


def test_models_of_a_manifest_are_those_that_it_may_ask_with_what_it_says_of_them(shell: Shell) -> None:
    more = '[compaction]\nrequest_threshold = 40000\n[compaction.model]\nname = "openai:gpt-4o"\n'
    manifest = shell.rig.manifest(None, more=more)
    manifest.write_text(
        manifest.read_text().replace("context_window", 'fallback = ["openai-chat:other"]\ncontext_window')
    )
    rows = shell.json("models", "--manifest", manifest)["models"]
    assert [(r["role"], r["model"]) for r in rows] == [
        ("model", "openai-chat:test-model"), ("fallback", "openai-chat:other"), ("compaction.model", "openai:gpt-4o"),
    ]  # fmt: skip
    first = rows[0]
    assert (first["window"], first["window_source"], first["max_output"], first["max_output_source"]) == (
        60_000, "manifest", 2_000, "manifest",
    )  # fmt: skip
    assert rows[1]["window_source"] == "fallback" and rows[1]["price_source"] is None
    text = shell("models", "--manifest", manifest)
    assert "compaction.model" in text and "60,000" in text and "manifest" in text
    shell("models", "--manifest", "nothing.toml", code=2)


def test_tools_have_effect_and_description(shell: Shell) -> None:
    rows = {row["name"]: row for row in shell.json("tools")}
    assert rows["edit_file"]["effect"] == "write" and rows["edit_file"]["parameters"]["type"] == "object"
    assert all(row["description"] for row in rows.values())
    (line,) = (line for line in shell("tools").splitlines() if line.startswith("read_file "))
    assert line.split()[1] == "read" and rows["read_file"]["description"].splitlines()[0][:30] in line
