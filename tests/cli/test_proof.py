"""The start-up proof: the arithmetic, and where its numbers come from."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pod.manifest import ACTING, CompactionSection, Manifest, ModelSection, load_manifest, shipped_names
from pod.proof import AT_THE_CEILING, DoesNotFit, Numbers, WorkerNumbers, check_numbers, numbers_of, prove

SIZES = st.integers(min_value=0, max_value=200_000)


@given(SIZES, SIZES, st.lists(st.integers(min_value=1, max_value=200_000), min_size=1, max_size=2), SIZES, SIZES)
def test_with_triggers_it_holds_exactly_where_the_sum_lies_below_half_the_lowest_and_each_below_the_ceiling(
    overhead: int, available: int, triggers: list[int], summary: int, mandatory: int
) -> None:
    named = {f"t{n}": value for n, value in enumerate(triggers)}
    lines = prove(overhead, available, named, summary, mandatory)
    wanted = overhead + summary + mandatory < min(triggers) // 2 and all(value < available for value in triggers)
    assert all(line.ok for line in lines) == wanted


@given(SIZES, SIZES, SIZES)
def test_without_triggers_only_the_first_request_has_to_fit(overhead: int, available: int, mandatory: int) -> None:
    assert all(x.ok for x in prove(overhead, available, {}, 99_999, mandatory)) == (overhead + mandatory < available)


def test_the_compact_workers_budget_must_fit_its_own_window() -> None:
    assert all(line.ok for line in prove(10, 1000, {}, 0, 0, WorkerNumbers(500, 500)))
    assert not all(line.ok for line in prove(10, 1000, {}, 0, 0, WorkerNumbers(500, 501)))


def test_the_error_shows_the_sum_line_by_line_and_the_way_out() -> None:
    numbers = Numbers(
        3000, 50_000, {"threshold": 9_000}, 2000, 100, window=60_000, window_source="manifest", model="m:x",
        parts=(("system prompt", 1000), ("tool schemas", 2000)),
    )  # fmt: skip
    with pytest.raises(DoesNotFit) as caught:
        check_numbers(numbers)
    text = str(caught.value)
    for said in (
        "m:x, window 60,000, manifest",
        "system prompt",
        "1,000",
        "tool schemas",
        "largest summary",
        "5,100",
        "NOT below 4,500",
    ):
        assert said in text
    assert "Raise the triggers" in text
    assert caught.value.exit_code == 2


def test_the_shipped_manifests_hold(tmp_path: Path) -> None:
    for name in shipped_names():
        assert check_numbers(numbers_of(load_manifest(name, cwd=tmp_path).manifest, tmp_path, "a task"))


def test_a_budget_that_nobody_chose_gives_way_to_a_small_window_and_a_chosen_one_does_not(tmp_path: Path) -> None:
    def manifest(**chosen: int) -> Manifest:
        return Manifest(
            model=ModelSection(name="offline:surveyor", context_window=40_000),
            compaction=CompactionSection(request_threshold=25_000, **chosen),
        )

    assert check_numbers(numbers_of(manifest(), tmp_path))
    with pytest.raises(DoesNotFit, match="compact worker"):
        check_numbers(numbers_of(manifest(worker_context_max_tokens=39_000), tmp_path))


def test_a_long_task_counts(tmp_path: Path) -> None:
    manifest = Manifest(
        model=ModelSection(name="offline:surveyor", context_window=60_000),
        compaction=CompactionSection(request_threshold=20_000),
    )
    assert check_numbers(numbers_of(manifest, tmp_path, "short"))
    with pytest.raises(DoesNotFit):
        check_numbers(numbers_of(manifest, tmp_path, "words and more words " * 3000))


@pytest.mark.parametrize("policy", ["off", "warn", "compact", "checkpoint", "rollover"])
@pytest.mark.parametrize("table", [None, CompactionSection(), CompactionSection(request_threshold=60_000)])
def test_a_policy_that_acts_shows_where_it_does_also_without_a_trigger(
    tmp_path: Path, policy: str, table: CompactionSection | None
) -> None:
    section = {"name": "openai-chat:m", "context_window": 100_000}
    manifest = Manifest.model_validate({"model": section, "context": {"policy": policy}, "compaction": table})
    numbers = numbers_of(manifest, tmp_path)
    lines = check_numbers(numbers)
    shown = [line for line in lines if line.label.startswith("trigger ")]
    ceiling = [line.tokens for line in lines if line.label == AT_THE_CEILING]
    if policy in ACTING:
        assert bool(shown) != bool(ceiling), "either a trigger or the ceiling"
        assert ceiling in ([], [numbers.available])
    else:
        assert not shown and not ceiling
