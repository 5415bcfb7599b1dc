"""From a manifest to what a run needs: models, tools, services, interceptors, the system prompt."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from compact_worker import CompactSettings as WorkerSettings
from compact_worker import declared_write_summary
from interceptors.ceiling import Ceiling, Overhead
from interceptors.deciding import Rule
from interceptors.facts import PathScope
from interceptors.limits import Limits, LimitSettings
from interceptors.order import default_chain
from interceptors.permissions import Permissions
from interceptors.prune import Prune, PruneSettings
from interceptors.purse import Share
from interceptors.repeat import RepeatGuard
from interceptors.stall import StallGuard
from interceptors.triggers import CompactSettings, CompactTrigger, Lowest, Trigger, lowest_trigger
from interceptors.window import WindowWarning
from pod.clearing import bounded, clearing_of, clears, uncleared_tokens
from pod.context.notebook import NOTES, warning
from pod.context.parts import CompactionConfig
from pod.errors import UsageProblem
from pod.hooks.asking import Hooks
from pod.hooks.calls import CallHooks
from pod.hooks.define import Hook, hooks_of
from pod.instructions import Instructions
from pod.loading import load_object, users_code
from pod.log.redacting import gate_of
from pod.manifest import ACTING, Manifest, fill_prompt
from pod.manifest.sections import ModelSection
from pod.output import OutputSchema
from pod.prompt import DEFAULT, system_prompt
from pod.session import Session
from pod.state import PodState
from pod.tools import POD_TOOLS
from worker.builtin.registry import BUILTIN, builtin_tool
from worker.errors import ConfigError
from worker.gate import Gate
from worker.hooks import check, checked
from worker.interceptor import Interceptor, RequestContext
from worker.models.base import Capabilities, Model, ModelSettings, ToolClearing, ToolSpec
from worker.models.registry import create_model
from worker.text import visible_name
from worker.tools import Tool, tool

_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def model_settings(section: ModelSection) -> ModelSettings:
    """A manifest's `[model]` as the adapters take it."""
    return ModelSettings(
        base_url=section.base_url,
        api_key_env=section.api_key_env,
        max_output_tokens=section.max_output_tokens,
        context_window=section.context_window,
        reasoning=section.reasoning,
        cache_ttl=section.cache_ttl,
        temperature=section.temperature,
        top_p=section.top_p,
        connect_timeout=section.connect_timeout,
        read_timeout=section.read_timeout,
        idle_timeout=section.idle_timeout,
        extra_headers=dict(section.extra_headers),
        extra_body=dict(section.extra_body),
    )


Clearing: TypeAlias = Callable[[Capabilities], ToolClearing | None]
"""How the provider of a model with these capabilities clears old tool results itself, or that it does not."""


def models_of(section: ModelSection, clearing: Clearing = lambda _: None) -> tuple[Model, ...]:
    """The model and its fallbacks. A fallback has its own window and output limit; one of another provider takes neither
    base URL nor key of the first."""
    if section.name is None:
        raise UsageProblem(
            "the manifest names no model: set [model] name, or give --model provider:model (in code: model=)"
        )
    settings = model_settings(section)
    provider = section.name.partition(":")[0]
    made: list[Model] = [_made(section.name, settings, clearing)]
    own = replace(settings, context_window=0, max_output_tokens=0)
    for name in section.fallback:
        same = name.partition(":")[0] == provider
        made.append(_made(name, own if same else replace(own, base_url=None, api_key_env=None), clearing))
    return tuple(made)


def renamed(section: ModelSection, name: str) -> ModelSection:
    """The same settings for another model, without fallbacks; one of another provider takes neither base URL nor key."""
    changed: dict[str, Any] = {"name": name, "fallback": ()}
    if section.name is not None and name.partition(":")[0] != section.name.partition(":")[0]:
        changed |= {"base_url": None, "api_key_env": None}
    return section.model_copy(update=changed)


def _made(name: str, settings: ModelSettings, clearing: Clearing) -> Model:
    model = create_model(name, settings)
    wanted = clearing(model.capabilities)
    return model if wanted is None else create_model(name, replace(settings, tool_clearing=wanted))


