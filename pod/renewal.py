"""What changed since the segment began: put on record before the first request of a run, or of its continuation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pod import codes
from pod.instructions import Instructions
from pod.log.entries import InstructionChange, InstructionsChanged, RunStarted
from pod.prompt import holds
from pod.session import Session
from worker.items import ContextItem
from worker.models.base import Model, RemembersRefusals
from worker.models.registry import guessed_window
from worker.records import ContextAdded, ToolsChanged, Warned, WindowLearned
from worker.sending import Sender
from worker.text import sha256, visible_name

_FOLDER = "working folder"


def keep(session: Session, instructions: Instructions) -> None:
    """Makes the texts durable that a run is about to begin with. Blocks."""
    for _, text in instructions.files:
        session.folder.put_blob(text)


def frozen(session: Session) -> Instructions | None:
    """The instructions that the run under way began with, whatever stands in the files now; None without such a run. Blocks.

    Where their texts are lost (or were never kept, in logs of old), that is on record, and None.
    """
    state = session.state
    if state.run is None:
        return None
    lost = [path for path, label in state.instructions.items() if not session.folder.holds(label)]
    if lost:
        message = f"lost, and read anew in the middle of a run: {', '.join(lost)}"
        session.put(Warned(code=codes.INSTRUCTIONS, message=message, figures={"lost": lost}))
        return None
    files = tuple((path, session.folder.blob(label)) for path, label in state.instructions.items())
    return Instructions(files, cut=dict(state.instructions_cut))


def instructions_compared(session: Session, started: RunStarted, before: Mapping[str, str]) -> None:
    """Puts on record which files are not what they were in the run before."""
    now = started.instructions
    changes = tuple(
        InstructionChange(path=path, before=before.get(path), now=now.get(path))
        for path in {**before, **now}
        if before.get(path) != now.get(path)
    )
    if changes:
        session.put(InstructionsChanged(run=started.run, changes=changes))


def instructions_changed(session: Session, instructions: Instructions) -> None:
    """Instructions other than the model was last told enter as an item; the next segment's prompt has them."""
    text = instructions.text() or "There are no instruction files any more; earlier ones no longer apply."
    known = [i for i in session.state.history.view if isinstance(i, ContextItem) and i.kind == "instructions"]
    if known:
        same = known[-1].text == text
    else:
        same = holds(session.folder.blob(session.state.blobs["system"]), instructions)
    if same:
        return
    item = ContextItem(kind="instructions", text=text, source="instruction files, as of this run", trust="project")
    session.put(ContextAdded(items=(item,), by="instructions"))


def folder_changed(session: Session) -> None:
    """Another working folder than the segment's prompt names enters as an item; the next segment's prompt has it."""
    known = [i for i in session.state.history.view if isinstance(i, ContextItem) and i.source == _FOLDER]
    now = session.state.blobs["cwd"]
    if (known[-1].sha256 if known else session.state.start.blobs["cwd"]) == now:
        return
    text = f"The working folder is another one from now on: {visible_name(session.folder.blob(now))}"
    item = ContextItem(kind="notice", text=text, source=_FOLDER, sha256=now)
    session.put(ContextAdded(items=(item,), by="folder"))


def schemas_changed(session: Session, schemas: str) -> bool:
    """Other tools than the session knew last: the provider's cache is lost. Whether that is so."""
    digest = sha256(schemas)
    if session.state.schemas == digest:
        return False
    session.put(ToolsChanged(system=session.state.blobs["system"], tools=digest))
    return True


def windows_declared(session: Session, models: Sequence[Model]) -> None:
    """What refusals taught of a window is dropped where another one was declared since."""
    for model in models:
        known, window = session.state.history.windows.get(model.name), model.capabilities.window
        if known is not None and known.outdated(window):
            message = (
                f"declared anew: {window:,} tokens in the place of {known.declared:,}; {known.limit:,} had been learned"
            )
            session.put(
                WindowLearned(model=model.name, window=window, source="declared", declared=window, message=message)
            )


def refusals_recalled(session: Session, models: Sequence[Model]) -> None:
    """What servers are known not to take is not asked of them again by this process either."""
    for model in models:
        known = session.state.history.refusals.get(model.name)
        if known is not None and isinstance(model, RemembersRefusals):
            model.recall(known)


def window_unknown(session: Session, sender: Sender) -> None:
    """A warning, once a session, where the model's window is not known: every threshold then stands on a guess."""
    model, budget = sender.model, sender.budget(sender.model)
    if budget.window_source != "fallback" or model.name in session.state.unknown_windows:
        return
    message = guessed_window(model.name, budget.window)
    figures = {"model": model.name, "window": budget.window, "key": "model.context_window"}
    session.put(Warned(code=codes.UNKNOWN_WINDOW, message=message, figures=figures))
