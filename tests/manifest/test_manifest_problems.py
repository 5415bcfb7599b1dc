"""All problems of a manifest come together, in the order of its lines, each once, in words for people."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from pod.manifest import Loaded, Manifest, ManifestError, ModelSection, PodSection, Problem, load_manifest
from pod.manifest.layers import Flag, Override
from pod.manifest.schema import keys

MODEL = '[model]\nname = "offline:surveyor"\n'


def problems(
    folder: Path, text: str, overrides: Sequence[Override] = (), env: dict[str, str] | None = None
) -> list[Problem]:
    path = folder / "m.toml"
    path.write_text(text)
    with pytest.raises(ManifestError) as caught:
        load_manifest(path, overrides, env=env or {}, cwd=folder)
    return caught.value.problems


def places(found: list[Problem]) -> list[tuple[int | None, str]]:
    return [(problem.line, problem.key) for problem in found]


def test_problems_of_all_kinds_come_together_in_the_order_of_lines(tmp_path: Path) -> None:
    text = (
        "[worker]\nsystem_prompt_file = 'none.md'\nmax_request = 3\n[tools]\nenable = ['read_fil', 'shel']\n"
        "[prune]\nexcerpt_chars = -1\n[compaction]\nretained_tokens = 9000\nthreshold = 9000\n"
        "[model]\napi_key = 'x'\nbase_url = 'https://${NOT_SET}'\n[sandbox]\nmode = 'workspaces'\n"
    )
    found = problems(tmp_path, text, ["nonsense", Flag("--max-cost", "limits.max_cost_usd", "0")])
    assert places(found) == [
        (2, "[worker] system_prompt_file"),
        (3, "[worker] max_request"),
        (5, "[tools] enable"),
        (5, "[tools] enable"),
        (7, "[prune] excerpt_chars"),
        (9, "[compaction] retained_tokens"),
        (11, "[model] name"),
        (12, "[model] api_key"),
        (13, "[model] base_url"),
        (15, "[sandbox] mode"),
        (None, ""),
        (None, "[limits] max_cost_usd"),
    ]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (MODEL + "[tools]\npython = ['sk-abcdefghijk1234567890']\n", (4, "[tools.python #1]")),
        (MODEL + "[worker]\nsystem_prompt_file = '${NOT_SET}/p.md'\n", (4, "[worker] system_prompt_file")),
        (MODEL + "[worker]\nmax_requests = 99999999999999999999\n", (4, "[worker] max_requests")),
        ("[model]\nname = 'none'\n", (2, "[model] name")),
    ],
)
def test_what_is_wrong_in_several_ways_is_told_once(tmp_path: Path, text: str, place: tuple[int, str]) -> None:
    assert places(problems(tmp_path, text)) == [place]


@pytest.mark.parametrize(
    "text",
    [
        "[compaction]\nretained_tokens = 'x'\nthreshold = 6000\n",
        "context_window = 50000\nmax_output_tokens = 'x'\n[compaction]\nrequest_threshold = 46000\n",
    ],
)
def test_a_number_that_can_not_be_read_contradicts_nothing(tmp_path: Path, text: str) -> None:
    (problem,) = problems(tmp_path, MODEL + text)
    assert problem.message == "should be a whole number, not a string"


def test_a_base_that_is_missing_hides_no_mistake_and_makes_none(tmp_path: Path) -> None:
    found = problems(
        tmp_path, "extends = 'none.toml'\n[retry]\nmax_attempts = 0\n[tools]\nenable = ['read_fil']\npython = ['x']\n"
    )
    assert places(found) == [
        (1, "extends"),
        (3, "[retry] max_attempts"),
        (5, "[tools] enable"),
        (6, "[tools.python #1]"),
    ]


def test_two_files_that_can_not_be_read_are_both_named(tmp_path: Path) -> None:
    config = tmp_path / "pod" / "config.toml"
    config.parent.mkdir()
    config.write_text("[")
    found = problems(tmp_path, "]", ["retry.max_attempts=0"], {"XDG_CONFIG_HOME": str(tmp_path)})
    assert [Path(problem.file or "").name for problem in found] == [
        "config.toml",
        "m.toml",
        "--set retry.max_attempts",
    ]


def test_what_parts_show_comes_with_the_rest_and_what_a_project_may_not_set_is_not_acted_on(tmp_path: Path) -> None:
    (tmp_path / ".pod").mkdir()
    (tmp_path / ".pod" / "config.toml").write_text("[tools]\npython = ['evil:tool']\n")
    path = tmp_path / "m.toml"
    path.write_text(MODEL + "x = 1\n")

    def more(loaded: Loaded) -> Iterator[Problem]:
        assert loaded.manifest.tools.python == ()
        yield Problem("can't be made", file=str(path), line=2, path=("model", "name"))

    with pytest.raises(ManifestError) as caught:
        load_manifest(path, env={}, cwd=tmp_path, more=more)
    assert [problem.line for problem in caught.value.problems] == [2, 3]


# -- words ----------------------------------------------------------------------------------------------------

ODD = ("'?'", "''", "1.5", "-7", "0", "true", "1979-05-27", "[]", "['']", "[1.5]", "{ a = 1 }", "[{ a = 1 }]", "nan")


def test_no_message_shows_a_pattern_or_a_word_of_the_validator(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text("version = 1\n")
    told: set[str] = set()
    for odd in ODD:
        given = [f"{'.'.join(key.path)}={odd}" for key in keys().values() if key.section is None]
        for override in given:
            try:
                load_manifest(path, [override], env={}, cwd=tmp_path, model_required=False)
            except ManifestError as error:
                told |= {problem.message for problem in error.problems}
    assert len(told) > 40
    raw = re.compile(
        r"[\^\\]|\[[a-zA-Z]+-|pattern|[Ii]nput|\bvalid\b|validation|instance|dictionary|tuple|String|items?\b"
    )
    assert [message for message in told if raw.search(message)] == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version = '1'\n", "this runtime reads version 1, a whole number, not a string"),
        ("version = 2\n", "this runtime reads version 1"),
        ("version = true\n", "this runtime reads version 1, a whole number, not a truth value"),
        ("worker.max_requests = 1.5\n", "should be a whole number, not 1.5"),
        ("tools.python = ['my tools']\n", 'should be written module:function, for example "my_pkg.tools:search_docs"'),
        ("model.base_url = 'http://localhost:99999999'\n", "is not a URL: Port out of range 0-65535"),
        ("model.base_url = 'http://localhost/a b'\n", "is not a URL: it holds spaces or control characters"),
        ("pod.name = 'ok/lock'\n", "can't be a pod's name: 'lock' is the name of something inside a pod's folder"),
        ('scope.read = ["a\\u0000b"]\n', "holds a NUL character, which no path can"),
        ('extends = "a\\u0000b"\n', "holds a NUL character, which no path can"),
    ],
)
def test_a_wrong_value_is_told_in_plain_words(tmp_path: Path, text: str, message: str) -> None:
    assert [problem.message for problem in problems(tmp_path, text + MODEL.replace("[model]\n", "model."))] == [message]


@pytest.mark.parametrize("key", ["worker.system_prompt_file", "worker.output_schema", "extends"])
def test_a_path_with_a_name_that_no_file_can_have_is_one_error(tmp_path: Path, key: str) -> None:
    (problem,) = problems(tmp_path, f"{key} = '{'x' * 400}'\nmodel.name = 'offline:surveyor'\n")
    assert problem.message.startswith("file name too long: ") and problem.line == 1


@pytest.mark.parametrize("digits", ["9" * 5000, "9" * 20, "0x" + "f" * 5000])
def test_a_number_of_more_than_64_bits_is_refused_in_each_layer_and_the_rest_is_told_too(
    tmp_path: Path, digits: str
) -> None:
    large = "a whole number has more than 64 bits; the largest is 9,223,372,036,854,775,807"
    found = problems(
        tmp_path, MODEL + f"x = 1\n[worker]\nmax_requests = {digits}\n[model.extra_body]\na = [{digits}]\n"
    )
    assert [(problem.line, problem.message) for problem in found] == [(3, "unknown key"), (5, large), (7, large)]
    found = problems(tmp_path, MODEL, [f"limits.max_cost_usd={digits}"], {"POD__WORKER__MAX_REQUESTS": digits})
    assert [problem.message for problem in found] == [large, large]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Manifest.model_validate({"model": {"nmae": "x"}}), ["[model] nmae: unknown key; did you mean name?"]),
        (
            lambda: Manifest.model_validate({"modle": {}, "compaction": {"threshold": 0}}),
            [
                "[compaction] threshold: should be a number of tokens above 0",
                "[modle]: unknown table; did you mean [model]?",
            ],
        ),
        (lambda: Manifest.model_validate_json('{"retry": {"max_attempts": 0}}'), ["[retry] max_attempts: "]),
        (lambda: Manifest.model_validate_json("{"), ["Invalid JSON"]),
        (lambda: Manifest.model_validate("x"), ["should be a table, not a string"]),
        (
            lambda: Manifest.model_validate({"mcp": [{"name": 3}]}),
            ["[mcp #1] name: should be", "[mcp #1] command: is missing"],
        ),
        (lambda: Manifest(pod={"name": "a b"}), ["[pod] name: can't be a pod's name"]),
        (lambda: ModelSection(name="gpt"), ["[model] name: should be written provider:model"]),
        (lambda: PodSection.model_validate({"nam": 1}), ["[pod] nam: unknown key; did you mean name?"]),
    ],
)
def test_values_that_code_gives_are_refused_in_the_words_of_a_file(make: Callable[[], object], said: list[str]) -> None:
    with pytest.raises(ManifestError) as caught:
        make()
    assert len(caught.value.problems) == len(said)
    for problem, words in zip(sorted(map(str, caught.value.problems)), sorted(said), strict=True):
        assert problem.startswith(words)
    assert "pydantic" not in str(caught.value) and "validation error" not in str(caught.value)
