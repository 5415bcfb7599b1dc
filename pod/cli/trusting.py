"""`pod trust`: what the configuration of a folder asks for, and the user's decision about it."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import sys
from pathlib import Path
from typing import Any

from pod.cli.failing import note
from pod.cli.output import is_terminal, show, show_json
from pod.cli.text import count, one_line, table
from pod.errors import UsageProblem
from pod.manifest.load import PROJECT_FILE, Loaded, load_project
from pod.manifest.project import Project
from pod.manifest.render import toml_value
from pod.manifest.source import is_there
from pod.trust import Decision, Decisions, Refused
from worker.text import sha256, visible


def trust(args: argparse.Namespace) -> int:
    """Shows, then decides; or lists, takes back, compares."""
    decisions = Decisions()
    if args.list:
        if args.folder is not None:
            raise UsageProblem("--list shows every folder: leave out the name of one")
        return _list(decisions, as_json=args.json)
    folder = Path(os.path.realpath(args.folder or "."))
    if args.remove:
        there = decisions.remove(folder)
        note(f"{folder}: {'not decided about any more' if there else 'nothing was decided about it'}")
        return 0
    if not folder.is_dir():
        raise UsageProblem(f"{args.folder}: no such folder")
    if not is_there(folder / PROJECT_FILE):
        raise UsageProblem(f"{folder / PROJECT_FILE} is not there: this folder asks for nothing, and needs no trust")
    if args.ignore:
        decisions.put(folder, "ignored")
        note(f"{folder}: its {PROJECT_FILE} is left out from now on; `pod trust --remove` takes that back")
        return 0
    if args.diff:
        return _diff(folder, decisions)
    return _decide(folder, decisions, args)


def _decide(folder: Path, decisions: Decisions, args: argparse.Namespace) -> int:
    whole = load_project(folder, trusted=True)  # raises for what no run would take, before anything of it is shown
    bounded = load_project(folder, trusted=False)
    project = bounded.project
    assert project is not None  # it is there
    before = _decided(folder, decisions)
    state = _state(before, project.digest)
    if args.json:
        show_json(_facts(project, state))
    else:
        show("\n".join(_lines(project, bounded, state)))
    if whole.project is None or whole.project.digest != project.digest:
        raise UsageProblem(f"{project.file} changed while it was looked at; look again")
    if state == "trusted" or (args.json and not args.yes):
        return 0
    if not args.yes and not _agreed():
        note("not trusted")
        return 1
    decisions.put(folder, "trusted", digest=project.digest, text=project.text)
    note(f"{folder}: trusted as it is now; another content of {PROJECT_FILE} is not, nor is any other folder")
    return 0


def _decided(folder: Path, decisions: Decisions) -> Decision | None:
    try:
        return decisions.of(folder)
    except (Refused, OSError) as error:
        note(f"pod: warning: what was decided about {folder} is not taken: {error}")
        return None


def _state(decided: Decision | None, digest: str) -> str:
    if decided is None:
        return "untrusted"
    if decided.word == "ignored":
        return "ignored"
    return "trusted" if decided.sha256 == digest else "changed"


_STATES = {
    "trusted": "trusted, as it is now",
    "untrusted": "not trusted: it may only tighten",
    "changed": "changed since you trusted it (`pod trust --diff` shows how): it may only tighten",
    "ignored": "left out whole, as you decided",
}


def _lines(project: Project, loaded: Loaded, state: str) -> list[str]:
    lines = [f"{visible(str(project.file))}: {_STATES[state]}"]
    asks = [(each.problem, each.value, each.before) for each in project.left_out]
    if asks:
        lines.append("asks for what only a trusted folder gets:")
    for problem, value, before in asks:
        instead = "" if before is None else f"  (else {_value(before)})"
        lines.append(f"  line {problem.line}: {problem.key} = {_value(value)}{instead}")
    if project.tightened:
        lines.append("tightens, trusted or not:")
    for path, was in project.tightened.items():
        key = ".".join(map(str, path))
        now = _at(loaded, path)
        lines.append(f"  {key} = {_value(now)}" + ("" if was.value is None else f"  (else {_value(was.value)})"))
    rules = [
        rule
        for number, rule in enumerate(loaded.manifest.permissions.rules)
        if loaded.sources[f"permissions.rules[{number}]"].layer == "project"
    ]
    if rules:
        lines.append(f"denies, trusted or not, by {count(len(rules), 'rule')}:")
        lines += [f"  {_value(rule)}" for rule in rules]
    if not asks:
        lines.append("asks for nothing that needs trust")
    return lines


def _at(loaded: Loaded, path: tuple[Any, ...]) -> Any:
    found: Any = loaded.manifest
    for part in path:
        found = getattr(found, part, None)
    return found


def _value(value: Any) -> str:
    """A value on one line, with every character that can't be seen as an escape."""
    text = toml_value(value)
    seen = "".join(c if c.isprintable() else f"\\u{{{ord(c):x}}}" for c in text)
    return one_line(seen, 2000)


def _facts(project: Project, state: str) -> dict[str, Any]:
    return {
        "folder": str(project.file.parent.parent),
        "file": str(project.file),
        "state": state,
        "sha256": project.digest,
        "asks": [
            {"key": each.problem.key, "line": each.problem.line, "value": _plain(each.value), "instead_of": each.before}
            for each in project.left_out
        ],
        "tightens": [
            {"key": ".".join(map(str, path)), "instead_of": was.value} for path, was in project.tightened.items()
        ],
    }


def _plain(value: Any) -> Any:
    """A value as JSON has it: dates become text."""
    return json.loads(json.dumps(value, default=str))


def _agreed() -> bool:
    """Asks on the terminal. Raises `UsageProblem` where there is none."""
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        raise UsageProblem("nobody is here to be asked: --yes trusts what is shown")
    print("Trust this, and what it names in the folder, to run as you? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _diff(folder: Path, decisions: Decisions) -> int:
    project = load_project(folder, trusted=False).project
    decided = _decided(folder, decisions)
    assert project is not None  # it is there
    if decided is None or decided.word != "trusted":
        raise UsageProblem(f"{folder} was not trusted before: there is nothing to compare with; `pod trust` shows all")
    lines = difflib.unified_diff(
        decided.text.splitlines(), project.text.splitlines(), f"as trusted {decided.at}", "now", lineterm=""
    )
    found = "\n".join("".join(c if c.isprintable() or c == "\t" else "\ufffd" for c in line) for line in lines)
    if found:
        show(found)
    else:
        note("nothing changed" if decided.sha256 == project.digest else "only line ends or a byte order mark changed")
    return 0


def _list(decisions: Decisions, *, as_json: bool) -> int:
    found = list(decisions.all())
    made = [each for each in found if isinstance(each, Decision)]
    for each in found:
        if not isinstance(each, Decision):
            note(f"pod: warning: not taken: {each[1]}")
    states = [_standing(each) for each in made]
    if as_json:
        show_json([
            {"folder": each.folder, "state": state, "at": each.at, "sha256": each.sha256}
            for each, state in zip(made, states, strict=True)
        ])  # fmt: skip
    elif made:
        rows = [(each.folder, state, each.at[:19]) for each, state in zip(made, states, strict=True)]
        show(table(rows, ("folder", "state", "decided")))
    else:
        note("nothing is decided about any folder")
    return 0


def _standing(decided: Decision) -> str:
    """How a decision stands against what is in the folder now."""
    file = Path(decided.folder) / PROJECT_FILE
    try:
        data = file.read_bytes() if file.is_file() else None
    except OSError:
        data = None
    if data is None:
        return "gone"
    return _state(decided, sha256(data))
