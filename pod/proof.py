"""The start-up proof: whether a manifest's numbers can work at all, before anything is spent (design, part 2).

`prove` is pure: it takes the numbers and gives the sum line by line. `numbers_of` takes them from a manifest: it makes
the models (no connection, no key) and renders the system prompt and the tool schemas.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pod.errors import PodError, UsageProblem
from pod.manifest import ACTING, Manifest, Origin
from pod.manifest.model import BETWEEN_RUNS
from pod.output import OutputSchema
from worker.errors import way_to_install
from worker.models.base import Model
from worker.tools import Tool

WARNING = "warning rollover.warn; the window's end"
"""What the line says of the warning before a window ends."""

AT_THE_CEILING = "no trigger is set: compaction at the ceiling only"
"""What the line says where the policy acts and nothing is set that starts it earlier."""


OF_A_SERVER = "tools of the server "
"""What the line says of a server's tools, with its name behind it."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the proof: what is summed or compared, in tokens. `limit` is what `tokens` must lie below (or at most
    reach, for the compact worker); None for a part of a sum. `ok` is False where it does not.
    """

    label: str
    tokens: int
    limit: int | None = None
    ok: bool = True
    kind: Literal["part", "sum", "check"] = "part"

    def __str__(self) -> str:
        words = ("at most", "ABOVE") if self.label.startswith("compact worker") else ("below", "NOT below")
        mark = "" if self.limit is None else f"  {words[0] if self.ok else words[1]} {self.limit:,}"
        rule = "= " if self.kind == "sum" else "  "
        return f"{rule}{self.label:<48}{self.tokens:>12,}{mark}"


@dataclass(frozen=True, slots=True)
class WorkerNumbers:
    """The compact worker's own room: what its window leaves for input, and what it may fill."""

    available: int
    budget: int
    model: str = ""


@dataclass(frozen=True, slots=True)
class Numbers:
    """What `prove` looks at, in tokens, and where it comes from, for the message. `warning` is where someone chose that a
    window is warned of its end. `acts`: whether the policy changes the context by itself.
    """

    overhead: int
    available: int
    triggers: Mapping[str, int] = field(default_factory=dict[str, int])
    summary_max: int = 0
    mandatory: int = 0
    worker: WorkerNumbers | None = None
    window: int = 0
    window_source: str = ""
    model: str = ""
    parts: tuple[tuple[str, int], ...] = ()
    warning: int | None = None
    acts: bool = False


class DoesNotFit(UsageProblem):
    """A manifest's numbers cannot work. `lines` is the sum, line by line; nothing was spent."""

    def __init__(self, lines: Sequence[Line], numbers: Numbers) -> None:
        self.lines = tuple(lines)
        wrong = [line for line in lines if not line.ok]
        window = f" ({numbers.model}, window {numbers.window:,}, {numbers.window_source})" if numbers.model else ""
        head = f"the context can't work with these numbers{window}; nothing was sent:"
        ways = (
            "Raise the triggers or the window ([model] context_window), enable fewer tools, "
            "shorten the instructions or the task"
        )
        if any(line.label.startswith(OF_A_SERVER) for line in lines):
            ways += '; leave out tools of a server ([[mcp]] tools = ["search_*"])'
        if any(line.label.startswith("compact worker") for line in wrong):
            ways = "Lower [compaction] worker_context_max_tokens, or take a compact worker's model with a larger window"
        elif all(line.label == WARNING for line in wrong):
            ways = "Lower [rollover] warn, or raise what ends the window"
        super().__init__("\n".join([head, *(f"  {line}" for line in lines), f"  {ways}."]))


class UnknownPrice(UsageProblem):
    """A limit on cost is set, and the price of a model that may be asked is not known; nothing was spent."""

    def __init__(self, limit: float, models: Sequence[str], where: str = "") -> None:
        self.models = tuple(models)
        which = f"the price of {models[0]} is" if len(models) == 1 else f"the prices of {', '.join(models)} are"
        super().__init__(
            f"limits.max_cost_usd = {limit:g} ({where or '--max-cost'}) can't be held: {which} not known; nothing was sent.\n"
            f"  Take a model with a known price (`pod models`), install more prices ({way_to_install('prices')}),"
            "\n  or limit tokens instead (--set limits.max_total_tokens=N)."
        )


def check_prices(manifest: Manifest, sources: Mapping[str, Origin] | None = None) -> None:
    """With a limit on cost, the price of every model that may be asked must be known: fallbacks and the compact
    worker's too. `sources` say where the limit was set, for the message.

    Opens no connection and reads no key. Raises `UnknownPrice`, `ConfigError`, `UsageProblem`.
    """
    from pod import setup

    limit = manifest.limits.max_cost_usd
    if limit is None:
        return
    asked = [*setup.models_of(manifest.model)]
    section = manifest.compaction.model if manifest.compaction else None
    if section is not None and section.name is not None:
        asked += setup.models_of(section)
    unknown = dict.fromkeys(model.name for model in asked if model.capabilities.price is None)
    if unknown:
        origin = (sources or {}).get("limits.max_cost_usd")
        raise UnknownPrice(limit, list(unknown), str(origin or ""))


