"""Writes the reference pages that are made from the models: `python -m pod.docs [FOLDER]` (default `docs`)."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from pod import bus, events
from pod.cli.flags import Argument, Usage, usages
from pod.cli.main import EXIT_CODES
from pod.hooks import docs as hooks_docs
from pod.hooks import inputs
from pod.manifest.docs import manifest_markdown
from pod.manifest.render import json_schema
from pod.peek import STATUSES
from pod.result import EXIT, EXIT_BY_KIND, RunResult

EVENTS_HEAD = """\
# Events

One stream for terminals, embedders and machines. `pod run --output-format stream-json` prints one JSON object a line; `async for event in run`
gives the same objects; `pod log NAME --json` and `pod.events(after=seq)` tell them again from the log.

Each has `type`, `seq` (the number of the log entry that it tells of; it never falls) and `at` (UTC). Events marked *passing* are told once, carry the
number of the last entry before them, and are not in the log. The first event of a stream is `init`, the last exactly one `result`.

This page and `events.schema.json` are made from the models by `make docs`; a test keeps them true.
"""

CLI_HEAD = """\
# The command line

`pod COMMAND --help` says the same in the terminal. Options may stand before, between and after the other words. Standard output carries the result
alone (or the stream); progress, warnings and hints go to standard error. Pods lie in `$POD_HOME` (default `$XDG_STATE_HOME/pod`, else
`~/.local/state/pod`).

What comes from models, tools, files, servers and manifests never steers a terminal: controls, marks of direction and what has no width are shown as
escapes (`\\x1b`, `\\u202e`), in all that a command tells. The answer of a run, an artifact, a manifest and a script are shown so on a terminal alone;
a pipe, or the file of `-o`, gets them unchanged. JSON holds the same characters as its own escapes.

This page is made from the parsers by `make docs`; a test keeps it true.
"""

STATUS_HEAD = """\
## Status words

How a pod stands, as `pod ls` and `pod show` say it. The words of runs that ended tell of the last run. `, 2 in the inbox` behind a word counts what
other processes left and nobody has taken up.
"""


def event_models() -> list[type[BaseModel]]:
    """The models of all events, in the order of the union."""
    union = get_args(events.Event)[0]
    return list(get_args(union))


def in_table(text: str) -> str:
    """A text as it stands in a cell of a table: there a bar must be escaped, within code as well."""
    return text.replace("|", "\\|")


def fields_table(model: type[BaseModel], *, skip: tuple[str, ...] = ()) -> list[str]:
    """A model's fields as rows of a table."""
    rows = ["| field | type | default |", "| --- | --- | --- |"]
    for name, field in model.model_fields.items():
        if name in skip:
            continue
        kind = (
            str(field.annotation).replace("typing.", "")
            if not isinstance(field.annotation, type)
            else field.annotation.__name__
        )
        default = "required" if field.is_required() else f"`{field.get_default(call_default_factory=True)!r}`"
        rows.append(f"| `{name}` | `{in_table(kind)}` | {in_table(default)} |")
    return rows


def events_markdown() -> str:
    """docs/events.md."""
    parts = [EVENTS_HEAD]
    for model in event_models():
        label: Any = model.model_fields["type"].get_default()
        mark = " *(passing)*" if label in bus.PASSING else ""
        parts.append(f"## `{label}`{mark}\n\n{inspect.cleandoc(model.__doc__ or '')}\n")
        rows = fields_table(model, skip=("type", "seq", "at"))
        if len(rows) > 2:
            parts.append("\n".join(rows) + "\n")
    parts.append("## The result\n\n" + inspect.cleandoc(RunResult.__doc__ or "") + "\n")
    parts.append("\n".join(fields_table(RunResult[Any])) + "\n")
    codes = [f"| {status} | {code} |" for status, code in EXIT.items()]
    codes += [f"| failed: {kind} | {code} |" for kind, code in EXIT_BY_KIND.items()]
    parts.append("\n".join(["| how a run ended | exit code |", "| --- | --- |", *codes]) + "\n")
    return "\n".join(parts)


