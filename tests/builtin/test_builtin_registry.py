from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from worker.builtin.registry import BUILTIN, builtin_tool
from worker.errors import ConfigError


@pytest.mark.parametrize("name", BUILTIN)
def test_each_tool_has_its_name_a_description_and_a_schema(name: str) -> None:
    made = builtin_tool(name)
    assert made.name == name
    assert len(made.description) > 40
    schema = made.parameters
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    missing = [key for key, value in schema["properties"].items() if "description" not in value]
    assert missing == [], "the model is told what each parameter means"
    assert "context" not in schema["properties"]
    json.dumps(schema)


def test_effects_are_declared() -> None:
    effects = {name: builtin_tool(name).effect for name in BUILTIN}
    assert {n for n, e in effects.items() if e == "write"} == {"write_file", "append_file", "edit_file"}
    assert {n for n, e in effects.items() if e == "process"} == {"shell", "jobs"}


def test_an_unknown_tool_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="no built-in tool 'read_fil': did you mean 'read_file'"):
        builtin_tool("read_fil")
    with pytest.raises(ConfigError, match="known are read_file, "):
        builtin_tool("zzz")


def test_settings_reach_the_tool() -> None:
    assert builtin_tool("read_file", max_output=1000).max_output == 1000
    assert builtin_tool("list_files", max_output=1000, timeout=5).timeout == 5
    shell = builtin_tool("shell", timeout=3, env=["X"])
    assert shell.timeout is None, "the shell ends its processes itself"


@pytest.mark.parametrize(
    ("name", "settings", "text"),
    [
        ("shell", {"timout": 3}, "the tool 'shell' has no setting 'timout': did you mean 'timeout'"),
        ("list_files", {"env": []}, "it has timeout, max_output"),
        ("shell", {"timeout": 0}, "must be a number above 0"),
        ("shell", {"env": "HOME"}, "must be a list of variable names"),
        ("read_file", {"max_output": 1.5}, "whole number of bytes"),
        ("read_file", {"max_output": "64k"}, "must be a number above 0, not '64k'"),
    ],
)
def test_a_wrong_setting_is_an_error_that_names_it(name: str, settings: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        builtin_tool(name, **settings)


def test_the_registry_loads_no_tool_before_it_is_asked_for() -> None:
    code = "import sys, worker.builtin.registry; print([m for m in sys.modules if 'builtin.' in m or m == 'pathspec'])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2], check=True
    )
    assert done.stdout.strip() == "['worker.builtin.registry']"