class NoNativeCompaction(UsageProblem):
    """The policy `native` is set, or no rung but `native`, and the provider of no model that may be asked compacts by
    itself; nothing was spent.
    """

    def __init__(self, models: Sequence[str], setting: str = '[context] policy = "native"') -> None:
        self.models = tuple(models)
        which = f"the provider of {models[0]} does" if len(models) == 1 else f"the providers of {', '.join(models)} do"
        super().__init__(
            f"{setting} can't work: {which} not compact by itself; nothing was sent.\n"
            "  Take a model whose provider does (`pod models` shows them), or another policy (compact, checkpoint, rollover);\n"
            '  where it may come to one later, keep policy = "compact" and name native in [context] ladder.'
        )


def check_native(manifest: Manifest) -> None:
    """Under the policy `native`, or with no rung but `native`, the model or one of its fallbacks must have its provider's own
    compaction.

    Opens no connection and reads no key. Raises `NoNativeCompaction`, `ConfigError`, `UsageProblem`.
    """
    from pod import setup
    from pod.context.native import compacts

    alone = manifest.policy in ACTING and set(manifest.ladder) == {"native"}
    if manifest.policy != "native" and not alone:
        return
    models = setup.models_of(manifest.model)
    if not any(compacts(model) for model in models):
        names = [model.name for model in models]
        if manifest.policy == "native":
            raise NoNativeCompaction(names)
        raise NoNativeCompaction(names, '[context] ladder = ["native"]')


class MissingKey(PodError):
    """The API key of a model that is asked is not set; nothing was spent, and no pod was made."""

    exit_code = 77

    def __init__(self, variable: str, model: str, key: str) -> None:
        self.variable = variable
        super().__init__(
            f"the environment variable {variable} is not set: it must hold the API key for {model} ([{key}] name).\n"
            f"  Set it (export {variable}=...), or name another variable in [{key}] api_key_env."
        )


def check_keys(manifest: Manifest) -> list[str]:
    """The keys of the model and of the compact worker's own model must be set. Returns a warning for each fallback whose
    key is not.

    Reads whether a key is set, opens no connection. Raises `MissingKey`, `ConfigError`, `UsageProblem`.
    """
    from pod import setup

    first, *fallbacks = setup.models_of(manifest.model)
    asked = [(first, "model")]
    section = manifest.compaction.model if manifest.compaction else None
    if section is not None and section.name is not None:
        asked.append((setup.models_of(section)[0], "compaction.model"))
    for model, key in asked:
        if (variable := missing_key(model)) is not None:
            raise MissingKey(variable, model.name, key)
    return [
        f"the fallback {model.name} can't be asked: the environment variable {variable} is not set"
        for model in fallbacks
        if (variable := missing_key(model)) is not None
    ]


def missing_key(model: Model) -> str | None:
    """The environment variable that must hold the model's key and does not; None where all is well, or no key is needed
    or known of.
    """
    named = getattr(model, "key_env", None)  # models of other packages need not have it
    variable = named() if callable(named) else None
    return variable if isinstance(variable, str) and not os.environ.get(variable, "").strip() else None


def prove(
    overhead: int,
    available: int,
    triggers: Mapping[str, int],
    summary_max: int,
    mandatory: int,
    worker: WorkerNumbers | None = None,
    *,
    warning: int | None = None,
    acts: bool = False,
    parts: Sequence[tuple[str, int]] = (),
) -> list[Line]:
    """The proof, line by line, in tokens; it holds where every line is `ok`. Pure.

    With triggers: fixed overhead + the largest summary + what must stay lie below half the lowest trigger (a compaction
    that can't reach that would come again at once), each trigger below what is available, and a window's `warning` below
    each that ends it. A policy that `acts` without one does so at the ceiling, and a line says so. Always: overhead and what
    must stay below what is available, and the compact worker's budget in its own window.
    """
    lines = [
        Line(label, tokens)
        for label, tokens in (parts or (("fixed overhead (system prompt, tool schemas)", overhead),))
    ]
    if triggers:
        lowest = min(triggers.values())
        total = overhead + summary_max + mandatory
        lines += [Line("largest summary", summary_max), Line("current request, unanswered calls", mandatory)]
        half = lowest // 2
        lines.append(Line("a new segment at least; half the lowest trigger", total, half, total < half, "sum"))
        lines += [
            Line(f"trigger {key}", value, available, value < available, "check") for key, value in triggers.items()
        ]
        ends = [value for key, value in triggers.items() if key not in BETWEEN_RUNS]
        if warning is not None and ends:
            lines.append(Line(WARNING, warning, min(ends), warning < min(ends), "check"))
    else:
        total = overhead + mandatory
        lines.append(Line("current request, unanswered calls", mandatory))
        lines.append(Line("the first request; what is available", total, available, total < available, "sum"))
        if acts:
            lines.append(Line(AT_THE_CEILING, available, kind="check"))
    if worker is not None:
        fits = worker.budget <= worker.available
        lines.append(
            Line("compact worker: its budget; its window's room", worker.budget, worker.available, fits, "check")
        )
    return lines


