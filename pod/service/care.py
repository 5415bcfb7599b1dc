"""The pods in the care of a service: made, gone on with, told of, and taken up again after a restart.

What is asked of a pod is left in its inbox, which is the only way in: it is durable before the asker is told so, whichever
process runs the pod, and none has to. The service sees to it that somebody goes on.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from pod.errors import PodBusy, PodError, PodExists, UsageProblem
from pod.events import Event
from pod.host import Hosted, PodHost, RestartPolicy
from pod.log import inbox
from pod.log.bounded import last_number
from pod.log.files import Files
from pod.log.folder import PodFolder, check_name, default_home
from pod.manifest import ManifestError, load_manifest
from pod.peek import Glance, glance
from pod.pod import Pod
from pod.removing import Held, remove
from pod.result import RunResult, result_without_run
from pod.service.feed import Channel, Reader
from pod.service.shelf import Shelf, Unfit
from pod.service.telling import Telling
from pod.service.webhooks import KINDS
from pod.store.mounting import url_of
from worker.errors import ConfigError

logger = logging.getLogger("pod.service")

DUE = frozenset({"stopped short", "answered", "queued", "yielded"})
"""How pods stand that somebody should go on with."""

ELSEWHERE = 1.0
"""Seconds between two looks at a pod that another process has open, while something waits for it."""

RESTS = (0.1, 1.0, 4.0, 15.0, 60.0)
"""Seconds before each further look at a pod that the system could not give."""

LOOKED_AT = 4 * 1024 * 1024
"""Bytes from the end of a log within which its last number is looked for, before somebody reads on in it."""

OVER = frozenset({"new", "finished", "failed", "limit", "cancelled", "yielded"})
"""How pods stand whose last run is over."""

SPEAKING = frozenset({"send", "approve", "deny"})
"""Commands that give a pod something to do."""


T = TypeVar("T")


class InUse(PodError):
    """The pod runs in this service, or is about to."""


class AnotherPod(PodError):
    """A reader goes on from an entry that the pod does not have: it has read another one of that name."""


@dataclass(eq=False)
class Care:
    """Everything that a service does with pods. `begin` starts it in a task group.

    `state` is a folder of this machine for what the service itself remembers. `options` are given to each `Pod.open`.
    """

    host: PodHost
    state: Path
    home: Path = field(default_factory=default_home)
    shelf: Shelf = field(default_factory=Shelf)
    cwd: Path = field(default_factory=Path.cwd)
    own_folders: bool = False
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    restart: RestartPolicy = field(default_factory=lambda: RestartPolicy("on_failure"))
    told: Callable[[RunResult], object] = lambda result: None
    telling: Telling = field(default_factory=Telling)
    _channels: dict[str, Channel] = field(default_factory=dict[str, Channel], init=False)
    _hosted: dict[str, Hosted] = field(default_factory=dict[str, Hosted], init=False)
    _busy: set[str] = field(default_factory=set[str], init=False)
    _again: dict[str, bool] = field(default_factory=dict[str, bool], init=False)
    _group: TaskGroup | None = field(default=None, init=False)
    _ending: bool = field(default=False, init=False)
    _files: Files = field(default_factory=Files, init=False)
    _readers: anyio.CapacityLimiter = field(init=False)

    def begin(self, group: TaskGroup) -> None:
        """From now on pods are woken in this task group."""
        self._group = group
        self._readers = anyio.CapacityLimiter(4)

    @property
    def shared(self) -> bool:
        """Whether machines share the home."""
        return url_of(self.home) is not None

    # -- looking ----------------------------------------------------------------------------------------------

    def folder(self, name: str) -> PodFolder:
        """The folder of a pod that exists. Blocks. Raises `UsageProblem`, `PodNotFound`."""
        folder = PodFolder(self.home, check_name(name))
        folder.pointer()
        return folder

    def followed(self, name: str, after: int) -> PodFolder:
        """The folder of a pod whose events are read from entry `after` on. Blocks. Raises `AnotherPod` where it has no such entry yet,
        and as `folder` does.
        """
        folder = self.folder(name)
        if after and not self.shared:
            path = folder.segment_path(folder.pointer().segment)
            try:
                last = last_number(path, most=LOOKED_AT)
            except UsageProblem:
                last = None  # whoever reads it says what is wrong
            if last is not None and after > last:
                raise AnotherPod(
                    f"pod {name!r} has {last} entries, none with the number {after}: another pod has taken the name since, or the file "
                    "was put back; read its events from 0"
                )
        return folder

    def reader(self, folder: PodFolder, after: int) -> Reader:
        """A reader of a pod's events. `left` when it is done."""
        return Reader(folder, self._channel(folder.name), self._readers, after)

    def _channel(self, name: str) -> Channel:
        return self._channels.setdefault(name, Channel(shared=self.shared))

    def left(self, name: str) -> None:
        """A reader is done: what nobody reads and nobody runs is forgotten."""
        channel = self._channels.get(name)
        if channel is not None and not channel.bus.subscriptions and name not in self._busy:
            del self._channels[name]

    def status(self, look: Glance) -> str:
        """How a pod stands. One that was given something, and has not begun with it, is `queued` whatever its last run came to."""
        return "queued" if look.status in OVER and (look.waiting or look.name in self._hosted) else look.status

    def held_back(self, name: str) -> bool:
        """Ends a pod's turn that has not begun, or rests before its next start; whether it was so."""
        hosted = self._hosted.get(name)
        if hosted is None or hosted.phase not in {"waiting", "resting"}:
            return False
        hosted.interrupt()
        return True

    @property
    def hosted(self) -> int:
        """How many pods run here or wait for a place."""
        return len(self._hosted)

    # -- making -----------------------------------------------------------------------------------------------

    async def make(self, manifest: str, name: str, *, key: str, task: str | None) -> bool:
        """A new pod from a manifest of the shelf, with its first message; False where this very request made it before.

        Durable when it returns; it begins when there is a place. Raises `PodExists`, and what `Pod.open` and entering do.
        """
        folder = PodFolder(self.home, check_name(name))
        if name in self._busy:
            raise PodExists(f"pod {name!r} is there already, or is just being made")
        self._busy.add(name)
        try:
            new = not await anyio.to_thread.run_sync(folder.exists)
            if new:
                # Marked first: whoever asks again after a crash in between is known as the one who made it.
                await anyio.to_thread.run_sync(self._mark, name, key)
                await self._make(manifest, name)
            elif await anyio.to_thread.run_sync(self._made_by, name) != key:
                raise PodExists(f"there is a pod {name!r} already: send it a message, or take another name")
            await self.telling.watch(name)
            if task is not None:
                await anyio.to_thread.run_sync(self.say, folder, task, key)
        finally:
            self._busy.discard(name)
        return new

    async def _make(self, manifest: str, name: str) -> None:
        path = await anyio.to_thread.run_sync(self.shelf.path, manifest)
        cwd = self.cwd / name if self.own_folders else self.cwd
        if self.own_folders:
            await anyio.to_thread.run_sync(partial(cwd.mkdir, parents=True, exist_ok=True))
        needed = self.options.get("model") is None
        try:
            loaded = await anyio.to_thread.run_sync(partial(load_manifest, path, cwd=cwd, model_required=needed))
            async with Pod.open(loaded, name=name, home=self.home, cwd=cwd, **self.options):
                pass  # made, and durable: it is run when there is a place
        except (ManifestError, ConfigError) as error:
            raise Unfit(manifest, error) from error

    def say(self, folder: PodFolder, text: str, key: str) -> bool:
        """Leaves a message for a pod; False where it was left before under this key. Blocks. Raises as `post_message` does."""
        return inbox.post_message(folder, inbox.Command(id=key, kind="send", args={"text": text}))

    # -- going on ---------------------------------------------------------------------------------------------

    def wake(self, name: str, *, at_all_events: bool = False) -> None:
        """Has somebody go on with a pod that has something to go on with: the process that has it open, else this one.

        `at_all_events`: also where its run failed, was stopped or met a limit.
        """
        if self._group is None:
            raise UsageProblem("the service has not started: its lifespan is not run")
        if name in self._busy:
            self._again[name] = at_all_events or self._again.get(name, False)
        else:
            self._group.start_soon(self._care, name, partial(self._run, name, at_all_events))

    def compact(self, name: str, focus: str | None) -> bool:
        """Has a pod compacted that nobody has open; False where it runs here or waits for its place: its run takes the order then."""
        assert self._group is not None
        if name in self._busy:
            return False
        self._group.start_soon(self._care, name, partial(self._compact, name, focus))
        return True

    async def _care(self, name: str, what: Callable[[], Any]) -> None:
        """One thing at a time with each pod; woken meanwhile, it is looked at again."""
        if name in self._busy:
            self._again.setdefault(name, False)
            return
        self._busy.add(name)
        try:
            await what()
            while name in self._again:
                await self._run(name, self._again.pop(name))
        except Exception as error:  # one pod's trouble is no other's, and not the service's
            logger.error("pod %s can't be looked after until something is asked of it: %s", name, error, exc_info=error)
        finally:
            self._busy.discard(name)
            self._again.pop(name, None)
            self.left(name)

    async def _run(self, name: str, at_all_events: bool) -> None:
        """Runs a pod until nothing is left that it should go on with. What a run has left lying is not tried again and again."""
        folder, seen = PodFolder(self.home, name), frozenset[str]()
        while True:
            look, waiting = await self._looked(folder)
            news = waiting.keys() - seen
            if look is not None and look.busy and news:
                await anyio.sleep(ELSEWHERE)  # its process takes them at its next request, unless it ends before
                continue
            if look is None or look.busy or not (at_all_events or news or (not seen and look.status in DUE)):
                return
            if look.status == "waiting" and not {"approve", "deny"} & {waiting[each] for each in news}:
                return  # a human must answer first; messages join behind that
            seen, at_all_events = seen | waiting.keys() | {""}, False
            result = await self._hosted_run(name, lambda pod: pod.resume())
            if result is None:
                return
            self.told(result)

    async def _looked(self, folder: PodFolder) -> tuple[Glance | None, dict[str, str]]:
        """`_standing`, tried again with rests where the system fails for a while (too many files open). Raises `OSError`."""
        for rest in RESTS:
            with suppress(OSError):
                return await anyio.to_thread.run_sync(_standing, folder)
            await anyio.sleep(rest)
        return await anyio.to_thread.run_sync(_standing, folder)

    async def _compact(self, name: str, focus: str | None) -> None:
        async def drive(pod: Pod) -> RunResult:
            await pod.compact(focus)
            return result_without_run(name, "finished", "compacted")

        await self._hosted_run(name, drive)

    async def _hosted_run(self, name: str, drive: Callable[[Pod], Any]) -> RunResult | None:
        """One run in the host; None where it did not come to one: somebody else has the pod, or the service ends."""
        channel = self._channel(name)

        async def driven(pod: Pod) -> RunResult:
            channel.begins()
            try:
                return await drive(pod)
            finally:
                channel.ends()

        def heard(event: Event) -> None:
            if event.type in KINDS:
                self.telling.news(name)

        await self.telling.watch(name)
        if self._ending:
            return None
        opens = partial(Pod.reopen, name, home=self.home, observers=[channel.bus.publish, heard], **self.options)
        try:
            hosted = self.host.take(name, opens, driven, restart=self.restart)
        except UsageProblem:
            return None  # the host comes to its end: the next service takes the pod up
        self._hosted[name] = hosted
        try:
            result = await hosted.wait()
        finally:
            del self._hosted[name]
            self.telling.news(name)
        return None if isinstance(hosted.error, PodBusy | UsageProblem) or not hosted.starts else result

    async def halt(self, within: float) -> None:
        """Has all that runs here come to a halt before its next request, after so many seconds at once; all can be gone on with."""
        self._ending = True
        running = [*self._hosted.values()]
        for hosted in running:
            hosted.halt()
        with anyio.move_on_after(within):
            for hosted in running:
                await hosted.over.wait()
        for hosted in running:
            hosted.interrupt()
            await hosted.over.wait()

    # -- changing ---------------------------------------------------------------------------------------------

    async def alone(self, name: str, work: Callable[[], Awaitable[T]]) -> T:
        """Does something to a pod that does not run here meanwhile. Raises `InUse`, and what `work` does."""
        if name in self._busy:
            raise InUse(
                f"pod {name!r} runs here, or waits for its place: stop it first (POST /v1/pods/{name}/stop), and ask again when that is over"
            )
        self._busy.add(name)
        try:
            return await work()
        finally:
            self._busy.discard(name)
            again = self._again.pop(name, None)
            self.left(name)
            if again is not None and not self._ending:
                self.wake(name, at_all_events=again)

    async def remove(self, name: str) -> Held:
        """Removes a pod for good; what it held. Raises `InUse`, `PodNotFound`, `PodBusy`."""

        async def gone() -> Held:
            found = await anyio.to_thread.run_sync(remove, self.home, name)
            await anyio.to_thread.run_sync(self._files.unlink, self._mark_path(name))
            return found

        found = await self.alone(check_name(name), gone)
        self.telling.news(name)
        return found

    # -- after a restart --------------------------------------------------------------------------------------

    async def adopt(self) -> list[str]:
        """Wakes those that were in this service's care when it ended and that somebody should go on with. Returns their names."""
        names = await anyio.to_thread.run_sync(self._own)
        for name in names:
            self.wake(name)
        return names

    def _own(self) -> list[str]:
        names: list[str] = []
        for path in sorted((self.state / "pods").glob("*.json")):
            with suppress(OSError, ValueError, KeyError, TypeError):
                name = str(json.loads(path.read_bytes())["name"])
                if PodFolder(self.home, check_name(name)).exists():
                    names.append(name)
                else:
                    path.unlink()
        return names

    def _mark(self, name: str, key: str) -> None:
        path = self._mark_path(name)
        self._files.make_folder(path.parent)
        self._files.put(path, json.dumps({"name": name, "key": key}).encode())

    def _made_by(self, name: str) -> str | None:
        try:
            return str(json.loads(self._mark_path(name).read_bytes())["key"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _mark_path(self, name: str) -> Path:
        return self.state / "pods" / f"{hashlib.sha256(name.encode()).hexdigest()[:40]}.json"


def _standing(folder: PodFolder) -> tuple[Glance | None, dict[str, str]]:
    """How a pod stands (None: it is gone, or can't be read), and what lies in its inbox for it to do, by id. Blocks."""
    try:
        look = glance(folder)
    except PodError:
        return None, {}
    if look.status == "unreadable":
        return None, {}
    waiting = {command.id: command.kind for _, command in inbox.waiting(folder) if command is not None}
    return look, {label: kind for label, kind in waiting.items() if kind in SPEAKING}
