"""Nothing from outside steers the terminal of whoever looks at it (B095): every command in a real one, over what is hostile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli.cli_rig import Rig as Shell
from cli.cli_screen import Terminal, terminal

from pod.cli.commands import COMMANDS
from tests.security.hostile import ALL, LINE, MARKUP, NEVER_SENT, SCREEN, UNSEEN, followed
from worker.testing.provider_server import Answer, Call, Http, ProviderServer
from worker.text import visible

pytestmark = pytest.mark.slow

TOOLS = ("read_file", "list_files", "write_file", "tasks", "shell")
WAITS = '[scope]\nread = ["."]\nwrite = ["."]\n'
NAME = "na\x1b[2Jme \u202etxt.\r.md"
"""A file's name may hold all but `/` and NUL."""


def seen_of(shell: Shell, *arguments: object, columns: int = 120, typed: str = "") -> str:
    """What a command puts on the terminal, with its result on record there."""
    with terminal(shell, *arguments, columns=columns) as screen:
        for line in typed:
            screen.read_until("Allow it?")
            screen.type(f"{line}\n" if line != "\x04" else line)
        screen.end()
        return screen.seen


@contextmanager
def printing(shell: Shell, program: str) -> Iterator[Terminal]:
    made = Terminal(shell, ["-c", program], 120)
    yield made
    made.process.wait(20)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shell, dict[str, str]]]:
    """Three pods in which everybody who could wrote something hostile: `a` ran, `f` failed, `w` waits for an answer."""
    shell = Shell(tmp_path_factory.mktemp("hostile"))
    shell.work.mkdir()
    (shell.work / NAME).write_text(ALL)
    (shell.work / "evil.md").write_text(f"{ALL}\nkept\n")
    calls = [
        Call("read_file", {"path": "evil.md"}), Call("read_file", {"path": ALL}), Call("list_files", {"path": "."}),
        Call(f"no{SCREEN}such", {ALL: ALL}), Call("tasks", {"add": [ALL]}),
        Call("shell", {"command": "printf 'x\\033[2Jy\\r\\033]0;t\\007z'"}), Call("read_file", {"path": NAME}),
    ]  # fmt: skip
    write = Call("write_file", {"path": "evil.md", "content": f"{LINE}\n{UNSEEN}\n{SCREEN}\nkept\n"})
    seen: dict[str, str] = {}
    with ProviderServer([Answer(ALL, calls=calls, pause=0.02), Answer(ALL, pause=0.02)]) as server:
        manifest = shell.manifest(server, tools=TOOLS, more=WAITS)
        seen["run"] = seen_of(shell, "run", manifest, ALL.replace("\x00", ""), "-v", "--name", "a")
    error = Http(400, {"error": {"message": ALL, "code": ALL, "type": ALL}})
    with ProviderServer([error]) as server:
        seen["failed"] = seen_of(shell, "run", shell.manifest(server), "x", "-v", "--name", "f")
    with ProviderServer([Answer(ALL, calls=[write])]) as server:
        manifest = shell.manifest(server, tools=TOOLS, profile="safe", more=WAITS, name="w.toml")
        seen["asked"] = seen_of(shell, "run", manifest, "x", "--name", "w", typed="?\x04")
    yield shell, seen


def test_the_control_a_terminal_follows_what_is_printed_raw(shell: Shell) -> None:
    with printing(shell, f"print({ALL!r})") as screen:
        screen.end()
    assert {"\x1b", "\x9b", "\x07", "\r", "\x08", "\u202e", "\u200b", "\ufeff", "\U000e0041", "\u2028"} <= followed(
        screen.seen
    )
    assert followed(screen.seen, own=True) >= {"\x1b", "\x9b", "\u202e"}


@pytest.mark.parametrize("what", ["run", "failed", "asked"])
def test_b095_a_run_writes_only_its_own_sequences(told: tuple[Shell, dict[str, str]], what: str) -> None:
    """The live display, the questions with their diff, and what went wrong."""
    seen = told[1][what]
    assert not followed(seen, own=True)
    assert not [sequence for sequence in NEVER_SENT if sequence in seen]
    assert "http://evil.example\x1b" not in seen and "harmless\r" not in seen
    assert {"run": "finished", "failed": "the run failed", "asked": "Allow it?"}[what] in seen


def test_b095_a_question_shows_each_line_of_its_diff_with_what_would_hide_it(
    told: tuple[Shell, dict[str, str]],
) -> None:
    seen = told[1]["asked"].replace("\r\n", "\n")
    for line in (LINE, UNSEEN, SCREEN):
        assert f"  +{visible(line)}\n" in seen
    assert "harmless\\x0drm -rf /\\x08" in seen and "\\u202eecho\\u202c" in seen and f"  -{visible(ALL)}\n" in seen


def test_markup_of_the_display_is_shown_as_it_is_written(told: tuple[Shell, dict[str, str]]) -> None:
    assert MARKUP in told[1]["run"]
    assert "\x1b[1mloud" not in told[1]["run"]


