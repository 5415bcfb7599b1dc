"""What hooks are told and what they may answer: pure."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pod.hooks.answers import CONTEXT, REASON, Block, Broken, GoOn, of_code, of_json, of_program
from pod.hooks.define import Hook
from pod.hooks.inputs import LARGEST, PostToolUse, PreToolUse, RunStart, told

CONTROLS = {chr(code) for code in (*range(9), *range(11, 32), *range(127, 160))}


def test_exit_code_0_without_output_goes_on_and_2_blocks_with_what_stands_on_standard_error() -> None:
    assert of_program(0, "", "chatter") == GoOn()
    assert of_program(0, " \n", "") == GoOn()
    assert of_program(2, '{"decision": "allow"}', "not on a Friday\n") == Block("not on a Friday")


@pytest.mark.parametrize("code", [1, 3, 127, -9, None])
def test_any_other_end_is_no_answer(code: int | None) -> None:
    assert isinstance(of_program(code, '{"decision": "allow"}', "oops"), Broken)


@pytest.mark.parametrize(
    "text",
    [
        "ok", "[]", "null", '"deny"', '{"decision": "den"}', '{"decision": true}', '{"reason": 5}', '{"descision": "deny"}',
        '{"decision": "ask"}', "[" * 100_000,
    ],
)  # fmt: skip
def test_output_that_is_not_understood_is_no_answer_and_never_a_yes(text: str) -> None:
    assert isinstance(of_json(text), Broken)


def test_output_may_deny_or_add_context() -> None:
    assert of_json('{"decision": "deny", "reason": "no"}') == Block("no")
    assert of_json('{"decision": "block"}') == Block("")
    assert of_json('{"decision": "allow", "additional_context": "see notes.md"}') == GoOn("see notes.md")
    assert of_json('{"reason": null}') == GoOn("")


@given(st.text(), st.text(max_size=20))
def test_whatever_a_hook_says_is_bounded_and_holds_no_control_characters(text: str, filler: str) -> None:
    long = text + filler * 2_000
    said = of_program(2, "", long.encode(errors="replace").decode())
    assert isinstance(said, Block) and len(said.reason) <= REASON and not CONTROLS & set(said.reason)
    added = of_json(json.dumps({"additional_context": long}))
    assert isinstance(added, GoOn) and len(added.additional_context) <= CONTEXT
    assert not CONTROLS & set(added.additional_context)


@given(
    st.recursive(
        st.none() | st.booleans() | st.text() | st.integers(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_only_an_object_of_known_keys_is_an_answer(value: Any) -> None:
    answer = of_json(json.dumps(value))
    known = isinstance(value, dict) and not set(value) - {"decision", "reason", "additional_context"}
    assert known or isinstance(answer, Broken)


def test_a_function_answers_with_nothing_a_go_on_or_a_block() -> None:
    assert of_code(None) == GoOn()
    assert of_code(Block("no\x1b[31m")) == Block("no")
    for strange in (True, False, "deny", {"decision": "deny"}, GoOn, Block(5)):  # type: ignore[arg-type]
        assert isinstance(of_code(strange), Broken)


def mask(text: str) -> str:
    return text.replace("hunter2hunter2", "[secret]")


def test_an_input_holds_no_secret_wherever_it_stood() -> None:
    arguments = {"a": ["x hunter2hunter2"], "hunter2hunter2": {"b": "hunter2hunter2"}}
    made = told(PreToolUse(tool="t", effect="read", call_id="c", arguments=arguments), mask)
    assert "hunter2" not in made.model_dump_json() and "[secret]" in made.model_dump_json()
    assert "hunter2" not in told(RunStart(input=("use hunter2hunter2",)), mask).model_dump_json()


def test_an_input_is_a_frozen_copy_of_its_own() -> None:
    arguments: dict[str, Any] = {"paths": ["a"]}
    one = told(PreToolUse(tool="t", effect="read", call_id="c", arguments=arguments), str)
    two = told(PreToolUse(tool="t", effect="read", call_id="c", arguments=arguments), str)
    assert isinstance(one, PreToolUse) and isinstance(two, PreToolUse)
    one.arguments["paths"].append("b")
    assert arguments == {"paths": ["a"]} == two.arguments
    with pytest.raises(ValueError):
        one.tool = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    "arguments",
    [{"text": "x" * 3_000_000}, {"many": ["word"] * 400_000}, {"y" * 2_000_000: 1}],
    ids=["text", "many", "key"],
)
def test_an_input_that_is_too_large_is_cut_and_says_so(arguments: dict[str, Any]) -> None:
    given_ = PostToolUse(tool="t", effect="read", call_id="c", arguments=arguments, content="y" * 2_000_000)
    made = told(given_, str)
    assert made.cut and len(made.model_dump_json()) <= LARGEST + 1_000
    assert not told(PreToolUse(tool="t", effect="read", call_id="c", arguments={"text": "x" * 900_000}), str).cut


def test_a_hook_before_something_blocks_where_it_gives_no_answer_and_any_other_is_passed_over() -> None:
    def nothing(_: Any) -> None: ...

    blocking = {
        event: Hook(event, nothing).blocks_on_error for event in ("PreToolUse", "PreCompact", "PostToolUse", "Stop")
    }
    assert blocking == {"PreToolUse": True, "PreCompact": True, "PostToolUse": False, "Stop": False}
    assert Hook("Stop", nothing, on_error="block").blocks_on_error
    assert not Hook("PreToolUse", nothing, on_error="ignore").blocks_on_error


def test_a_hook_is_called_by_its_script_or_program() -> None:
    assert Hook("Stop", command=["python3.11", "hooks/check.py", "-v"]).label == "check.py"
    assert Hook("Stop", command=["/usr/bin/make", "test"]).label == "make"
    assert Hook("Stop", command=["sh", "-c", "exit 2"]).label == "sh"
    assert Hook("Stop", command=["sh", "-c", "exit 2"], name="tests").label == "tests"