def pod_models(manifest: Manifest, tools: Mapping[str, Tool]) -> tuple[Model, ...]:
    """The models that the pod's own worker asks."""
    return models_of(manifest.model, lambda known: clearing_of(manifest, known, tools.values()))


def tools_of(manifest: Manifest, extra: Sequence[Tool | Callable[..., Any]] = ()) -> dict[str, Tool]:
    """The tools that the model is offered, by name, in a fixed order.

    Raises `UsageProblem` where two have one name (B135), or where a name is one that providers reject with every request (B137).
    """
    found: list[Tool] = []
    for name in manifest.tools.enable:
        if name in POD_TOOLS:
            found.append(POD_TOOLS[name]())
        elif name in BUILTIN:
            found.append(_built_in(name, manifest))
        else:
            raise UsageProblem(f"[tools] enable: {name!r} is not served by this version")
    if "shell" in manifest.tools.enable and "jobs" not in manifest.tools.enable:
        found.append(builtin_tool("jobs"))
    for reference in manifest.tools.python:
        found.append(_as_tool(load_object(reference, "[tools] python:")))
    found += [_as_tool(t) for t in extra]
    acts = manifest.prune.enabled or manifest.policy in ACTING
    if acts and history_allowed(manifest) and not any(t.name == "session_history" for t in found):
        found.append(POD_TOOLS["session_history"]())
    asks = {"compact", "coarse"} & set(manifest.ladder)
    if asks and manifest.compaction is not None and manifest.compaction.source != "overview":
        found.append(declared_write_summary())
    names = [t.name for t in found]
    for name in names:
        if _TOOL_NAME.fullmatch(name) is None:
            raise UsageProblem(
                f"a tool can't be named {name!r}: letters, digits, '_' and '-', at most 64 (@tool(name=...) sets it)"
            )
        if names.count(name) > 1:
            raise UsageProblem(f"two tools are named {name!r}: rename or disable one of them")
    return {t.name: t for t in found}


def history_allowed(manifest: Manifest) -> bool:
    """Whether no rule denies `session_history` as a whole."""
    return not any(
        r.action == "deny" and r.tool == "session_history" and r.match == "*" for r in manifest.permissions.rules
    )


def _built_in(name: str, manifest: Manifest) -> Tool:
    section: Any = getattr(manifest.tools, name, None)
    return builtin_tool(name, **({} if section is None else section.model_dump()))


def _as_tool(value: Any) -> Tool:
    return value if isinstance(value, Tool) else tool(value)


def trigger_list(manifest: Manifest) -> Callable[[int], list[int]]:
    """The set triggers in tokens, for what is available; never above it."""
    from pod.manifest import trigger_tokens

    def tokens(available: int) -> list[int]:
        return [min(trigger_tokens(t, available), available) for t in manifest.triggers.values()]

    return tokens


def trigger_value(trigger: int | str, available: int) -> int:
    """One trigger in tokens, never above what is available."""
    from pod.manifest import trigger_tokens

    return min(trigger_tokens(trigger, available), available)


def cleared_of(manifest: Manifest, models: Sequence[Model]) -> frozenset[str]:
    """The models whose provider clears old tool results itself, by name."""
    return frozenset(model.name for model in models if clears(manifest, model.capabilities))


def compaction_config(manifest: Manifest, models: Sequence[Model] = ()) -> CompactionConfig:
    """`[compaction]` and `[context] ladder`, with the defaults where the table is absent (by hand and overflow only)."""
    from pod.manifest import fit
    from pod.manifest.context import CompactionSection

    c = fit(manifest).manifest.compaction or CompactionSection()
    names = WorkerSettings.__dataclass_fields__
    return CompactionConfig(
        worker=WorkerSettings(**{name: getattr(c, name) for name in names}),
        ladder=manifest.ladder,
        source=c.source,
        retained_tokens=c.retained_tokens,
        retained_floor_tokens=c.retained_floor_tokens,
        user_words_tokens=c.user_words_tokens,
        result_context_max_tokens=c.result_context_max_tokens,
        breaker_cooldown=c.breaker_cooldown,
        triggers=trigger_list(manifest),
        history_access=history_allowed(manifest),
        notes=notes_of(manifest) if "rollover" in manifest.ladder else None,
        cleared=cleared_of(manifest, models),
    )


