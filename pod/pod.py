"""The Pod: a named, durable supervisor of one agent, for embedding."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from importlib import import_module
from inspect import iscoroutinefunction
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, Unpack, cast, get_args

import anyio
from anyio.abc import TaskGroup

from interceptors.approvals import ApprovalScope
from interceptors.purse import Booked, Purse, Share
from pod import renewal, setup
from pod.bus import Subscription, Told
from pod.errors import UsageProblem, in_a_folder
from pod.events import CallMade, Event, Init, event_of
from pod.guarding import check_sandbox, files_text, manifest_files
from pod.handle import RunHandle
from pod.hooks.define import Hook
from pod.instructions import Instructions, collect
from pod.intake import said
from pod.log import entries as e
from pod.log.files import Files
from pod.log.folder import PodFolder, check_name, default_home
from pod.manifest import Loaded, Manifest, load_manifest
from pod.manifest.project import said_of
from pod.names import as_name
from pod.options import (
    WANTED,
    NamedOptions,
    OpenOptions,
    Options,
    compact_models_given,
    models_given,
    output_of,
    overridden,
    path_of,
    whole,
    with_output,
)
from pod.output import OutputSchema
from pod.proof import check_numbers, fits, numbers_of
from pod.reading import SessionReader
from pod.recovery import end_labelled
from pod.result import OutputT, RunResult, V
from pod.running import Running
from pod.servers import check_required, place_of, servers_of, with_servers
from pod.services import Services
from pod.session import Session
from pod.stored import keep_schema, kept, move, moved, restore
from worker.gate import Gate
from worker.ids import uuid7
from worker.interceptor import Interceptor
from worker.mcp.define import LABEL
from worker.models.base import Model
from worker.results import Yielded
from worker.tools import Tool
from worker.tracing import Guarded, Tracing

if TYPE_CHECKING:
    from typing_extensions import TypeForm

    from worker.mcp.servers import Servers


class Pod(Generic[OutputT]):
    """One agent with a durable session. Make one with `Pod.open` and use it as an async context manager.

    With `output_type=` it is a `Pod` of that type: `Pod[Answer]`, its runs end as `RunResult[Answer]`.

    All methods that change the pod are durable when they return. One `Pod` belongs to one event loop.
    """

    def __init__(self, manifest: Manifest | Loaded, options: Options) -> None:
        self._loaded = manifest if isinstance(manifest, Loaded) else None
        self.manifest = manifest.manifest if isinstance(manifest, Loaded) else manifest
        self._options = options
        self.home = options.home or default_home()
        with in_a_folder():
            self.cwd = Path(os.path.realpath(options.cwd or Path.cwd()))
        self.name = options.name or self.manifest.pod.name or _generated(self._loaded)
        self._stack = AsyncExitStack()
        self._running: Running | None = None
        self._entered = self._closed = False

    @classmethod
    def open(
        cls,
        manifest: str | os.PathLike[str] | Manifest | Loaded,
        *,
        name: str | None = None,
        cwd: str | os.PathLike[str] | None = None,
        home: str | os.PathLike[str] | None = None,
        overrides: Sequence[str] = (),
        trusted: bool | None = None,
        tools: Sequence[Tool | Callable[..., Any]] = (),
        interceptors: Sequence[Interceptor] = (),
        hooks: Sequence[Hook] = (),
        model: Model | str | None = None,
        compact_model: Model | str | None = None,
        deps: Any = None,
        headless: bool = True,
        on_yield: Callable[[Yielded], Any] | None = None,
        observers: Sequence[Callable[[Event], object]] = (),
        purse: Purse | None = None,
        files: Files | None = None,
        telemetry: Tracing | None = None,
        output_type: TypeForm[V] = Any,
    ) -> Pod[V]:
        """A pod from a manifest (a path, a shipped name, or a `Manifest`), made or reopened by name when it is entered.

        `cwd` is the agent's working folder, `home` where pods lie (default `$POD_HOME`). `overrides` are texts `section.key=value`
        that come before what the manifest says, in whatever form it is given; so do `tools`, `interceptors`, `model` and
        `compact_model`. `trusted` says whether the folder's own `.pod/config.toml` may do more than tighten (None: as the user
        decided with `pod trust`); it has no say over a manifest that is loaded already. `hooks` stand behind the manifest's. `deps`
        is handed to tools and interceptors; `purse` bounds what several pods spend together; `telemetry` follows its runs, for instance
        `pod.otel.Telemetry()`. `output_type` is the type of the final answer (whatever pydantic can make a JSON Schema of): it comes
        before `[worker] output_schema`, and its schema stays with the pod. Raises `ManifestError`; entering raises `PodBusy`,
        `LogDamaged`, `ServerUnavailable`, `worker.errors.ConfigError`; both raise `UsageProblem`.
        """
        folder, root = whole(cwd, "cwd"), whole(home, "home")
        output = output_of(output_type)
        if name is not None:
            check_name(name)
        if not isinstance(manifest, Manifest | Loaded):
            with in_a_folder():
                manifest = load_manifest(
                    path_of(manifest, WANTED), overrides, cwd=folder, trusted=trusted, model_required=model is None
                )
        elif trusted is not None:
            raise UsageProblem("trusted= is about loading a manifest, and this one is loaded: give its path")
        else:
            manifest = overridden(manifest, overrides, folder)
        asynchronous = next((each for each in observers if iscoroutinefunction(each)), None)
        if asynchronous is not None:
            raise UsageProblem(
                f"the observer {asynchronous.__qualname__} is async: observers are plain functions, `subscribe()` is for tasks"
            )
        options = Options(
            name=name, cwd=folder, home=root, tools=tools, interceptors=interceptors, hooks=hooks, model=model, compact_model=compact_model,
            deps=deps, headless=headless, on_yield=on_yield, observers=observers, purse=purse, files=files, telemetry=telemetry,
            output=output,
        )  # fmt: skip
        return cast("Pod[V]", cls(with_output(manifest, output), options))  # of a subclass, where that was asked

    @classmethod
    def reopen(
        cls,
        name: str,
        *,
        home: str | os.PathLike[str] | None = None,
        output_type: TypeForm[V] = Any,
        **options: Unpack[OpenOptions],
    ) -> Pod[V]:
        """A pod that exists, with the manifest that is in force in its session: the one that it was last given.

        `options` are those of `Pod.open`. Without an `output_type` the schema of the one before still holds, and the output is plain
        JSON; another one applies from the next answer on. Another `cwd` than its own moves it there for good, the roots of its
        scope in the folder before with it.

        Raises `PodNotFound`, `UsageProblem`.
        """
        root = whole(home, "home") or default_home()
        found, cwd = kept(PodFolder(root, check_name(name))), options.get("cwd")
        found.require("manifest", "files", *([] if cwd else ["cwd"]))
        assert found.manifest is not None  # else it was raised
        made = found.manifest
        if cwd and (folder := whole(cwd, "cwd")):
            made = moved(made, found.cwd, Path(os.path.realpath(folder)))
        options["cwd"] = cwd or found.cwd
        return cls.open(made, name=name, home=root, output_type=output_type, **options)

    @classmethod
    def run_sync(
        cls,
        manifest: str | os.PathLike[str] | Manifest | Loaded,
        task: str,
        *,
        backend: str = "asyncio",
        output_type: TypeForm[V] = Any,
        **options: Unpack[NamedOptions],
    ) -> RunResult[V]:
        """Runs one task to its end, for scripts without an event loop; inside of one it raises `UsageProblem`. Raises what `open`,
        entering and `run` do; for a blank task no pod is made."""
        said(task)
        if _in_a_loop():
            raise UsageProblem(
                "Pod.run_sync is for scripts without an event loop, and one is running here: "
                "use `async with Pod.open(...) as pod: result = await pod.run(...)`"
            )

        async def main() -> RunResult[V]:
            async with cls.open(manifest, output_type=output_type, **options) as pod:
                return await pod.run(task)

        return anyio.run(main, backend=backend)

    def __repr__(self) -> str:
        stands = "open" if self._entered else "closed" if self.opened else "not entered"
        return f"<pod {self.name!r} in {self.home}: {stands}>"

    # -- entering ---------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._entered:
            raise UsageProblem(
                f"pod {self.name!r} is entered already: leave it first, or make another one with Pod.open"
            )
        self._entered, self._closed = True, False
        try:
            await self._enter()
        except BaseException:
            self._entered, self._closed = False, True
            with anyio.CancelScope(shield=True):
                await self._stack.aclose()
            raise
        return self

    async def _enter(self) -> None:
        m, o = self.manifest, self._options
        if not self.cwd.is_dir():
            raise UsageProblem(
                f"the working folder {self.cwd} {'is not a folder' if self.cwd.exists() else 'does not exist'}"
            )
        tools = setup.tools_of(m, o.tools)
        models = models_given(o.model, m, tools)
        users = setup.user_interceptors(m, o.interceptors)
        hooks = setup.user_hooks(m, o.hooks)
        output = o.output or (OutputSchema.read(m.worker.output_schema) if m.worker.output_schema else None)
        compact_models = compact_models_given(o.compact_model, m, models)
        await anyio.to_thread.run_sync(self._prepared)
        for model in {id(x): x for x in (*models, *compact_models)}.values():
            self._stack.push_async_callback(model.aclose)
        found = await anyio.to_thread.run_sync(self._opened, models[0])
        if found is not None:
            self._stack.push_async_callback(_closed, found)
        files = self._files
        if found is not None and self._loaded is None:
            files = await anyio.to_thread.run_sync(manifest_files, found)
        label = uuid7() if found is None else found.pointer.session
        tag = uuid7()[-12:] if found is None else found.state.start.tag
        async with AsyncExitStack() as early:
            servers = await self._servers(early, found, label, tag, files) if m.mcp else None
            if servers is not None:
                tools = with_servers(tools, servers.tools())
                await anyio.to_thread.run_sync(self._check_room, models[0], tools, servers)
            session = await anyio.to_thread.run_sync(self._session, found, models[0], tools, output, label, tag)
            if found is None:
                self._stack.push_async_callback(_closed, session)
            # Behind the session: servers are gone before another process may open the pod.
            self._stack.push_async_exit(early.pop_all())
        services = Services.of(m, session, self.cwd, files)
        self._stack.push_async_callback(services.processes.end_all)
        running = self._running = Running(
            manifest=m, session=session, models=models, compact_models=compact_models, tools=tools, services=services,
            cwd=self.cwd, files=files, hooks=setup.asked_hooks(hooks, session, self.cwd), users=users, deps=o.deps,
            headless=o.headless, on_yield=o.on_yield, output=output, doubts=_doubts(self._loaded),
            servers=servers, share=self._share(session), telemetry=None if o.telemetry is None else Guarded(o.telemetry),
        )  # fmt: skip
        running.bus.observers += o.observers
        running.instructions = await anyio.to_thread.run_sync(self._instructions, session, session.gate)
        self._group: TaskGroup = await self._stack.enter_async_context(anyio.create_task_group())

    def _share(self, session: Session) -> Share | None:
        """The pod's share of the purse that it was given, until it is closed."""
        if self._options.purse is None:
            return None

        def booked() -> Booked:
            totals = session.state.totals
            return Booked(totals.cost_usd, totals.unpriced)

        share = self._options.purse.join(self.name, booked)
        self._stack.callback(share.leave)
        return share

    def _prepared(self) -> None:
        """What compacts is loaded: a run of days must not load it first when its file may have been replaced. The sandbox is there where
        one is asked for. Blocks. Raises `UsageProblem`.
        """
        import_module("compact_worker.job")
        check_sandbox(self.manifest, self.cwd, self.home)

    def _opened(self, model: Model) -> Session | None:
        """The session of a pod that exists. Blocks."""
        if not PodFolder(self.home, self.name).exists():
            return None
        return Session.open(self.home, self.name, **self._journal(model))

    def _journal(self, model: Model) -> dict[str, Any]:
        return {
            "family": model.capabilities.family, "durability": self.manifest.log.durability, "files": self._options.files,
            "gate": setup.gate(self.manifest),
        }  # fmt: skip

    def _session(
        self,
        found: Session | None,
        model: Model,
        tools: dict[str, Tool],
        output: OutputSchema | None,
        label: str,
        tag: str,
    ) -> Session:
        if found is not None:
            gate = found.gate
            restore(found, lambda: self._texts(tools, output, tag, self._instructions(found, gate), gate))
            move(found, self.cwd)
            if self._options.output is not None:
                keep_schema(found, self._options.output.text)
            return found
        options = self._journal(model)
        blobs = self._texts(tools, output, tag, self._instructions(None, options["gate"]), options["gate"])
        digest = self.manifest.digest
        return Session.create(self.home, self.name, blobs=blobs, manifest=digest, tag=tag, label=label, **options)

    async def _servers(
        self, stack: AsyncExitStack, session: Session | None, label: str, tag: str, files: Sequence[Path]
    ) -> Servers:
        """The servers of the manifest, started. What a killed runtime left of them is ended first.

        Raises `ConfigError`, `ServerUnavailable`.
        """
        owner = label if session is None else session.pointer.owner
        if session is not None:
            await end_labelled(session, owner, LABEL)
        place = await anyio.to_thread.run_sync(place_of, self.manifest, self.home, self.cwd, owner, files)
        # Loaded by now: by the thread, in which it took a moment.
        from worker.mcp.servers import Servers
        from worker.mcp.words import Screen

        gate = setup.gate(self.manifest)
        servers = await stack.enter_async_context(Servers(servers_of(self.manifest), place, Screen(gate, tag)))
        check_required(servers, gate.masked)
        return servers

    def _check_room(self, model: Model, tools: Mapping[str, Tool], servers: Servers) -> None:
        """Whether the tools of servers fit beside everything else (case B136). Blocks. Raises `DoesNotFit`, with each server's tokens."""
        by_server = servers.by_server()
        if not any(by_server.values()):
            return
        numbers = numbers_of(self.manifest, self.cwd, model=model, tools=tools, servers=by_server)
        theirs = {tool.name for each in by_server.values() for tool in each}
        own = {name: tool for name, tool in tools.items() if name not in theirs}
        if not fits(numbers_of(self.manifest, self.cwd, model=model, tools=own)):
            # No tool of a server is to blame for what does not fit its triggers anyway.
            numbers = replace(numbers, triggers={}, worker=None)
        check_numbers(numbers)

    def _instructions(self, session: Session | None, gate: Gate) -> Instructions:
        """Those of the run under way, as it began; else the files as they are now, masked. Blocks."""
        frozen = None if session is None else renewal.frozen(session)
        found = frozen or collect(self.cwd, self.manifest.worker.instructions, self.manifest.scope.read)
        return found.masked(gate.own)

    def _texts(
        self, tools: dict[str, Tool], output: OutputSchema | None, tag: str, instructions: Instructions, gate: Gate
    ) -> dict[str, str]:
        """What a segment begins with, by use."""
        m = self.manifest
        return {
            "system": gate.own(setup.render_system(m, instructions, tools, self.cwd, self.name, tag, output)),
            "schemas": setup.schemas_text(tools),
            "manifest": m.kept_text(),
            "cwd": str(self.cwd),
            **files_text(self._files),
        }

    @property
    def _files(self) -> tuple[Path, ...]:
        return () if self._loaded is None else self._loaded.files

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._entered, self._closed = False, True
        await self.running.close()
        try:
            return await self._stack.__aexit__(kind, error, trace)
        except BaseExceptionGroup as group:
            # The task group wraps what the block raised; its caller wrote `except RunFailed`, not `except*`.
            if error is None or group.exceptions != (error,):
                raise
            return False

    # -- running ----------------------------------------------------------------------------------------------

    async def run(self, text: str, *, key: str | None = None) -> RunResult[OutputT]:
        """Runs with a new user message to the end. Cancelled, the run's end is on record, and input that nothing came of is given back.

        With a `key` the message is taken once, for as long as the pod lives: the same call again, after a crash too, goes on with its run,
        or gives its result once more; cancelled, the message is kept.

        Where the pod is left meanwhile, the result is `cancelled`, and the run can be resumed. Raises `UsageProblem` for what is no
        text or blank, and while a run is under way; nothing is stored then.
        """
        return await self._open.drive(said(text), key=key)

    async def resume(self) -> RunResult[OutputT]:
        """Goes on without new input: an open run, an unanswered message, a run that stopped early.

        Raises `UsageProblem` where nothing is left to do.
        """
        return await self._open.drive(None)

    def start(self, text: str | None) -> RunHandle[OutputT]:
        """A handle on a new run (None: go on without new input). Enter it to begin. Raises `UsageProblem` for blank text."""
        if text is not None:
            said(text)
        return RunHandle(self._open, self._group, text, self.events, self.init_event)

    # -- steering and looking ---------------------------------------------------------------------------------

    async def send(self, text: str) -> str:
        """Stores a user message for the next request; durable when it returns. Returns its id.

        Raises `UsageProblem` for blank text.
        """
        return await self._open.intake.accept(text)

    async def approve(self, approval: str, *, scope: ApprovalScope | None = None, by: str = "") -> None:
        """Answers yes. The call runs when the pod goes on (`resume`). Raises `UsageProblem` for an id that is not asked.

        `scope` of None takes the one that was asked for.
        """
        await self._answer(approval, True, {"scope": scope, "by": by})

    async def deny(self, approval: str, *, message: str = "", by: str = "") -> None:
        """Answers no; `message` reaches the model. Raises `UsageProblem` for an id that is not asked."""
        await self._answer(approval, False, {"message": message, "by": by})

    async def _answer(self, approval: str, approved: bool, args: dict[str, Any]) -> None:
        if args.get("scope") not in (None, *get_args(ApprovalScope)):
            raise UsageProblem(
                f"the scope {args['scope']!r} is none: it is {' or '.join(map(repr, get_args(ApprovalScope)))}"
            )
        if not self._open.intake.answer(approval, approved, args):
            asked = ", ".join(self._open.session.state.approvals) or "nothing is asked"
            raise UsageProblem(f"no approval {approval!r} is open in pod {self.name!r} (open: {asked})")
        await self._open.session.sync()

    @property
    def approvals(self) -> list[Any]:
        """What waits for a human."""
        return list(self.running.session.state.approvals.values())

    @property
    def last_result(self) -> RunResult[OutputT] | None:
        """The result of the last run, as the log tells it; None before the first one, and while one is open (`resumable`)."""
        return self.running.last_result()

    @property
    def resumable(self) -> bool:
        """Whether `resume` has something to go on with: an open run, an unanswered message."""
        return self.running.session.state.unanswered

    async def compact(self, focus: str | None = None) -> bool:
        """Compacts by hand, between runs. Returns whether a new segment began; the reason otherwise is a warning on record."""
        running = self._open
        if running.busy:
            running.orders.compact, running.orders.focus = True, focus
            return False
        return await running.compact_by_hand(focus)

    def subscribe(self) -> Subscription:
        """A reader of all events from now on."""
        return self._open.bus.subscribe()

    def events(self, after: int = 0) -> AsyncIterator[Event]:
        """The events of the session from the log, those after number `after`: the same objects that the stream told."""
        reader = SessionReader(self.running.session.folder)

        def read() -> list[Event]:
            found = ((line, e.record_of(line)) for line in reader.lines(after))
            told = (event_of(line, record) for line, record in found if record is not None)
            return [event for event in told if event is not None]

        return Told(read)

    def init_event(self) -> Init:
        """The first event of a stream."""
        running, state = self.running, self.running.session.state
        sender = running.worker.sender
        budget = sender.budget(sender.model)
        triggers = {k: setup.trigger_value(v, budget.available) for k, v in self.manifest.acting_triggers.items()}
        return Init(
            pod=self.name, session=state.start.session, segment=state.start.segment, manifest=self.manifest.digest,
            model=sender.model.name, window=budget.window, window_source=budget.window_source, available=budget.available,
            triggers=dict(triggers), tokens=sender.occupancy().tokens,
            requests=state.history.counters.requests if state.run is not None else 0,
            calls=tuple(
                CallMade(call_id=call.item.call_id, name=call.item.name, arguments=call.item.arguments)
                for call in state.history.unresolved
            ),
            seq=state.last_seq,
        )  # fmt: skip

    @property
    def state(self) -> Any:
        """The folded state of the active segment, to look at."""
        return self.running.session.state

    @property
    def opened(self) -> bool:
        """Whether it was ever entered, so that there is a state to look at."""
        return self._running is not None

    @property
    def running(self) -> Running:
        """The moving parts, for tests and for the command line. Raises `UsageProblem` before the pod is entered."""
        if self._running is None:
            raise UsageProblem(f"pod {self.name!r} is not open: use it inside of `async with Pod.open(...) as pod`")
        return self._running

    @property
    def _open(self) -> Running:
        if self._closed:
            raise UsageProblem(f"pod {self.name!r} is closed: enter it again (`async with pod`)")
        return self.running


async def _closed(session: Session) -> None:
    """Closes a session in a thread: its home may be a database that is away. Shielded: what was written is sent."""
    with anyio.CancelScope(shield=True):
        await anyio.to_thread.run_sync(session.close)


def _in_a_loop() -> bool:
    try:
        anyio.get_current_task()
    except RuntimeError:
        return False
    return True


def _generated(loaded: Loaded | None) -> str:
    stem = loaded.path.stem if loaded is not None else "pod"
    return f"{as_name(stem) or 'pod'}-{time.strftime('%Y%m%d-%H%M%S')}-{uuid7()[-4:]}"


def _doubts(loaded: Loaded | None) -> tuple[str, ...]:
    """What the configuration of the working folder asks for and does not get."""
    return () if loaded is None or loaded.project is None else tuple(map(str, said_of(loaded.project)))
