"""`pod approve` and `pod deny`: answers to what waits for a human.

With a living writer they are left in its inbox; without one they are put on record here. A yes is to what was seen: without an id and
without `--all` each question is shown and put on a terminal, and nothing is allowed where there is none.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from interceptors.approvals import ApprovalScope, reach_of, settled_by
from pod.cli.failing import note
from pod.cli.text import count, one_line, question_lines, told
from pod.errors import PodBusy, UsageProblem
from pod.log.folder import PodFolder, default_home


class Answer(NamedTuple):
    """An answer to one question. `scope` of None takes the one that was asked for."""

    id: str
    approved: bool
    scope: ApprovalScope | None = None
    message: str = ""


def approve(args: argparse.Namespace) -> int:
    """Answers yes."""
    return _answer(args, approved=True)


def deny(args: argparse.Namespace) -> int:
    """Answers no."""
    return _answer(args, approved=False)


def _answer(args: argparse.Namespace, *, approved: bool) -> int:
    from pod.cli.sending import folder_of
    from pod.questions import open_questions

    folder = folder_of(args.name)
    asked = open_questions(folder)
    if not asked:
        raise UsageProblem(f"nothing is asked in pod {args.name!r}")
    given = _given(args, asked, approved=approved)
    if not args.resume:
        return _put_and_told(args, folder, asked, given, approved=approved)[0]
    from pod.cli.output import output_of
    from pod.cli.run import drive_through, execute, plan_resume, prove

    with output_of(args) as output:
        if folder.is_busy():  # the process that runs the pod goes on with it, unless it ends just now
            code, settled = _put_and_told(args, folder, asked, given, approved=approved)
            return execute(plan_resume(args, default_home(), None), args, output) if settled else code
        plan = plan_resume(args, default_home(), None)
        prove(plan, args)  # an answer that can't be gone on with is refused before it is put on record
        code, settled = _put_and_told(args, folder, asked, given, approved=approved)
        return drive_through(plan, args, output) if settled else code


def _put_and_told(
    args: argparse.Namespace, folder: PodFolder, asked: Mapping[str, Any], given: list[Answer], *, approved: bool
) -> tuple[int, bool]:
    """Puts the answers on record and tells it. The exit code, and whether the run can go on here."""
    if given:
        answers = _with_settled(given, asked)
    elif approved and _on_terminal(args):
        answers = _choose(asked)
    else:
        raise UsageProblem(_list(args.name, asked, "approve" if approved else "deny"))
    for answer in answers if given else ():
        note(f"  {one_line(told(asked[answer.id].tool, asked[answer.id].summary), 400)}")
    elsewhere = _put(folder, answers, asked) if answers else False
    left = [label for label in asked if label not in {answer.id for answer in answers}]
    _tell(args, asked, answers, left, elsewhere=elsewhere)
    if left and not elsewhere and args.resume:
        return 3, False
    return 0, not left and not elsewhere


def _given(args: argparse.Namespace, asked: Mapping[str, Any], *, approved: bool) -> list[Answer]:
    """The answers that the arguments alone give; empty where they do not say which question is meant. A no may be to the one that is open,
    whatever it asks; a yes may not."""
    from pod.cli.given import valid_text

    if args.all and args.id is not None:
        raise UsageProblem("--all answers every question: leave the id out")
    if args.all:
        labels = list(asked)
    elif args.id is not None:
        labels = [_matching(args.name, args.id, asked)]
    elif len(asked) == 1 and not approved:
        labels = list(asked)
    else:
        return []
    scope = args.scope if approved else None
    message = "" if approved else valid_text(args.message, "--message")
    return [Answer(label, approved, scope, message) for label in labels]


def _matching(name: str, given: str, asked: Mapping[str, Any]) -> str:
    """The one question whose id this is, or begins or ends with it."""
    found = [label for label in asked if label == given]
    found = found or [label for label in asked if given and (label.startswith(given) or label.endswith(given))]
    if len(found) == 1:
        return found[0]
    what = f"{given!r} may be {count(len(found), 'question')}" if found else f"no question {given!r} is open"
    raise UsageProblem(f"{what} in pod {name!r}; open:\n{_lines(asked)}")


def _list(name: str, asked: Mapping[str, Any], verb: str) -> str:
    head = f"pod {name!r} asks {count(len(asked), 'question')}; name one (pod {verb} {name} ID), or --all of them:"
    lines: list[str] = []
    for label, each in asked.items():
        first, *rest = question_lines(each)
        lines += [f"{label}  {first}", *rest]
    return "\n".join([head, *(f"  {line}" for line in lines)])


def _lines(asked: Mapping[str, Any]) -> str:
    return "\n".join(f"  {label}  {one_line(told(a.tool, a.summary), 200)}" for label, a in asked.items())


def _with_settled(answers: list[Answer], asked: Mapping[str, Any]) -> list[Answer]:
    """With a yes to all like it, also the questions that this settles."""
    found = {answer.id: answer for answer in answers}
    for answer in answers:
        if answer.approved and (answer.scope or asked[answer.id].scope) == "run":
            for other in settled_by(asked[answer.id], asked.values()):
                found.setdefault(other.id, Answer(other.id, True, "once"))
    return list(found.values())


# -- on a terminal --------------------------------------------------------------------------------------------


def _on_terminal(args: argparse.Namespace) -> bool:
    from pod.cli.output import is_terminal

    return not args.print and is_terminal(sys.stdin) and is_terminal(sys.stderr)


def _choose(asked: Mapping[str, Any]) -> list[Answer]:
    """Puts the questions one by one; what was answered before the end of input."""
    from pod.cli.asking import choice_of, prompt_of, show_question, tell_allowed, tell_settled

    answers: dict[str, Answer] = {}
    for label, question in asked.items():
        if label in answers:
            continue
        show_question(question)
        choice = None
        while choice is None:
            print(prompt_of(question), end="", file=sys.stderr, flush=True)
            line = sys.stdin.readline()
            if not line:
                note("")
                return list(answers.values())
            choice = choice_of(line, question)
        if choice.word == "no":
            answers[label] = Answer(label, False, message=choice.reason)
            continue
        answers[label] = Answer(label, True, choice.word)
        tell_allowed(question, choice.word)
        settled = [
            other for other in settled_by(question, asked.values()) if choice.word == "run" and other.id not in answers
        ]
        answers.update((other.id, Answer(other.id, True, "once")) for other in settled)
        tell_settled(len(settled))
    return list(answers.values())


# -- putting them on record -----------------------------------------------------------------------------------


def _put(folder: PodFolder, answers: list[Answer], asked: Mapping[str, Any]) -> bool:
    """Puts the answers on record, durable. True where a living writer was left to do it."""
    from pod.cli.sending import opened
    from pod.log.inbox import Command, post
    from pod.questions import answer

    by = _who()
    try:
        with opened(folder) as session:
            for given in answers:
                if given.id not in session.state.approvals:
                    continue  # an answer before it settled it
                scope = (given.scope or asked[given.id].scope) if given.approved else None
                answer(session, given.id, approved=given.approved, by=by, scope=scope, message=given.message)
    except PodBusy:
        for given in answers:
            values: dict[str, Any] = {"id": given.id, "by": by}
            values |= {"scope": given.scope or asked[given.id].scope} if given.approved else {}
            values |= {"message": given.message} if given.message else {}
            post(folder, Command(kind="approve" if given.approved else "deny", args=values))
        return True
    return False


def _tell(
    args: argparse.Namespace, asked: Mapping[str, Any], answers: list[Answer], left: list[str], *, elsewhere: bool
) -> None:
    yes, no = [a for a in answers if a.approved], [a for a in answers if not a.approved]
    number = {
        word: f"{len(found)} {word}" if len(answers) > 1 else word
        for word, found in (("approved", yes), ("denied", no))
    }
    parts = [f"{number['approved']}: {_reach(yes, asked)}"] if yes else []
    parts += [number["denied"]] if no else []
    done = ", ".join(parts) or "nothing answered"
    if elsewhere:
        note(f"pod {args.name}: {done}; the process that runs the pod takes it up")
    elif left:
        note(f"pod {args.name}: {done}; still open: {', '.join(left)}")
    else:
        note(f"pod {args.name}: {done}" + ("" if args.resume else f"; `pod resume {args.name}` goes on"))


def _reach(answers: list[Answer], asked: Mapping[str, Any]) -> str:
    """What the answers allow, each kind once: what a yes for the run settles is a part of it."""
    wide = [a.id for a in answers if (a.scope or asked[a.id].scope) == "run"]
    settled = {other.id for label in wide for other in settled_by(asked[label], asked.values())}
    words = Counter(reach_of(asked[a.id].scope, a.scope) for a in answers if a.id in wide or a.id not in settled)
    alone = words.get("this call", 0)
    return " and ".join(f"these {alone} calls" if word == "this call" and alone > 1 else word for word in words)


def _who() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
