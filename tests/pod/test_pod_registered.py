"""Every rung and every policy is known in all the places that docs/architecture.md names."""

from __future__ import annotations

import re
from typing import Any, get_args

import pytest

from pod.context.policy import ASK_A_MODEL
from pod.manifest.context import ACTING, ContextSection, Policy, Rung
from pod.manifest.project import TIGHTENING
from tests.pod.pod_rig import ROOT, Agent, Rig, caller, manifest

POLICIES = get_args(Policy)


@pytest.mark.anyio
async def test_every_rung_that_a_ladder_may_name_is_made_and_says_whether_it_costs_requests(rig: Rig) -> None:
    async with rig.open(Agent(caller(1)), manifest()) as pod:
        rungs = pod.running.compactor.rungs
    assert set(rungs) == set(get_args(Rung))
    assert {name for name, rung in rungs.items() if rung.asks_model} == ASK_A_MODEL


def test_every_policy_has_its_place_among_the_others_and_its_words() -> None:
    order: Any = TIGHTENING["context", "policy"]
    assert sorted(policy for rank in order for policy in rank) == sorted(POLICIES)
    assert order[-1] == ACTING
    description = ContextSection.model_fields["policy"].description or ""
    assert all(f"`{policy}`" in description for policy in POLICIES)


@pytest.mark.parametrize("floor", ["worker", "pod"])
def test_no_code_of_a_warning_is_written_where_it_is_used(floor: str) -> None:
    """They are named in `codes.py`, where whoever writes one and whoever reads it find the same."""
    literal = re.compile(r"Warned\(\s*code=[\"']")
    files = [path for path in (ROOT / floor).rglob("*.py") if path.name != "codes.py"]
    assert len(files) > 50
    assert [str(path) for path in files if literal.search(path.read_text())] == []


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_has_a_ladder_of_known_rungs(policy: str) -> None:
    made = manifest(context={"policy": policy})
    assert made.ladder and set(made.ladder) <= set(get_args(Rung))
    assert policy not in get_args(Rung) or made.ladder[0] == policy