def hooks_markdown() -> str:
    """docs/hooks.md."""
    models: list[type[BaseModel]] = list(get_args(get_args(inputs.HookInput)[0]))
    shared = tuple(inputs.Common.model_fields)
    own = fields_table(inputs.Common)
    about = inspect.cleandoc(inputs.Common.__doc__ or "")
    parts = [hooks_docs.HEAD, about + "\n", "\n".join(own) + "\n"]
    for model in models:
        parts.append(f"### `{model.__name__}`\n\n{inspect.cleandoc(model.__doc__ or '')}\n")
        parts.append("\n".join(fields_table(model, skip=("event", *shared))) + "\n")
    return "\n".join(parts)


def hooks_schema() -> str:
    """docs/hooks.schema.json."""
    return json.dumps(inputs.adapter.json_schema(), indent=2, sort_keys=True) + "\n"


def events_schema() -> str:
    """docs/events.schema.json."""
    return json.dumps(events.event_adapter.json_schema(), indent=2, sort_keys=True) + "\n"


def cli_markdown() -> str:
    """docs/cli.md."""
    found = list(usages())
    rows = [f"| [`pod {u.name}`](#{_anchor(u)}) | {u.summary} |" for u in found]
    parts = [CLI_HEAD, "\n".join(["| command | what it does |", "| --- | --- |", *rows]) + "\n"]
    codes = [f"| {codes} | {meaning} |" for codes, meaning in EXIT_CODES]
    parts.append("## Exit codes\n\n" + "\n".join(["| code | meaning |", "| --- | --- |", *codes]) + "\n")
    words = [f"| {word} | {meaning} |" for word, meaning in STATUSES.items()]
    parts.append("\n".join([STATUS_HEAD, "| status | meaning |", "| --- | --- |", *words]) + "\n")
    parts += [_command_markdown(usage) for usage in found]
    return "\n".join(parts)


def _command_markdown(usage: Usage) -> str:
    words = [(p.value if p.needed else f"[{p.value}]") + ("..." if p.repeated else "") for p in usage.positionals]
    needed = [f"{o.flags[0]} {o.value}".strip() for o in usage.options if o.needed]
    inner = ["ACTION"] if usage.name in {u.words[0] for u in usages() if len(u.words) > 1} else []
    line = " ".join(["pod", usage.name, *inner, *needed, *words])
    about = usage.about[:1].upper() + usage.about[1:]
    parts = [f"## `pod {usage.name}`", f"{about}.", f"```text\n{line}\n```"]
    rows = [f"| `{p.value}` | {_cell(p)} |" for p in usage.positionals]
    rows += [f"| {_flags(o)} | {_cell(o)} |" for o in usage.options if o.flags[0] != "-h"]
    if rows:
        parts.append("\n".join(["| argument | meaning |", "| --- | --- |", *rows]))
    return "\n\n".join([*parts, f"```console\n{usage.example}\n```"]) + "\n"


def _flags(option: Argument) -> str:
    value = f" {option.value}" if option.value and option.kind != "choice" else ""
    return ", ".join(f"`{flag}{value}`" for flag in option.flags)


def _cell(argument: Argument) -> str:
    choices = ", ".join(f"`{choice}`" for choice in argument.choices)
    told = in_table(argument.help)
    return f"{told}: {choices}" if choices and argument.flags else told


def _anchor(usage: Usage) -> str:
    return "-".join(("pod", *usage.words))


def pages() -> dict[str, str]:
    """All generated pages by file name."""
    schema = json.dumps(json_schema(), indent=2, sort_keys=True) + "\n"
    return {
        "cli.md": cli_markdown(),
        "events.md": events_markdown(),
        "events.schema.json": events_schema(),
        "hooks.md": hooks_markdown(),
        "hooks.schema.json": hooks_schema(),
        "manifest.md": manifest_markdown(),
        "manifest.schema.json": schema,
    }


def main() -> None:
    """Writes the pages."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs")
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
