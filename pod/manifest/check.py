"""Numbers of a manifest that contradict each other (case B142), and names that nothing knows. Pure: no file, no
network.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from pod.manifest.context import CompactionSection, RolloverSection
from pod.manifest.errors import Finding, KeyPath, Problem, key_label
from pod.manifest.fitting import available as room
from pod.manifest.fitting import fit
from pod.manifest.model import Manifest, trigger_path
from pod.manifest.provider import providers_know
from pod.manifest.sections import BUILT_IN_TOOLS, LATER_TOOLS, ModelSection
from pod.manifest.types import trigger_tokens


def check(manifest: Manifest) -> list[Problem]:
    """All contradictions as problems without a place, for a manifest that code made; some are only warnings. Defaults
    that do not fit a small window are no contradiction: `fit` lowers them.
    """
    return [
        Problem(finding.message, key=key_label(finding.keys[0]), hint=finding.hint, severity=finding.severity)
        for finding in findings(fit(manifest).manifest)
    ]


def findings(manifest: Manifest) -> list[Finding]:
    """All contradictions of a manifest."""
    return [
        *_worker(manifest),
        *_tools(manifest),
        *_fetching(manifest),
        *_hooks(manifest),
        *_servers(manifest),
        *_names(manifest),
        *providers_know(manifest),
        *_window(manifest),
        *_compaction(manifest),
        *_rollover(manifest),
        *_others(manifest),
    ]


def _worker(manifest: Manifest) -> Iterator[Finding]:
    if manifest.worker.system_prompt is not None and manifest.worker.system_prompt_file is not None:
        yield Finding(
            "system_prompt_file and system_prompt are both set",
            (("worker", "system_prompt_file"), ("worker", "system_prompt")),
            hint="keep one of them",
        )
    if (
        manifest.compaction is not None
        and manifest.compaction.model is not None
        and manifest.compaction.model.name is None
    ):
        yield Finding("name is missing: which model?", (("compaction", "model", "name"),))


TOOL_ALIASES = {
    "bash": "shell", "sh": "shell", "exec": "shell", "run_command": "shell", "terminal": "shell",
    "cat": "read_file", "read": "read_file", "view": "read_file", "open": "read_file",
    "write": "write_file", "create_file": "write_file", "append": "append_file",
    "edit": "edit_file", "str_replace": "edit_file", "multi_edit": "edit_file", "patch": "edit_file",
    "apply_patch": "edit_file", "grep": "search_text", "search": "search_text", "ripgrep": "search_text",
    "ls": "list_files", "list": "list_files", "list_dir": "list_files", "glob": "find_files", "find": "find_files",
    "todo": "tasks", "todos": "tasks", "todo_write": "tasks", "plan": "tasks",
}  # fmt: skip
"""What other runtimes call tools, and what they are called here."""


def tool_hint(name: str, known: Iterable[str] = BUILT_IN_TOOLS) -> str:
    """`did you mean shell?`, where a tool's name is another one's or nearly so; else empty."""
    import difflib

    names = list(known)
    alias = TOOL_ALIASES.get(name.lower().replace("-", "_"))
    near = [alias] if alias in names else difflib.get_close_matches(name, names, 1, 0.5)
    return f"did you mean {near[0]}?" if near else ""


def _tools(manifest: Manifest) -> Iterator[Finding]:
    for name in manifest.tools.enable:
        if name not in BUILT_IN_TOOLS and name not in LATER_TOOLS:
            hint = tool_hint(name) or "tools of your own go to python"
            yield Finding(f"there is no built-in tool {name!r}", (("tools", "enable"),), hint=hint)


def _fetching(manifest: Manifest) -> Iterator[Finding]:
    if "fetch_url" in manifest.tools.enable and not manifest.tools.fetch_url.hosts:
        yield Finding(
            "fetch_url is enabled, and no host may be asked",
            (("tools", "fetch_url", "hosts"), ("tools", "enable")),
            hint='name them, for example hosts = ["docs.python.org", "*.readthedocs.io"]',
        )
    elif "fetch_url" not in manifest.tools.enable and manifest.tools.fetch_url.hosts:
        yield Finding(
            "hosts has no effect: fetch_url is not enabled",
            (("tools", "fetch_url", "hosts"),),
            "warning",
            "name fetch_url in [tools] enable, or leave hosts out",
        )


TOOL_EVENTS = ("PreToolUse", "PostToolUse")
"""Events that are about a tool."""


def _hooks(manifest: Manifest) -> Iterator[Finding]:
    for number, hook in enumerate(manifest.hooks):
        where: KeyPath = ("hooks", number)
        if hook.command is None and hook.use is None:
            yield Finding("the hook has neither command nor use", ((*where, "command"),), hint="name what is asked")
        elif hook.command is not None and hook.use is not None:
            yield Finding("the hook has both command and use", ((*where, "use"), (*where, "command")), hint="keep one")
        if hook.match != "*" and hook.event not in TOOL_EVENTS:
            yield Finding(
                f"match is about tools, and {hook.event} is about none",
                ((*where, "match"), (*where, "event")),
                hint="leave it out",
            )


def _servers(manifest: Manifest) -> Iterator[Finding]:
    names = [server.name for server in manifest.mcp]
    for number, server in enumerate(manifest.mcp):
        where: KeyPath = ("mcp", number)
        if server.command is None and server.url is None:
            yield Finding("the server has neither command nor url", ((*where, "command"),), hint="name what is asked")
        elif server.command is not None and server.url is not None:
            yield Finding(
                "the server has both command and url", ((*where, "url"), (*where, "command")), hint="keep one"
            )
        elif server.url is None and server.headers_env:
            yield Finding(
                "headers_env is about url, and the server is a program", ((*where, "headers_env"),), hint="use env"
            )
        elif server.command is None and server.env:
            yield Finding(
                "env is about a program, and the server is at a url", ((*where, "env"),), hint="use headers_env"
            )
        if server.name in names[:number]:
            first: KeyPath = ("mcp", names.index(server.name), "name")
            yield Finding(
                f"two servers are named {server.name!r}", ((*where, "name"), first), hint="rename one of them"
            )


def _names(manifest: Manifest) -> Iterator[Finding]:
    """Tools of your own have names that only importing them tells; `about_no_tool` is asked again then."""
    if not manifest.tools.python:
        yield from about_no_tool(manifest, manifest.tools.enable)


ADDED_TOOLS = ("session_history", "jobs", "write_summary")
"""Tools that the runtime adds by itself."""


def about_no_tool(manifest: Manifest, tools: Iterable[str]) -> Iterator[Finding]:
    """A rule or a hook about a tool that the agent does not have does nothing: a slip, where it was meant to guard."""
    names = [*tools, *ADDED_TOOLS]
    for number, rule in enumerate(manifest.permissions.rules):
        yield from _about_none(
            manifest, names, f"the rule is about {rule.tool!r}", rule.tool, ("permissions", "rules", number, "tool")
        )
    for number, hook in enumerate(manifest.hooks):
        if hook.event in TOOL_EVENTS:
            yield from _about_none(
                manifest, names, f"the hook is asked about {hook.match!r}", hook.match, ("hooks", number, "match")
            )


def _about_none(manifest: Manifest, names: Sequence[str], what: str, pattern: str, key: KeyPath) -> Iterator[Finding]:
    from fnmatch import fnmatchcase

    if not any(fnmatchcase(name, pattern) for name in names) and not _of_a_server(manifest, pattern):
        hint = tool_hint(pattern, dict.fromkeys((*names, *BUILT_IN_TOOLS)))
        yield Finding(f"{what}, and no enabled tool is named so", (key,), "warning", hint)


def _of_a_server(manifest: Manifest, pattern: str) -> bool:
    """Whether a pattern may cover tools of a server, whose names only the server tells."""
    fixed = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    starts = (f"{server.name}__" for server in manifest.mcp)
    return any(pattern.startswith(start) or (fixed != pattern and start.startswith(fixed)) for start in starts)


ROOM: tuple[KeyPath, ...] = (("model", "context_window"), ("model", "max_output_tokens"), ("context", "buffer_tokens"))
"""What the tokens that a window leaves for input are reckoned from."""


def _default_of(section: type[ModelSection] | type[CompactionSection], key: str) -> object:
    return section.model_fields[key].default


def _window(manifest: Manifest) -> Iterator[Finding]:
    window = manifest.model.context_window
    if not window:
        return
    where = ("model", "context_window")
    output = manifest.model.max_output_tokens
    # The defaults give way to a small window by themselves; a number that someone chose does not.
    if output >= window and output != _default_of(ModelSection, "max_output_tokens"):
        yield _below(("model", "max_output_tokens"), output, where, window)
    buffer = manifest.context.buffer_tokens
    if buffer != type(manifest.context).model_fields["buffer_tokens"].default:
        if buffer >= window // 2:
            yield Finding(
                f"buffer_tokens ({buffer}) takes half of context_window ({window}) or more",
                (("context", "buffer_tokens"), where),
            )
        elif buffer > window // 4:
            yield Finding(
                f"buffer_tokens ({buffer}) is above a quarter of context_window ({window}): {window // 4} count",
                (("context", "buffer_tokens"), where),
                "warning",
            )
    available = room(manifest.model, manifest.context.buffer_tokens)
    if available is None:
        return
    for key, trigger in manifest.triggers.items():
        if isinstance(trigger, int) and trigger >= available:
            yield Finding(
                f"{key} ({trigger}) must be below the {available} tokens that context_window ({window}) leaves",
                (trigger_path(key), where),
                rests_on=ROOM,
            )
    compaction = manifest.compaction
    if compaction is None:
        return
    if compaction.result_context_max_tokens > window:
        yield _at_most("result_context_max_tokens", compaction.result_context_max_tokens, where, window)


def _compaction(manifest: Manifest) -> Iterator[Finding]:
    c = manifest.compaction
    if c is None:
        return
    if manifest.triggers and not manifest.acting_triggers:
        names = list(manifest.triggers)
        verb = "starts" if len(names) == 1 else "start"
        yield Finding(
            f"{' and '.join(names)} {verb} no compaction: the context policy is {manifest.policy!r}",
            (trigger_path(names[0]), ("context", "policy")),
            "warning",
            "take a policy that acts (compact, checkpoint, rollover), or leave them out",
        )
    available = room(manifest.model, manifest.context.buffer_tokens)
    tokens = {
        key: trigger if isinstance(trigger, int) else trigger_tokens(trigger, available) if available else None
        for key, trigger in manifest.triggers.items()
    }
    for key, trigger in tokens.items():
        if trigger is not None and c.retained_tokens >= trigger:
            found = _below(("compaction", "retained_tokens"), c.retained_tokens, trigger_path(key), trigger)
            yield found._replace(rests_on=ROOM if isinstance(manifest.triggers[key], str) else ())
    lowest = min((x for x in tokens.values() if x is not None), default=None)
    if lowest is not None and manifest.prune.enabled and manifest.prune.protected_tokens >= lowest:
        key = next(key for key, x in tokens.items() if x == lowest)
        yield Finding(
            f"protected_tokens ({manifest.prune.protected_tokens}) is not below {key} ({lowest}): nothing is pruned",
            (("prune", "protected_tokens"), trigger_path(key)),
            "warning",
        )
    between = tokens.get("threshold")
    for key in manifest.request_triggers:
        inside = tokens.get(key)
        if between is not None and inside is not None and between > inside:
            yield Finding(
                f"threshold ({between}) is above {key} ({inside}): it comes too late to matter",
                (("compaction", "threshold"), trigger_path(key)),
                "warning",
            )
    strict = (
        ("final_reserve_tokens", "worker_context_max_tokens"),
        ("finish_warning_remaining_tokens", "worker_context_max_tokens"),
        ("overview_target_tokens", "worker_context_max_tokens"),
    )
    for small, large in strict:
        if getattr(c, small) >= getattr(c, large):
            yield _below(("compaction", small), getattr(c, small), ("compaction", large), getattr(c, large))
    loose = (
        ("retained_floor_tokens", "retained_tokens"),
        ("final_reserve_tokens", "finish_warning_remaining_tokens"),
        ("summary_target_tokens", "summary_max_tokens"),
        ("summary_max_tokens", "result_context_max_tokens"),
        ("retained_floor_tokens", "result_context_max_tokens"),
        ("overview_target_tokens", "overview_warning_tokens"),
        ("overview_warning_tokens", "overview_deadline_tokens"),
    )
    for small, large in loose:
        if getattr(c, small) > getattr(c, large):
            yield _at_most(small, getattr(c, small), ("compaction", large), getattr(c, large))
    if c.summary_max_tokens > c.final_reserve_tokens:
        yield Finding(
            f"summary_max_tokens ({c.summary_max_tokens}) is above final_reserve_tokens ({c.final_reserve_tokens}): "
            "the last summary may not fit into the reserve",
            (("compaction", "summary_max_tokens"), ("compaction", "final_reserve_tokens")),
            "warning",
        )
    yield from _worker_window(manifest, c)


def _worker_window(manifest: Manifest, c: CompactionSection) -> Iterator[Finding]:
    """The compact worker's budget must fit the window of the model that it runs on (case B012)."""
    if c.model is not None:
        window, where = c.model.context_window, ("compaction", "model", "context_window")
    elif c.source != "prefix":
        window, where = manifest.model.context_window, ("model", "context_window")
    else:
        return  # there it is growth over a prefix, and the ceiling bounds it too
    if window and c.worker_context_max_tokens > window:
        yield _at_most("worker_context_max_tokens", c.worker_context_max_tokens, where, window)


