"""Secrets that the runtime itself holds never reach log or provider through a tool (B083)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pod import Manifest, Pod
from worker.masking import Masker, secrets_in
from worker.testing import ScriptedModel, call, say
from worker.tools import tool

pytestmark = pytest.mark.anyio
KEY = "sk-test-XYZ-0123456789"


def test_variables_that_speak_of_a_secret_are_found_and_others_are_not() -> None:
    found = secrets_in(
        {
            "OPENAI_API_KEY": KEY,
            "GH_TOKEN": "t" * 20,
            "PATH": "/usr/bin:/bin",
            "DB_PASSWORD": "short",
            "MONKEY": "x" * 20,
        }
    )
    assert set(found) == {"OPENAI_API_KEY", "GH_TOKEN"}


def test_the_longest_secret_is_replaced_first() -> None:
    masker = Masker({"A": "secret-value", "B": "secret-value-longer"})
    assert masker.mask("x secret-value-longer y secret-value") == ("x [secret B] y [secret A]", 2)


@given(st.text(), st.text())
def test_no_secret_survives(before: str, after: str) -> None:
    assert KEY not in Masker({"K": KEY}).mask(before + KEY + after)[0]


async def test_a_key_in_a_tools_output_is_masked_before_it_is_stored_or_sent_b083(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    @tool
    def leak() -> str:
        """Says a secret."""
        return f"the key is {KEY} and the token is unknown-token-1"

    model = ScriptedModel([call("leak"), say("seen")])
    async with Pod.open(Manifest(), name="p", home=tmp_path, cwd=tmp_path, tools=[leak], model=model) as pod:
        result = await pod.run("go")
    assert result.status == "finished"
    assert b"[secret OPENAI_API_KEY]" in model.requests[1].messages
    assert b"unknown-token-1" in model.requests[1].messages
    written = b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
    assert KEY.encode() not in written
