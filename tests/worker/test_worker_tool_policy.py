"""A tool's policy is checked when the tool is made: a word that stands for nothing would decide permissions in silence."""

from __future__ import annotations

from typing import Any

import pytest

from worker.errors import ConfigError
from worker.tools import Tool, tool


def fetch(url: str, deps: Any) -> str:
    """Fetches."""
    return url


@pytest.mark.parametrize(
    "policy, said",
    [
        ({"effect": "netwrk"}, "the tool 'fetch' has an unknown effect 'netwrk': did you mean 'network'?"),
        ({"effect": "?"}, "unknown effect '?': there are 'read', 'write', 'process', 'network'"),
        ({"effect": None}, "unknown effect None"),
        ({"timeout": 0}, "timeout is a number of seconds above 0, not 0"),
        ({"timeout": "5s"}, "timeout is a number of seconds above 0, not '5s'"),
        ({"timeout": float("nan")}, "timeout is a number of seconds above 0, not nan"),
        ({"max_output": -1}, "max_output is a number of bytes above 0, not -1"),
        ({"max_output": None}, "max_output is a number of bytes above 0, not None"),
        ({"resource": "ulr"}, "no parameter 'ulr' for resource=: did you mean 'url'?"),
        ({"resource": "deps"}, "no parameter 'deps' for resource=: its parameters are url"),
    ],
)
def test_a_policy_that_stands_for_nothing_is_named(policy: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        tool(**policy)(fetch)
    assert said in str(raised.value)


def test_a_tool_made_without_the_decorator_is_checked_as_well() -> None:
    wrong: Any = "netwrk"
    with pytest.raises(ConfigError, match="did you mean 'network'"):
        Tool(name="mine", description="", parameters={}, call=lambda given, context: None, effect=wrong)


def test_an_option_without_its_name_is_named() -> None:
    wrong: Any = "network"
    with pytest.raises(ConfigError, match="its options by name"):
        tool(wrong)


def test_a_first_paragraph_of_several_lines_stays_one_paragraph() -> None:
    @tool
    def look(x: int) -> int:
        """Looks at what is there,
        and at what is not.

        More of it.
        """
        return x

    assert look.description == "Looks at what is there,\nand at what is not.\n\nMore of it."