def notes_of(manifest: Manifest) -> str | None:
    """The file for notes across windows, where the agent has a tool that could write it."""
    writes = {"write_file", "append_file", "edit_file"} & set(manifest.tools.enable)
    return NOTES if writes and manifest.scope.write and manifest.permissions.profile != "read-only" else None


def between_requests(manifest: Manifest) -> Lowest | None:
    """What ends a segment between two requests, where the policy acts and a trigger is set."""
    found = tuple(Trigger.parse(value) for value in manifest.request_triggers.values())
    return Lowest(found) if found else None


def window_warning(manifest: Manifest, *, warned: bool = False) -> WindowWarning | None:
    """The warning before a window ends, under the policy that has one. `warned`: the window was warned before its segment
    began.
    """
    end = between_requests(manifest)
    if manifest.policy != "rollover" or end is None:
        return None
    notes = notes_of(manifest)

    def words(used: int, at: int) -> str:
        return warning(used, at, notes)

    return WindowWarning(Trigger.parse(manifest.window.warn), end, words, warned)


def prune_of(manifest: Manifest, state: PodState, models: Sequence[Model]) -> Prune:
    """The prune of a pod with this state, not yet told what the segment holds."""
    m = manifest
    set_triggers = [Trigger.parse(t) for t in m.triggers.values()] if m.policy in ACTING else []
    savings: Any = m.prune.min_savings
    return Prune(
        PruneSettings(
            enabled=m.prune.enabled,
            protected_tokens=m.prune.protected_tokens,
            min_savings=savings,
            min_savings_floor=m.prune.min_savings_floor,
            excerpt_chars=m.prune.excerpt_chars,
            supersede_in_tail=m.prune.supersede_in_tail,
            prune_arguments=m.prune.prune_arguments,
            pinned=lambda: frozenset(state.pins),
        ),
        trigger=lambda budget: lowest_trigger(set_triggers, budget),
        last_reply=lambda: state.last_reply_at,
        runs=lambda: (state.runs, state.run_requests),
        cleared=cleared_of(m, models),
    )


def chain(
    manifest: Manifest,
    session: Session,
    models: Sequence[Model],
    users: Sequence[Interceptor],
    supervision: Interceptor,
    overhead: Overhead,
    scope: PathScope,
    *,
    headless: bool,
    hooks: Hooks | None = None,
    share: Share | None = None,
) -> tuple[Interceptor, ...]:
    """All interceptors of a pod's worker, in order."""
    m, state = manifest, session.state
    acts = m.policy in ACTING
    bounds = {model.name: model for model in models if bounded(m, model.capabilities)}

    def uncleared(ctx: RequestContext) -> int:
        model = bounds.get(ctx.model)
        return 0 if model is None else uncleared_tokens(ctx.history, model, overhead.instructions + overhead.schemas)

    permissions = Permissions(
        profile=m.permissions.profile,
        rules=rules_of(m),
        when_headless=m.permissions.when_headless,
        headless=headless,
        scope=scope,
    )
    return default_chain(
        limits=Limits(
            LimitSettings(
                max_requests=m.worker.max_requests,
                max_cost_usd=m.limits.max_cost_usd,
                max_total_tokens=m.limits.max_total_tokens,
                max_wall_seconds=m.limits.max_wall_seconds,
                max_tool_calls=m.limits.max_tool_calls,
            ),
            driven=lambda now: state.driven.seconds(now),
            fallback_prices=[model.capabilities.price for model in models[1:]],
            share=share,
        ),
        guards=(
            supervision,
            RepeatGuard(remind=m.limits.repeat_call.remind, stop=m.limits.repeat_call.stop),
            StallGuard(remind=m.limits.stall.remind, stop=m.limits.stall.stop),
        ),
        users=users,
        prune=prune_of(m, state, models),
        trigger=CompactTrigger(
            CompactSettings(
                request_threshold=between_requests(m),
                uncleared=uncleared,
                overflow_recovery=m.overflow_recovery,
                policy=m.policy,
            ),
            least=lambda: state.least_trigger,
            least_uncleared=lambda: state.least_uncleared,
        ),
        window=window_warning(m, warned=state.warned is not None),
        ceiling=Ceiling(can_recover=acts, overhead=overhead, warn=m.policy == "warn"),
        hooks=CallHooks(hooks, permissions, scope) if hooks is not None and hooks.defined else None,
        permissions=permissions,
    )


