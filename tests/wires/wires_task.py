"""The long task: sixty requests on real files, with each fault of the probe matrix once in the way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wires.wires_rig import Agent, Ran, manifest, run_pod

from pod import Pod
from worker.testing.provider_server import Answer, Call, Drop, Empty, ErrorEvent, Http, ProviderServer, Step
from worker.testing.provider_wires import WireName, error_body, overflow_body
from worker.tools import Tool, tool

STEPS = 60
MODULES = 12
STEER_AT = 29
WINDOW = 60_000
OUTPUT = 2_000
TRIGGER = 24_000
IDLE = 0.6
"""Seconds without content after which a stream counts as stalled."""

DIRECTIVE = "Never rename a module."
TASK = f"""Look through the modules of this project – all of them – and keep notes.md.

{DIRECTIVE} Write “Zeile für Zeile”: 日本語, emoji 🧪👩‍🔬, a tab\there, C:\\temp, "quotes" and {{"json": [1, 2]}}.
Trailing blanks stay:   \nand so does the empty line at the end.

"""
STEERING = "One thing more: start each note with a dash – ja, wirklich. 🙏"


def module(number: int) -> str:
    """A module of some 11 kB."""
    lines = [f'"""Module {number}: rules of the {number}th kind."""', f"MARK = {number}", "LEVEL = 0", ""]
    for i in range(160):
        lines += [f"def rule_{number}_{i}(value: int) -> int:", f"    return value * {i + number} + {i * 7 % 13}", ""]
    return "\n".join(lines)


def prepare(folder: Path) -> None:
    """The project in `folder/work`."""
    (folder / "work" / "mods").mkdir(parents=True)
    for number in range(MODULES):
        (folder / "work" / "mods" / f"m{number}.py").write_text(module(number))


def note(number: int) -> str:
    """The line that step `number` appends."""
    return f"- note {number}: geprüft ✔ — 数え{number}\n"


def steps() -> list[Answer]:
    """The agent's replies. Every one thinks; calls are single or in batches, some of them wrong."""
    made: list[Answer] = []
    for k in range(STEPS - 1):
        path = f"mods/m{k % MODULES}.py"
        match k % 6:
            case 0:
                calls = [
                    Call("list_files", {"path": "mods"}),
                    Call("search_text", {"pattern": f"rule_{k % MODULES}_8", "path": "mods"}),
                    Call("append_file", {"path": "notes.md", "content": note(k)}),
                ]
            case 1:
                calls = [Call("read_file", {"path": path})]
            case 2:
                before, changed = (
                    f"MARK = {(k - 1) % MODULES}\nLEVEL = {k // 12}\n",
                    f"MARK = {(k - 1) % MODULES}\nLEVEL = {k // 12 + 1}\n",
                )
                calls = [Call("edit_file", {"path": f"mods/m{(k - 1) % MODULES}.py", "old": before, "new": changed})]
            case 3:
                calls = [Call("read_file", {"path": path}), Call("read_file", {"path": f"mods/missing_{k}.py"})]
            case 4:
                calls = [
                    Call("append_file", {"path": "notes.md", "content": note(k)}),
                    Call("read_fil", {"path": path}),
                ]
            case _:
                calls = [
                    Call("write_file", {"path": f"out/step_{k}.txt", "content": f"step {k}: {'ä' * 50}\n"}),
                    Call("read_file", {"path": path, "offset": 1, "limit": 60}),
                ]
        if k == STEER_AT:
            calls.append(Call("ring", {}))
        text = "" if k % 4 == 3 else f"Step {k} – weiter geht’s."
        split = {0: 1, 5: 3, 10: 7}.get(k % 20, 0)
        made.append(Answer(text, calls=calls, reasoning=f"In step {k} I think: 考え {k}.", split=split, pings=k % 3))
    made.append(Answer("All modules are looked through.", reasoning="That was the last one."))
    return made


def faults(wire: WireName) -> dict[int, list[tuple[str, Step]]]:
    """Each fault of the matrix once, by name; the step number that it stands before."""

    def body(kind: str) -> dict[str, Any]:
        return error_body(wire, "the scripted provider is not well", kind=kind)

    busy = (
        {"type": "overloaded_error", "message": "busy"}
        if wire != "openai"
        else {"code": "overloaded", "message": "busy"}
    )
    partial = Answer(
        "This reply is", calls=[Call("append_file", {"path": "notes.md", "content": "- never\n"})], reasoning="cut"
    )
    matrix: list[tuple[int, str, Step]] = [
        (2, "rate_limited", Http(429, body("rate_limit_error"), {"retry-after": "0.02"})),
        (4, "provider_down 500", Http(500, body("api_error"))),
        (6, "overloaded 529", Http(529, body("overloaded_error"))),
        (6, "overloaded 503", Http(503, "<html><body>Service Unavailable</body></html>")),
        (9, "provider_down 408", Http(408, body("timeout_error"))),
        (11, "provider_down 409", Http(409, body("conflict"))),
        (13, "provider_down drop", Drop()),
        (15, "stream_broken cut", _cut(partial, "cut")),
        (18, "stream_broken reset", _cut(partial, "reset")),
        (21, "stream_broken eof", _cut(partial, "eof")),
        (24, "overloaded event", ErrorEvent(busy, before="This")),
        (27, "provider_down json", Http(200, body("server_error"))),
        (33, "overflow empty stream", Empty()),
        (36, "stream_stalled", _cut(partial, "silence")),
    ]
    found: dict[int, list[tuple[str, Step]]] = {}
    for at, name, step in matrix:
        found.setdefault(at, []).append((name, step))
    return found


def _cut(answer: Answer, fault: Any) -> Answer:
    return Answer(answer.text, calls=answer.calls, reasoning=answer.reasoning, fault=fault)


def bell(holder: list[Pod]) -> Sequence[Tool]:
    """A tool that lets the user say something while the agent works."""

    @tool(effect="read")
    async def ring() -> str:
        """Rings, so that the user says something."""
        await holder[0].send(STEERING)
        return "The user was rung for."

    return [ring]


async def long_task(wire: WireName, source: str, folder: Path) -> Ran:
    """The whole task to its end."""
    prepare(folder)
    agent = Agent(
        wire,
        steps(),
        faults(wire),
        overflow=Http(400, overflow_body(wire, 31_000, 30_000)),
        overflow_from=38,
        overflow_bytes=4 * 14_000,
        worker_faults=[("overloaded 529", Http(529, error_body(wire, "busy", kind="overloaded_error")))],
        directive=DIRECTIVE,
        reread="mods/m1.py",
    )
    bound = wire != "openai-chat"
    with ProviderServer(agent, wire=wire, strict=True, bind_reasoning=bound, max_input_tokens=WINDOW) as server:
        made = manifest(
            server,
            model={"context_window": WINDOW, "max_output_tokens": OUTPUT, "idle_timeout": IDLE},
            compaction={
                "request_threshold": TRIGGER,
                "source": source,
                "retained_tokens": 3_000,
                "summary_target_tokens": 500,
                "summary_max_tokens": 1_000,
                "auto_read_budget_tokens": 1_000,
                "worker_context_max_tokens": 20_000,
                "final_reserve_tokens": 1_500,
                "finish_warning_remaining_tokens": 2_000,
            },
            prune={"protected_tokens": 6_000, "min_savings": 12_000, "min_savings_floor": 6_000},
        )
        return await run_pod(server, agent, made, folder, TASK, tools=bell)