LOOKS = [
    ("ls",), ("ls", "--json"), ("ls", "--names"), ("show", "a"), ("show", "a", "--json"), ("show", "w"), ("show", "f"),
    ("log", "a"), ("log", "a", "--json"), ("log", "w"), ("log", "f"), ("inspect", "a"), ("inspect", "a", "--json"),
    ("inspect", "f"), ("inspect", "a", "--html", "-"), ("context", "a"), ("context", "a", "--json"), ("context", "w"),
    ("compact", "a", "--dry-run"), ("doctor",), ("doctor", "a", "--json"), ("deny", "w", "no such \x1b[2J\u202e"),
    ("approve", "w", "--all", SCREEN), ("interrupt", "a"), ("stop", "a"), ("send", "a", UNSEEN + SCREEN), ("export", "a"),
    ("import", f"none{SCREEN.replace('/', '')}"), ("gc",), ("models",), ("tools",), ("completion", "bash"),
    ("manifest", "show", "{odd}"), ("manifest", "show", "{odd}", "--toml"), ("manifest", "check", "{odd}"),
    ("manifest", "check", "{wrong}"), ("manifest", "new", SCREEN), ("run", "{wrong}", "x"), ("run", SCREEN, "x"), ("run", "{odd}", "x"),
    ("show", UNSEEN), ("log", "a", "--item", SCREEN), ("show", "a", "--artifact", SCREEN), (SCREEN,), ("ls", f"--{UNSEEN}"),
    ("resume", "f", "--set", f"model.{SCREEN}=1"), ("resume", "f", "x", "--manifest", "{odd}"), ("help", SCREEN),
    ("rewind", "a", "--to", UNSEEN), ("fork", "a", SCREEN), ("rm", SCREEN), ("clear", "f"), ("-V",), ("trust", SCREEN), ("trust", "--list"),
    ("batch", SCREEN, "--manifest", "{odd}"), ("batch", "report", SCREEN), ("node", UNSEEN),
    ("serve", "--host", "0.0.0.0", "--manifests", SCREEN), ("queue", "ls", "--phase", SCREEN),
    ("queue", "schedule", "add", SCREEN, "--cron", SCREEN, "--manifest", "{odd}", "--task", "x"), ("queue", "limit", SCREEN),
    ("queue", "schedule", "add", "s", "--cron", "@daily", "--zone", SCREEN, "--manifest", "{odd}", "--task", "x"),
    ("queue", "schedule", "show", SCREEN), ("queue", "schedule", "pause", UNSEEN), ("queue", "show", SCREEN),
    ("batch", "{wrong}", "--manifest", "{odd}", "--name", UNSEEN),
]  # fmt: skip
"""Every command, with what is hostile in the session, in a manifest or in its own arguments."""

ODD = f"""
version = 1
[worker]
system_prompt = {json.dumps(ALL)}
instructions = []
[model]
name = "openai-chat:x"
base_url = "http://127.0.0.1:9/v1"
api_key_env = "TEST_KEY"
context_window = 60000
max_output_tokens = 2000
[retry]
max_attempts = 1
[[permissions.rules]]
tool = "shell"
action = "deny"
command = {json.dumps(ALL)}
"""


def test_each_command_is_looked_at() -> None:
    assert {look[0] for look in LOOKS} >= set(COMMANDS)


def manifests(shell: Shell) -> dict[str, Path]:
    odd, wrong = shell.root / "odd.toml", shell.root / f"wrong\x1b[2J{UNSEEN}.toml"
    odd.write_text(ODD.replace("\\u0000", " "))
    wrong.write_text(
        f'version = 1\n[model]\nname = "offline:x"\n{json.dumps(ALL)} = 1\n[{json.dumps(SCREEN)}]\nx = 2\n'
    )
    return {"odd": odd, "wrong": wrong}


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: visible(" ".join(look))[:40])
def test_b095_no_command_hands_on_what_steers_a_terminal(
    look: tuple[str, ...], told: tuple[Shell, dict[str, str]]
) -> None:
    shell, _ = told
    made = {f"{{{name}}}": str(path) for name, path in manifests(shell).items()}
    seen = seen_of(shell, *(made.get(word, word.replace("\x00", "")) for word in look))
    live = look[0] in {"run", "resume"}
    assert seen and not followed(seen, own=live), seen
    assert not [sequence for sequence in NEVER_SENT if sequence in seen]


def test_b095_items_and_artifacts_are_text_on_a_terminal_and_themselves_in_a_pipe(
    told: tuple[Shell, dict[str, str]],
) -> None:
    shell, _ = told
    for entry in range(1, 20):
        assert not followed(seen_of(shell, "show", "a", "--item", entry))
    folder = shell.home / "pods" / "a" / "artifacts"
    folder.mkdir(exist_ok=True)
    (folder / "odd.txt").write_text(ALL)
    assert not followed(seen_of(shell, "show", "a", "--artifact", "odd.txt"))
    assert shell.pod("show", "a", "--artifact", "odd.txt").out == ALL.encode()


def test_a_pipe_and_a_file_get_the_answer_unchanged_and_a_terminal_gets_it_visible(shell: Shell) -> None:
    target = shell.root / "out.txt"
    shell.fresh = False
    with ProviderServer([Answer(ALL)] * 3) as server:
        manifest = shell.manifest(server)
        piped = shell.pod("run", manifest, "x", "-p")
        assert shell.pod("run", manifest, "x", "-p", "-o", target).code == 0
        seen = seen_of(shell, "run", manifest, "x", "-p")
    assert piped.out == f"{ALL}\n".encode() == target.read_bytes()
    assert visible(ALL) in seen and not followed(seen)