def _rollover(manifest: Manifest) -> Iterator[Finding]:
    if manifest.rollover is not None and manifest.policy != "rollover":
        message = f"[rollover] has no effect: the context policy is {manifest.policy!r}"
        yield Finding(message, (("rollover", "at"), ("context", "policy")), "warning")
    if manifest.rollover is not None and warning_chosen(manifest):
        yield from _late_warning(manifest, manifest.rollover.warn, "rollover.at", manifest.rollover.at)
        inside = manifest.request_triggers.get("request_threshold")
        if manifest.policy == "rollover" and inside is not None:
            yield from _late_warning(manifest, manifest.rollover.warn, "request_threshold", inside)


def warning_chosen(manifest: Manifest) -> bool:
    """Whether someone chose where a window is warned of its end. The default gives way to an earlier end by itself."""
    return manifest.window.warn != RolloverSection.model_fields["warn"].default


def _late_warning(manifest: Manifest, warn: int | str, key: str, end: int | str) -> Iterator[Finding]:
    """A warning that would not come before the end; against another unit it takes a known window to tell (the start-up
    proof knows it)."""
    available = room(manifest.model, manifest.context.buffer_tokens)
    same = type(warn) is type(end)
    if not (same or available) or trigger_tokens(warn, available or 1_000_000) < trigger_tokens(
        end, available or 1_000_000
    ):
        return
    path = trigger_path(key)
    yield Finding(
        f"warn ({warn}) must be below {path[-1]} ({end})",
        (("rollover", "warn"), path),
        rests_on=() if same else ROOM,
    )


def _others(manifest: Manifest) -> Iterator[Finding]:
    repeat = manifest.limits.repeat_call
    place = ("limits", "repeat_call")
    if list(repeat.remind) != sorted(set(repeat.remind)):
        yield Finding("remind must rise from number to number", ((*place, "remind"),))
    elif repeat.remind and repeat.remind[-1] >= repeat.stop:
        yield _below((*place, "remind"), repeat.remind[-1], (*place, "stop"), repeat.stop)
    if len(set(manifest.context.ladder)) != len(manifest.context.ladder):
        yield Finding("ladder names a rung twice", (("context", "ladder"),))


def _below(small: KeyPath, value: int, large: KeyPath, bound: int) -> Finding:
    return Finding(f"{small[-1]} ({value}) must be below {large[-1]} ({bound})", (small, large))


def _at_most(small: str, value: int, large: KeyPath, bound: int) -> Finding:
    return Finding(f"{small} ({value}) must not be above {large[-1]} ({bound})", (("compaction", small), large))
