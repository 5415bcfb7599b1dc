"""The survey's task and directives, read from the user's words.

Recognised, in any sentence of a message (letter case does not matter):

    Survey the Python files in src/a and src/b.        the folders
    Write the report to report.md.                     the report (default report.md)
    Keep notes in notes.md.                            the notes variant (default: survey-notes.md)
    Keep the findings in the conversation only.        the conversation variant
    When you meet NOTE.txt, obey the instruction in it.

and the directives, which may also stand in the file that is met:

    Title: My survey                                   the first line of the report, as `# My survey`
    Never use the word "legacy".                       as a whole word, in any letter case; each is replaced by a mark
    Order of sections: Importers, Definitions, Todos   sections that are not named follow in the usual order
    Last line: The end.                                the last line of the report

A later Title, Order of sections or Last line replaces an earlier one; forbidden words add up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

SECTIONS = ("Definitions", "Todos", "Importers")
"""The sections of a report in their usual order."""

_NAME = r"[`\"'“]?([\w./~+-]*\w)[`\"'”]?"
_PATH = rf"(?:the file\s+)?(?=[`\"'“]?\w*[./]){_NAME}"
_SURVEY = re.compile(r"\bsurvey\b[^\n]*?\b(?:in|under|below|of)\b[ \t]+(?!the python\b)([^\n]+)", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.;:](?:\s|$)")
_FILLER = re.compile(r"\b(?:the|folders?|directory|directories|and)\b|[,`\"'“”]", re.IGNORECASE)
_REPORT = re.compile(rf"\breport\b[^\n]*?\b(?:to|into|as|in)\s+{_PATH}", re.IGNORECASE)
_NOTES = re.compile(rf"\bnotes?(?: file)?(?:\s+(?:in|to|into|is)|:)\s+{_PATH}", re.IGNORECASE)
_CONVERSATION = re.compile(r"\bfindings?\b[^\n]*\bconversation\b", re.IGNORECASE)
_MEET = re.compile(rf"\bwhen you meet\s+(?:the file\s+)?{_NAME}", re.IGNORECASE)
_TITLE = re.compile(r"\btitle:[ \t]*(\S[^\n]*)", re.IGNORECASE)
_FORBIDDEN = re.compile(r"\bnever use the word\s+[\"'“‘`]([^\"'”’`\n]+)[\"'”’`]", re.IGNORECASE)
_ORDER = re.compile(r"\border of sections:[ \t]*(\S[^\n]*)", re.IGNORECASE)
_LAST = re.compile(r"\blast line:[ \t]*(\S[^\n]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Directives:
    """What the report must keep to."""

    title: str = "Survey"
    forbidden: tuple[str, ...] = ()
    order: tuple[str, ...] = SECTIONS
    last_line: str | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """A survey as the user asked for it. Without `notes` the findings stay in the conversation."""

    folders: tuple[str, ...]
    report: str = "report.md"
    notes: str | None = "survey-notes.md"
    meet: str | None = None


def read_task(texts: Iterable[str]) -> Task | None:
    """The survey that the newest fitting message asks for, with what other messages add; None where none asks for
    one."""
    texts = list(texts)
    folders = next((found for text in reversed(texts) if (found := _folders(text))), ())
    if not folders:
        return None
    whole = "\n".join(texts)
    notes: str | None = _last(_NOTES, whole) or Task.__dataclass_fields__["notes"].default
    if _CONVERSATION.search(whole):
        notes = None
    return Task(folders, _last(_REPORT, whole) or "report.md", notes, _last(_MEET, whole))


def read_directives(texts: Iterable[str]) -> Directives:
    """The directives in these texts; later ones replace earlier ones."""
    whole = "\n".join(texts)
    words = dict.fromkeys(word.strip().lower() for word in _FORBIDDEN.findall(whole) if word.strip())
    named = [part.strip(" .`\"'").lower() for part in (_last(_ORDER, whole) or "").split(",")]
    wanted = [section for name in named for section in SECTIONS if section.lower() == name]
    order = tuple(dict.fromkeys((*wanted, *SECTIONS)))
    return Directives(_last(_TITLE, whole) or "Survey", tuple(words), order, _last(_LAST, whole))


def instruction_in(text: str) -> list[str]:
    """The lines of a text that hold a directive, as they stand, without the marks of a comment."""
    patterns = (_TITLE, _FORBIDDEN, _ORDER, _LAST)
    return [line.strip().lstrip("#/*- ") for line in text.split("\n") if any(p.search(line) for p in patterns)]


def _folders(text: str) -> tuple[str, ...]:
    found = _SURVEY.search(text)
    if found is None:
        return ()
    end = _SENTENCE_END.search(found.group(1))
    named = found.group(1)[: end.start()] if end else found.group(1)
    parts = (part.rstrip("/") for part in _FILLER.sub(" ", named).split())
    return tuple(part or "/" for part in parts) or (".",)


def _last(pattern: re.Pattern[str], text: str) -> str | None:
    found = pattern.findall(text)
    return found[-1].strip() if found else None
