"""Runs commands in the test's own process."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cli.cli_rig import Rig

from pod.cli.main import main


class Shell:
    """Runs commands and keeps what they wrote to standard error; gives what they wrote to standard output."""

    def __init__(self, rig: Rig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        for key, value in rig.env().items():
            monkeypatch.setenv(key, value)
        monkeypatch.chdir(rig.work)
        self.rig = rig
        self.capsys = capsys
        self.err = ""

    def __call__(self, *args: object, code: int = 0) -> str:
        got = main([str(a) for a in args])
        out, self.err = self.capsys.readouterr()
        assert got == code, (got, out, self.err)
        return out

    def json(self, *args: object) -> Any:
        return json.loads(self(*args, "--json"))