def render_system(
    manifest: Manifest,
    instructions: Instructions,
    tools: Mapping[str, Tool],
    cwd: Path,
    name: str,
    tag: str,
    output: OutputSchema | None = None,
) -> str:
    """The system prompt of a new segment."""
    base = manifest.worker.system_prompt or DEFAULT
    if manifest.worker.system_prompt_file:
        try:
            base = Path(manifest.worker.system_prompt_file).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as e:
            raise UsageProblem(
                f"[worker] system_prompt_file: {manifest.worker.system_prompt_file} can't be read: {e}"
            ) from e
    folder = visible_name(cwd)
    text = fill_prompt(base, cwd=folder, platform=platform.system(), tools=", ".join(tools), pod=name)
    prompt = system_prompt(text, instructions, tag=tag, history="session_history" in tools)
    return prompt if output is None else f"{prompt}\n\n{output.prompt()}"


def schemas_text(tools: Mapping[str, Tool]) -> str:
    """The tools' schemas as one text, for a blob: equal schemas give an equal hash."""
    return json.dumps([t.spec._asdict() for t in tools.values()], ensure_ascii=False, sort_keys=True)


def specs_in(schemas: str) -> list[ToolSpec]:
    """The tools of such a text; none where it does not read."""
    try:
        found: Any = json.loads(schemas or "[]")
        return [ToolSpec(**spec) for spec in found]
    except (ValueError, TypeError):
        return []


def rules_of(manifest: Manifest) -> tuple[Rule, ...]:
    """The rules of a manifest, as decisions take them."""
    return tuple(Rule(tool=r.tool, match=r.match, action=r.action) for r in manifest.permissions.rules)


def user_hooks(manifest: Manifest, extra: Any) -> tuple[Hook, ...]:
    """The manifest's own hooks, then those given in code. Raises `UsageProblem`."""
    return hooks_of(manifest.hooks, extra, load_object)


def asked_hooks(defined: Sequence[Hook], session: Session, cwd: Path) -> Hooks:
    """The hooks as an open pod asks them; what they are told and say passes the session's gate."""
    return Hooks(session, cwd, defined, session.gate.masked)


def gate(manifest: Manifest) -> Gate:
    """What secrets are masked at: the values of variables that are named like secrets, or that models and servers are sent."""
    models = (manifest.model, manifest.compaction.model if manifest.compaction else None)
    sent = [variable for server in manifest.mcp for variable in server.headers_env.values()]
    sent += [model.api_key_env for model in models if model is not None and model.api_key_env]
    return gate_of(manifest.log.redact, sent)


def user_interceptors(manifest: Manifest, extra: Sequence[Interceptor]) -> list[Interceptor]:
    """The manifest's own interceptors, then those given in code. Raises `ConfigError`, `UsageProblem`."""
    found: list[Interceptor] = []
    for use in manifest.interceptors:
        try:
            found.append(interceptor_of(load_object(use.use, "[[interceptors]] use:")))
        except ConfigError as error:
            raise ConfigError(f"[[interceptors]] use: {use.use!r} can't be used: {error}") from error
    return [*found, *checked(extra)]


def interceptor_of(value: Any) -> Interceptor:
    """An interceptor of the user's own that a manifest names: an object, or a class of which one is made. Raises `ConfigError`."""
    made: Any = value
    if isinstance(value, type) and issubclass(value, Interceptor):
        with users_code(lambda why: ConfigError(f"no object of it can be made: {why}")):
            made = value()
    check(made)
    return made
