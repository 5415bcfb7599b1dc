"""A manifest can be shown, written, described and begun anew; what is written loads as what it was."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pod.manifest import Manifest, load_manifest, unsupported
from pod.manifest.docs import manifest_markdown
from pod.manifest.fresh import FIRST_WEEK, new_manifest_text
from pod.manifest.render import json_schema, show, to_toml
from pod.manifest.schema import keys
from pod.manifest.support import UNSERVED_TABLES

ROOT = Path(__file__).parents[2]
MODEL = '[model]\nname = "offline:surveyor"\n'


def reload(text: str) -> Manifest:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.toml"
        path.write_bytes(text.encode())
        return load_manifest(path, env={}, cwd=folder).manifest


def test_show_gives_each_value_with_its_origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.toml").write_text(MODEL + "[permissions]\nrules = [{ tool = 'shell', action = 'deny' }]\n")
    loaded = load_manifest("m.toml", ["prune.excerpt_chars=1"], env={"POD__LOG__DURABILITY": "os"})
    rows = [line.split(None, 1) for line in show(loaded).splitlines()]
    table = {key: rest.rsplit("  ", 1) for key, rest in rows}
    assert [part.strip() for part in table["model.name"]] == ['"offline:surveyor"', "m.toml:2"]
    assert [part.strip() for part in table["prune.excerpt_chars"]] == ["1", "--set prune.excerpt_chars"]
    assert [part.strip() for part in table["log.durability"]] == ['"os"', "POD__LOG__DURABILITY"]
    assert [part.strip() for part in table["retry.max_seconds"]] == ["300", "default"]
    assert table["permissions.rules[0]"][1].strip() == "m.toml:4"
    entries = ("mcp", "hooks", "interceptors", "permissions.rules", "rollover", "compaction")
    leaves = {".".join(path) for path, key in keys().items() if key.section is None}
    wanted = {leaf for leaf in leaves if not leaf.startswith(tuple(f"{entry}." for entry in entries))}
    assert wanted - {"extends"} <= set(table)


PROMPTS = st.text(st.one_of(st.sampled_from("\"'\\#$\n\r\t{}"), st.characters(codec="utf-8")), max_size=30).filter(
    lambda text: "sk-" not in text
)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """Manifests with unusual texts and most kinds of values."""
    threshold: Any = draw(st.one_of(st.none(), st.integers(30_000, 10**6), st.sampled_from(["60%", "62.5%"])))
    data: dict[str, Any] = {
        "pod": {"description": draw(PROMPTS)},
        "worker": {"system_prompt": draw(PROMPTS)},
        "model": {
            "name": "anthropic:" + draw(st.text("abc-.:/", min_size=1, max_size=8)),
            "base_url": draw(st.sampled_from([None, "https://h/$x/$$/${A}", "http://localhost:1"])),
            "reasoning": draw(st.sampled_from([None, "high", 2048])),
            "temperature": draw(st.sampled_from([None, 0.0, 0.1, 1])),
            "extra_body": draw(
                st.dictionaries(PROMPTS.filter(str.isalpha), st.integers(-(2**63), 2**63 - 1), max_size=2)
            ),
        },
        "scope": {
            "read": ["/" + part for part in draw(st.lists(st.text("ab$ é", max_size=5).map(str.strip), max_size=3))]
        },
        "permissions": {
            "rules": [
                {"tool": tool, "match": match, "action": "deny"}
                for tool, match in draw(st.lists(st.tuples(st.sampled_from(["shell", "*"]), PROMPTS), max_size=2))
            ]
        },
        "prune": {"min_savings": draw(st.sampled_from(["auto", 0, 5000])), "enabled": draw(st.booleans())},
        "interceptors": [{"use": use} for use in draw(st.lists(st.sampled_from(["a:B", "a.b:C"]), max_size=2))],
    }
    data["model"] = {key: value for key, value in data["model"].items() if value is not None}
    if draw(st.booleans()):
        data["compaction"] = {} if threshold is None else {"threshold": threshold}
        if draw(st.booleans()):
            data["compaction"]["model"] = {"name": "offline:summarizer"}
    return Manifest.model_validate(data)


@given(manifests())
def test_a_written_manifest_loads_as_what_it_was(manifest: Manifest) -> None:
    again = reload(to_toml(manifest))
    assert again == manifest
    assert again.digest == manifest.digest


def test_absent_tables_stay_absent_when_written() -> None:
    text = to_toml(reload(MODEL))
    assert "compaction" not in tomllib.loads(text)
    assert "rollover" not in tomllib.loads(text)
    assert unsupported(reload(text)) == []


def _set(values: dict[str, Any]) -> dict[str, Any]:
    """What is set, without tables in which nothing is."""
    inner = {key: _set(value) if isinstance(value, dict) else value for key, value in values.items()}
    return {key: value for key, value in inner.items() if value != {}}


LIVE = {("scope", "write"): ["."], ("compaction", "request_threshold"): "70%"}


def test_a_new_manifest_sets_what_was_given_and_pins_no_default(tmp_path: Path) -> None:
    for full in (False, True):
        text = new_manifest_text("auditor.toml", "anthropic:claude-sonnet-5-5", LIVE, full=full)
        assert _set(tomllib.loads(text)) == {
            "version": 1,
            "model": {"name": "anthropic:claude-sonnet-5-5"},
            "scope": {"write": ["."]},
            "compaction": {"request_threshold": "70%"},
        }
        path = tmp_path / "auditor.toml"
        path.write_text(text)
        loaded = load_manifest(path, env={}, cwd=tmp_path)
        assert loaded.warnings == () and loaded.manifest.pod.name is None


def test_a_full_new_manifest_explains_every_key_and_a_short_one_those_of_the_first_week() -> None:
    text = new_manifest_text("auditor.toml", "anthropic:claude-sonnet-5-5", LIVE, full=True)
    for key in keys().values():
        if key.path[0] in UNSERVED_TABLES:
            continue
        assert key.path[-1] in text
        if key.section is None:
            assert key.field.description
            assert key.field.description.split()[0] in text
    short = new_manifest_text("auditor.toml", "anthropic:claude-sonnet-5-5", LIVE)
    assert len(short.splitlines()) < 90 and "--full" in short
    assert all(f"{path[-1]} = " in short for path in FIRST_WEEK)


def test_what_is_not_served_yet_is_marked_in_the_reference_and_left_out_of_a_new_manifest() -> None:
    text = new_manifest_text("auditor.toml", "anthropic:claude-sonnet-5-5", {}, full=True)
    page = manifest_markdown()
    assert {"mcp"} == UNSERVED_TABLES
    for table in UNSERVED_TABLES:
        assert f"[{table}]" not in text
        section = page.split(f"[{table}]", 1)[1].split("\n## ", 1)[0]
        assert "Not served yet." in section, table
    assert page.count("not served yet") == 1


def test_the_comments_of_a_new_manifest_are_true_toml() -> None:
    """Each key that is commented out, taken in alone, is a value that its model accepts."""
    text = new_manifest_text("auditor.toml", "anthropic:claude-sonnet-5-5", {}, full=True)
    section, seen = "", set[str]()
    for line in (line.removeprefix("# ") for line in text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            section = line
        name = line.split(" = ")[0]
        if " = " not in line or not name.isidentifier() or name in {"extends", "output_schema", "system_prompt_file"}:
            continue
        if section in ("[worker]", "[model]", "[limits]", "[permissions]", "[prune]", "[tools]") and name != "python":
            seen.add(name)
            extra = MODEL if section == "[model]" else f"{MODEL}{section}\n"
            reload(f"{extra}{'' if (section, name) == ('[model]', 'name') else line}\n")
    assert {"fallback", "max_cost_usd", "reasoning", "temperature", "max_requests", "rules", "enable"} <= seen


def test_the_json_schema_forbids_unknown_keys_and_knows_all_sections() -> None:
    schema = json_schema()
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) == set(Manifest.model_fields)
    compaction = schema["$defs"]["CompactionSection"]
    assert compaction["additionalProperties"] is False
    assert compaction["properties"]["retained_tokens"]["description"].startswith("Tokens")


def test_the_document_is_what_the_models_say() -> None:
    """Write it anew with: python -m pod.manifest.docs > docs/manifest.md"""
    assert (ROOT / "docs" / "manifest.md").read_text(encoding="utf-8") == manifest_markdown()


def test_every_key_has_a_description() -> None:
    assert [path for path, key in keys().items() if key.section is None and not key.field.description] == []


def test_importing_the_manifest_loads_nothing_heavy() -> None:
    code = "import sys, pod.manifest; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = set(done.stdout.split())
    assert "pod.manifest.load" in loaded
    assert not loaded & {
        "openai",
        "anthropic",
        "tiktoken",
        "rich",
        "genai_prices",
        "anyio",
        "trio",
        "tomli_w",
        "worker",
    }
