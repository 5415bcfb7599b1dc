"""The tests notice when a rule is switched off: the list holds, and a sample of it is run for real.

`make mutations` runs all of them.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mutations.run_mutations import ROOT, Copy, Mutation, load, named_tests
from tests.mutations.test_case_coverage import said

SAMPLE = 6
SEED = int(os.environ.get("POD_MUTATION_SEED", "20"))
"""Which mutations are run for real; another number takes others."""

MUTATIONS = load()


@pytest.fixture(scope="module")
def copy() -> Iterator[Copy]:
    with Copy.of() as made:
        yield made


def test_the_text_that_each_mutation_replaces_stands_exactly_once_in_its_file() -> None:
    wrong: list[str] = []
    for mutation in MUTATIONS:
        try:
            mutation.applied((ROOT / mutation.file).read_text())
        except (OSError, ValueError, SyntaxError) as error:
            wrong.append(str(error))
    assert not wrong, "\n".join(wrong)


def test_thirty_cases_and_more_have_a_mutation_and_each_names_a_test_that_quotes_its_case() -> None:
    cases = {m.case for m in MUTATIONS if re.fullmatch(r"B\d{3}", m.case)}
    assert len(cases) >= 30
    assert len({(m.file, m.old, m.new) for m in MUTATIONS}) == len(MUTATIONS)
    assert all(m.why and m.tests for m in MUTATIONS)
    silent: list[str] = []
    for mutation in MUTATIONS:
        texts = [said(test.partition("::")[0]).get(test.partition("::")[2]) for test in mutation.tests]
        assert None not in texts, f"{mutation.case}: one of {mutation.tests} does not exist"
        if mutation.case in cases and not any(re.search(mutation.case, text or "", re.IGNORECASE) for text in texts):
            silent.append(str(mutation))
    assert not silent


@pytest.mark.slow
@pytest.mark.parametrize("mutation", random.Random(SEED).sample(MUTATIONS, SAMPLE), ids=lambda m: m.case)
def test_a_rule_that_is_switched_off_is_noticed(copy: Copy, mutation: Mutation) -> None:
    outcome = copy.run(mutation)
    assert outcome.verdict == "killed", f"{outcome.verdict}: {mutation}\n{outcome.output[-3_000:]}"


def test_a_change_that_switches_nothing_off_survives_and_one_without_a_test_is_broken(copy: Copy) -> None:
    """The runner itself must be able to say no."""
    harmless = Mutation(
        case="B019",
        file="worker/calling.py",
        old='"""Answers every open call without running it."""',
        new='"""Answers every open call."""',
        tests=(
            "tests/worker/test_worker_calls.py"
            "::test_an_exception_without_text_is_reported_by_its_class_with_call_and_tool",
        ),
        why="nothing is switched off",
    )
    assert copy.run(harmless).verdict == "survived"
    absent = Mutation("B019", harmless.file, harmless.old, harmless.new, ("tests/worker/none.py::test_x",), "no test")
    assert copy.run(absent).verdict == "broken"
    stale = Mutation("B019", harmless.file, "no such text", "x", harmless.tests, "no such rule")
    assert copy.run(stale).verdict == "broken"


def test_the_working_tree_is_only_read(copy: Copy, tmp_path: Path) -> None:
    """A mutation is written into the copy, and gone from it afterwards; processes of its tests see the copy."""
    mutation = MUTATIONS[0]
    before = (ROOT / mutation.file).read_bytes()
    probe = copy.root / "tests" / "test_probe_of_the_copy.py"
    probe.write_text(
        "import subprocess, sys\n"
        "def test_probe(tmp_path):\n"
        "    code = 'import pod, worker; print(pod.__file__, worker.__file__)'\n"
        "    found = subprocess.run([sys.executable, '-c', code], cwd=tmp_path, env={}, capture_output=True, text=True)\n"
        f"    assert [f.startswith({str(copy.root)!r}) for f in found.stdout.split()] == [True, True], found\n"
    )
    with copy.mutated(mutation):
        assert (copy.root / mutation.file).read_text() == mutation.applied(before.decode())
        assert (ROOT / mutation.file).read_bytes() == before
        code, output = copy.pytest(["tests/test_probe_of_the_copy.py"])
    probe.unlink()
    assert code == 0, output
    assert (copy.root / mutation.file).read_bytes() == before
    assert not copy.root.is_relative_to(ROOT)
    assert named_tests([mutation]) == list(mutation.tests)