def numbers_of(
    manifest: Manifest,
    cwd: Path,
    task: str = "",
    *,
    model: Model | None = None,
    tools: Mapping[str, Tool] | None = None,
    servers: Mapping[str, Sequence[Tool]] | None = None,
) -> Numbers:
    """The numbers of a manifest in a working folder, for a task. Blocks; opens no connection and reads no key.

    `tools` stand in the place of the manifest's own; `servers` says which of them are a server's. Without both, servers count nothing.
    Tokens are estimates with the factor that estimates without a report get. Raises `UsageProblem`, `ConfigError`.
    """
    from interceptors.ceiling import overhead_of
    from pod import setup
    from pod.instructions import collect
    from pod.manifest.check import warning_chosen
    from worker.budget import budget_of
    from worker.estimate import HEURISTIC_FACTOR, estimate_item
    from worker.items import UserItem

    first = model or setup.models_of(manifest.model)[0]
    capabilities = first.capabilities
    budget = budget_of(
        capabilities, requested_output=manifest.model.max_output_tokens, buffer=manifest.context.buffer_tokens
    )
    tools = setup.tools_of(manifest) if tools is None else tools
    schema = manifest.worker.output_schema
    output = OutputSchema.read(schema) if schema else None
    instructions = collect(cwd, manifest.worker.instructions, manifest.scope.read)
    system = setup.render_system(manifest, instructions, tools, cwd, "pod", "0" * 12, output)
    theirs = {
        name: overhead_of("", [t.spec for t in own], capabilities.family) for name, own in (servers or {}).items()
    }
    named = {tool.name for own in (servers or {}).values() for tool in own}
    found = overhead_of(system, [t.spec for t in tools.values() if t.name not in named], capabilities.family)
    scaled = [
        ("system prompt and instructions", found.instructions),
        ("tool schemas", found.schemas),
        *((f"{OF_A_SERVER}{name}", each.schemas) for name, each in theirs.items()),
    ]
    parts = tuple((label, int(tokens * HEURISTIC_FACTOR)) for label, tokens in scaled)
    mandatory = int(estimate_item(UserItem(text=task), capabilities.family) * HEURISTIC_FACTOR) if task else 0
    acts = manifest.policy in ACTING
    compaction = manifest.compaction
    warns = manifest.policy == "rollover" and warning_chosen(manifest)
    return Numbers(
        overhead=sum(tokens for _, tokens in parts),
        available=budget.available,
        triggers={k: written_tokens(v, budget.available) for k, v in manifest.acting_triggers.items()},
        summary_max=compaction.summary_max_tokens if compaction else 0,
        mandatory=mandatory,
        worker=_worker(manifest, first) if acts and compaction else None,
        window=budget.window,
        window_source=budget.window_source,
        model=first.name,
        parts=parts,
        warning=written_tokens(manifest.window.warn, budget.available) if warns else None,
        acts=acts,
    )


def written_tokens(trigger: int | str, available: int) -> int:
    """A trigger in tokens, as it is written: one above what is available stays so, for the proof to say."""
    from pod.manifest import trigger_tokens

    return trigger_tokens(trigger, available)


def fits(numbers: Numbers) -> bool:
    """Whether the proof of some numbers holds."""
    return all(line.ok for line in _proof(numbers))


def check_numbers(numbers: Numbers) -> list[Line]:
    """The proof of some numbers. Raises `DoesNotFit` with the sum where it does not hold."""
    lines = _proof(numbers)
    if not all(line.ok for line in lines):
        raise DoesNotFit(lines, numbers)
    return lines


def _proof(n: Numbers) -> list[Line]:
    return prove(
        n.overhead, n.available, n.triggers, n.summary_max, n.mandatory, n.worker,
        warning=n.warning, acts=n.acts, parts=n.parts,
    )  # fmt: skip


def _worker(manifest: Manifest, model: Model) -> WorkerNumbers | None:
    """The compact worker's numbers. A budget that nobody chose gives way to a small window by itself."""
    from pod import setup
    from pod.manifest import CompactionSection
    from worker.budget import budget_of

    c = manifest.compaction
    assert c is not None
    own = c.model is not None and c.model.name is not None
    if not own and c.source == "prefix":
        return None  # there the budget is growth over the prefix, and the pod's ceiling bounds it
    section = c.model if own and c.model is not None else manifest.model
    made = setup.models_of(section)[0] if own else model
    room = budget_of(
        made.capabilities, requested_output=section.max_output_tokens, buffer=manifest.context.buffer_tokens
    )
    default = CompactionSection.model_fields["worker_context_max_tokens"].default
    budget = c.worker_context_max_tokens
    if budget == default:
        budget = min(budget, room.available)
    return WorkerNumbers(room.available, budget, made.name)
