"""A new manifest to edit. A key stands in it only where someone gave it, or where the agent could do nothing useful without
it; everything else is a comment that says what it means and what it is by default.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_origin

from pod.manifest.render import toml_value
from pod.manifest.schema import Key, children
from pod.manifest.support import UNSERVED_TABLES

Given: TypeAlias = Mapping[tuple[str, ...], Any]
"""Values by their place in the manifest."""

KEY_VARIABLES = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY"}
"""The usual variables of API keys, by provider."""

OFFLINE_TOOLS = ("read_file", "list_files", "find_files", "append_file", "write_file")
"""The tools that the model `offline:surveyor` works with."""

FIRST_WEEK = frozenset(
    {
        ("version",), ("pod", "name"), ("worker", "system_prompt"), ("worker", "max_requests"), ("model", "name"),
        ("model", "base_url"), ("model", "api_key_env"), ("model", "context_window"), ("tools", "enable"),
        ("scope", "read"), ("scope", "write"), ("permissions", "profile"), ("permissions", "rules"),
        ("sandbox", "mode"), ("context", "policy"),
        ("compaction", "threshold"), ("compaction", "request_threshold"), ("limits", "max_cost_usd"),
    }
)  # fmt: skip
"""The keys that a short manifest explains."""

_WIDTH = 100
_WHOLE = 160  # characters of a meaning that a short manifest gives whole; of a longer one the first sentence
_CHOICE = 300  # the same, where the words are what to choose from
_TRIGGERS: Given = {("compaction", "threshold"): "50%", ("compaction", "request_threshold"): "70%"}
_AT_THE_CEILING: Given = {("context", "policy"): "compact"}
_FEW_TOOLS: Given = {("tools", "enable"): ["read_file", "edit_file"]}
_OF_COMPACTION = frozenset({*_TRIGGERS, *_AT_THE_CEILING})


def choices(model: str, given: Given) -> list[Given]:
    """What a new manifest sets beside what was given: the first whose numbers fit the model's window is to be taken.

    The agent may write in its folder, and its context is kept small: by triggers, in a window too small for these at the
    ceiling, and in one too small for all the default tools with two of them.
    """
    base: dict[tuple[str, ...], Any] = {("scope", "write"): ["."]}
    if model.partition(":")[0] == "offline":
        base |= {("tools", "enable"): OFFLINE_TOOLS, ("permissions", "profile"): "workspace-write"}
    ways: list[Given] = [{}] if _OF_COMPACTION & set(given) else [_TRIGGERS, _AT_THE_CEILING]
    ways += [] if ("tools", "enable") in base else [{**ways[-1], **_FEW_TOOLS}, _FEW_TOOLS]
    return [{key: value for key, value in (base | dict(way)).items() if key not in given} for way in ways]


@dataclass(frozen=True, slots=True)
class _Writer:
    """`live` are the keys that are set, `shown` those that are explained beside them (None: all)."""

    live: Given
    examples: Given
    shown: frozenset[tuple[str, ...]] | None

    def wanted(self, key: Key) -> bool:
        """Whether a key is in the file at all."""
        if self.shown is None or key.path in self.shown or key.path in self.live:
            return True
        return key.section is not None and any(self.wanted(child) for child in children(key.path))

    def table(self, key: Key) -> list[str]:
        """A table with its keys. Its header is live where it asks for nothing by itself: then each key in it can be set alone."""
        if not self.wanted(key):
            return []
        inner = children(key.path)
        set_here = any(path[: len(key.path)] == key.path for path in self.live)
        name = ".".join(key.path)
        header = f"[[{name}]]" if key.repeated else f"[{name}]"
        about = key.field.description or (key.section.__doc__ if key.section else "") or ""
        lines = ["", *_comment(_sentence(" ".join(about.split())))]
        lines.append(header if set_here or not (key.repeated or key.optional) else f"# {header}")
        for child in inner:
            if child.section is None:
                lines += self.entry(child)
            elif child.repeated:
                lines += self.array(child)
        for child in inner:
            if child.section is not None and not child.repeated:
                lines += self.table(child)
        return lines

    def entry(self, key: Key) -> list[str]:
        """A key with what it means: set, or a comment with its default or an example."""
        if not self.wanted(key):
            return []
        about = key.field.description or ""
        most = _CHOICE if get_origin(key.field.annotation) is Literal else _WHOLE
        whole = self.shown is None or len(about) <= most
        lines = _comment(about if whole else _sentence(about))
        name = key.path[-1]
        if key.path in self.live:
            return [*lines, f"{name} = {toml_value(self.live[key.path])}"]
        if key.default is not None and key.path not in self.examples:
            return [*lines, f"# {name} = {toml_value(key.default)}"]
        example = self.examples.get(key.path, (key.field.examples or ["..."])[0])
        return [*lines, f"# {name} = {toml_value(example)}  # for example"]

    def array(self, key: Key) -> list[str]:
        """An array of tables inside a table: written inline."""
        if not self.wanted(key):
            return []
        lines = _comment(key.field.description or "")
        if key.path in self.live:
            return [*lines, f"{key.path[-1]} = {toml_value(self.live[key.path])}"]
        entry = {child.path[-1]: (child.field.examples or [child.default])[0] for child in children(key.path)}
        example = ", ".join(f"{name} = {toml_value(value)}" for name, value in entry.items())
        return [*lines, f"# {key.path[-1]} = [ {{ {example} }} ]  # for example"]


def new_manifest_text(file: str, model: str, live: Given, *, full: bool = False) -> str:
    """A commented manifest for a file of this name, with these values set: the keys that a user changes first, with `full` every
    key that is served.
    """
    provider = model.partition(":")[0]
    live = {("version",): 1, ("model", "name"): model, **live}
    examples: dict[tuple[str, ...], Any] = {}
    out = [
        "# A pod manifest. What is in comments is unset: the value there is the default, or an example where it says so."
    ]
    if not full:
        out.append("# `pod manifest new --full` writes every key.")
    out.append("#")
    if provider == "offline":
        task = "Survey the Python files in src. Write the report to report.md."
        out += ["# The model is a rule-based one that surveys Python files; it needs no key and no network:", "#"]
    else:
        variable = KEY_VARIABLES.get(provider)
        examples["model", "api_key_env"] = variable or "MY_API_KEY"
        key = f" ({variable})" if variable else ""
        task = "Find out why the tests fail, and mend it"
        out += [f"# Check the model and where its key comes from{key}, the tools and what they may touch. Then:", "#"]
    out += [f'#   pod run {shlex.quote(file)} "{task}"', ""]
    writer = _Writer(live, examples, None if full else FIRST_WEEK)
    top = [key for key in children(()) if key.path[0] not in UNSERVED_TABLES]
    for key in top:
        if key.section is None:
            out += writer.entry(key)
        elif key.repeated and key.path in live:
            out += writer.array(key)
    for key in top:
        if key.section is not None and not (key.repeated and key.path in live):
            out += writer.table(key)
    return "\n".join(out).rstrip() + "\n"


def _sentence(text: str) -> str:
    return re.split(r"(?<=[.])\s", text, maxsplit=1)[0]


def _comment(text: str) -> Sequence[str]:
    return [f"# {line}" for line in textwrap.wrap(text, _WIDTH)]
