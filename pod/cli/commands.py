"""All commands: what each is for, its arguments, an example, and where it is done.

Loads nothing but what one command needs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from pod.cli.numbers import entry, seconds
from pod.cli.telemetry import add_otel

if TYPE_CHECKING:
    from argparse import ArgumentParser, _ArgumentGroup  # pyright: ignore[reportPrivateUsage]

NEW_MODEL = "anthropic:claude-sonnet-5-5"
"""The model that a new manifest names unless another one is asked for."""

Arguments: TypeAlias = Callable[["ArgumentParser"], None]
Action: TypeAlias = Callable[[Any], int]


class Command(NamedTuple):
    """One command.

    `place` is `module:function` below `pod.cli`; it takes the parsed arguments and returns the exit code.
    """

    name: str
    summary: str
    place: str
    example: str
    arguments: Arguments
    about: str = ""

    def parser(self) -> ArgumentParser:
        """The parser of this command alone."""
        from pod.cli.parser import Parser

        parser = Parser(f"pod {self.name}", self.about or self.summary, self.example)
        self.arguments(parser)
        return parser

    def load(self) -> Action:
        """What does the command."""
        module, _, name = self.place.partition(":")
        return cast("Action", getattr(importlib.import_module(f"pod.cli.{module}"), name))


def _pod(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the pod's name; `pod ls` lists them")


def _json(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def _output(parser: ArgumentParser) -> _ArgumentGroup:
    group = parser.add_argument_group("output")
    group.add_argument("-p", "--print", action="store_true", help="no questions and no live display; for scripts")
    group.add_argument(
        "--output-format", choices=("text", "json", "stream-json"), default=None,
        help="text: the final text. json: the whole result. stream-json: each event as a line, the result last",
    )  # fmt: skip
    group.add_argument("--json", action="store_true", help="the same as --output-format json")
    group.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="write there what else goes to standard output; "
        "an existing file is replaced once there is something to write",
    )
    group.add_argument("-q", "--quiet", action="store_true", help="no progress on standard error")
    group.add_argument("-v", "--verbose", action="store_true", help="more progress on standard error")
    return group


def _schema(parser: ArgumentParser) -> None:
    _output(parser).add_argument(
        "--output-schema", metavar="FILE",
        help="a JSON Schema that the answer must meet; the JSON value is the output",
    )  # fmt: skip


def _limits(parser: ArgumentParser, title: str, lasts: str) -> None:
    group = parser.add_argument_group(title)
    group.add_argument("--model", metavar="PROVIDER:MODEL", help="another model")
    group.add_argument(
        "--profile", choices=("safe", "workspace-write", "read-only", "unattended"), help="another profile"
    )
    group.add_argument("--max-requests", type=int, metavar="N", help=f"requests to the model in one run; {lasts}")
    group.add_argument("--max-cost", type=float, metavar="USD", help=f"US dollars of one run; {lasts}")
    group.add_argument(
        "--timeout", type=float, metavar="SECONDS", help=f"time of one run, without what it waits for a human; {lasts}"
    )
    group.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="any other key; may be repeated"
    )


def _backend(parser: ArgumentParser) -> None:
    parser.add_argument("--wait", action="store_true", help="wait while another process writes to the pod")
    parser.add_argument("--asyncio", action="store_true", help="run on asyncio instead of trio")
    add_otel(parser)


def _run(parser: ArgumentParser) -> None:
    parser.add_argument("manifest", metavar="MANIFEST", help="a file, or the name of a shipped manifest")
    parser.add_argument("task", metavar="TASK", nargs="?", help="what to do; `-` reads it from standard input")
    parser.add_argument("-C", "--cwd", metavar="DIR", help="the agent's working folder (default: this one)")
    parser.add_argument("--name", metavar="NAME", help="the pod's name; an existing one goes on")
    parser.add_argument(
        "-c", "--continue", dest="continue_", action="store_true",
        help="go on with the newest pod of this manifest in this working folder",
    )  # fmt: skip
    parser.add_argument("--ephemeral", action="store_true", help="keep nothing: the pod is gone at the end")
    _limits(
        parser, "instead of what the manifest says; kept with the pod until it is\ngiven a manifest again (`pod run`, "
        "`pod resume --manifest`)",
        "kept with the pod until it is given a manifest again; `pod resume` takes another one once",
    )  # fmt: skip
    _schema(parser)
    _backend(parser)


def _batch(parser: ArgumentParser) -> None:
    from pod.cli.batch_arguments import add

    add(parser)


def _serve(parser: ArgumentParser) -> None:
    from pod.cli.serve_arguments import add_serve

    add_serve(parser)


def _node(parser: ArgumentParser) -> None:
    from pod.cli.queue_arguments import add_node

    add_node(parser)


def _queue(parser: ArgumentParser) -> None:
    from pod.cli.queue_arguments import add_queue

    add_queue(parser)


def _resume(parser: ArgumentParser) -> None:
    _pod(parser)
    parser.add_argument("task", metavar="INPUT", nargs="?", help="a new message; `-` reads it from standard input")
    parser.add_argument(
        "--manifest", metavar="MANIFEST", help="go on with another manifest; what changes is shown and recorded"
    )
    parser.add_argument("-C", "--cwd", metavar="DIR", help="another working folder, from now on; its scope moves along")
    _limits(
        parser, "instead of what the pod's manifest says",
        "this time only (with --manifest for good)",
    )  # fmt: skip
    _schema(parser)
    _backend(parser)


def _send(parser: ArgumentParser) -> None:
    _pod(parser)
    parser.add_argument("text", metavar="TEXT", help="the message; `-` reads it from standard input")
    parser.add_argument("--id", metavar="KEY", help="an idempotency key: a message is stored once under it")
    _json(parser)


def _answer(parser: ArgumentParser, without: str) -> None:
    _pod(parser)
    parser.add_argument(
        "id",
        metavar="ID",
        nargs="?",
        help=f"the question's id, or enough of its beginning or end; left out: {without}",
    )
    parser.add_argument("--all", action="store_true", help="answer all that is asked")
    parser.add_argument("--resume", action="store_true", help="and go on with the run")
    _output(parser)
    _backend(parser)


def _approve(parser: ArgumentParser) -> None:
    _answer(parser, "what is asked is shown and, on a terminal, put to you one by one; elsewhere nothing is allowed")
    parser.add_argument(
        "--scope",
        choices=("once", "run"),
        help="this call alone, or all like it in this run (default: as it was asked: "
        "the run for writes in scope, else once)",
    )


def _deny(parser: ArgumentParser) -> None:
    _answer(parser, "the one that is open")
    parser.add_argument("--message", metavar="TEXT", default="", help="what the model is told")


def _compact(parser: ArgumentParser) -> None:
    _pod(parser)
    parser.add_argument("--dry-run", action="store_true", help="only show what would be done")
    parser.add_argument("--focus", metavar="TEXT", help="what the summary should look at above all")
    _output(parser)
    _backend(parser)


def _look(parser: ArgumentParser) -> None:
    _pod(parser)
    _json(parser)


def _inspect(parser: ArgumentParser) -> None:
    _pod(parser)
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--html", metavar="FILE",
        help="write one page of HTML with the figures as charts, which asks for nothing from anywhere; an existing file "
        "is replaced, `-` is standard output",
    )  # fmt: skip
    group.add_argument("--json", action="store_true", help="print JSON")


_ITEM = "one entry's items whole, as they were made: an entry's number, an item's id, or that of a call"


def _show(parser: ArgumentParser) -> None:
    _look(parser)
    group = parser.add_argument_group("one thing of the session instead").add_mutually_exclusive_group()
    group.add_argument("--summary", action="store_true", help="the summary that the active segment began with")
    group.add_argument("--item", metavar="ID", help=_ITEM)
    group.add_argument("--artifact", metavar="ARTIFACT", help="output that was kept aside, as it is")


def _log(parser: ArgumentParser) -> None:
    _pod(parser)
    parser.add_argument("--item", metavar="ID", help=_ITEM)
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what comes, until interrupted")
    parser.add_argument("--after", type=entry, default=0, metavar="SEQ", help="only what came after this entry")
    _json(parser)


def _stop(parser: ArgumentParser) -> None:
    _pod(parser)
    parser.add_argument(
        "--timeout", type=seconds, default=30.0, metavar="SECONDS", help="how long to wait for its end (default 30)"
    )


def _fork(parser: ArgumentParser) -> None:
    _pod(parser)
    parser.add_argument("new", metavar="NEW", help="the new pod's name")
    parser.add_argument("--at", type=entry, metavar="SEQ", help="the entry to fork behind (default: the last)")


def _rewind(parser: ArgumentParser) -> None:
    _pod(parser)
    parser.add_argument(
        "--to", type=entry, required=True, metavar="SEQ", help="the entry to go back to; `pod log` shows numbers"
    )


def _gc(parser: ArgumentParser) -> None:
    parser.add_argument("--older-than", metavar="AGE", help="only pods without activity for so long: 12h, 30d, 8w")
    parser.add_argument(
        "--all-ended", action="store_true",
        help="also pods whose last run failed, was stopped or came to a limit, and pods without a run",
    )  # fmt: skip
    parser.add_argument("--force", action="store_true", help="do it; without this nothing is removed")


def _ls(parser: ArgumentParser) -> None:
    parser.add_argument(
        "pods", metavar="NAME", nargs="?",
        help="a pod and those below it: `nightly` lists nightly/0, nightly/1 and so on; or a pattern, such as 'night*'",
    )  # fmt: skip
    parser.add_argument("--names", action="store_true", help="only the names, one a line")
    _json(parser)


def _export(parser: ArgumentParser) -> None:
    _pod(parser)
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="where to; an existing file is replaced (default: standard output)"
    )


def _import(parser: ArgumentParser) -> None:
    parser.add_argument(
        "file", metavar="FILE", nargs="?",
        help="what `pod export` wrote; `-` reads it from standard input. With --from: a pod's name or a pattern, such as 'nightly/*' "
        "(default: all pods)",
    )  # fmt: skip
    parser.add_argument(
        "--from", dest="other", metavar="HOME",
        help="copy pods straight from another home: a folder, or the address of a database; what is here already stays as it is",
    )  # fmt: skip
    parser.add_argument("--name", metavar="NEW", help="another name for the pod")


def _models(parser: ArgumentParser) -> None:
    parser.add_argument("--manifest", metavar="MANIFEST", help="only the models that this manifest may ask")
    _json(parser)


def _completion(parser: ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", choices=("bash", "zsh", "fish"), help="bash, zsh or fish")


def _tools(parser: ArgumentParser) -> None:
    parser.add_argument(
        "manifest",
        metavar="MANIFEST",
        nargs="?",
        help="the tools that an agent of this manifest has, those of its servers too",
    )
    parser.add_argument("-C", dest="cwd", metavar="DIR", help="the working folder")
    _json(parser)


def _manifest(parser: ArgumentParser) -> None:
    from pod.cli.parser import ACTIONS, ActionParser

    inner = parser.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=ActionParser)
    actions = {
        words.partition(" ")[2]: inner.add_parser(words.partition(" ")[2], help=about)
        for words, (about, _) in ACTIONS.items()
        if words.startswith("manifest ")
    }
    new = actions["new"]
    new.add_argument(
        "what", metavar="NAME_OR_FILE", nargs="?",
        help="a file to write, ending with .toml (an existing one is kept); the name of a shipped manifest prints "
        "that one; with any other word the text goes to standard output",
    )  # fmt: skip
    new.add_argument(
        "--name", help="the pod's name in it: every run goes on with that pod (default: none, each run makes a pod)"
    )
    new.add_argument(
        "--model", metavar="PROVIDER:MODEL",
        help=f"its model (default: {NEW_MODEL}); offline:surveyor makes one that runs without a key",
    )  # fmt: skip
    new.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="any other key; may be repeated"
    )
    new.add_argument("--full", action="store_true", help="with every key, not only those that are changed first")
    for name in ("check", "show"):
        one = actions[name]
        one.add_argument("manifest", metavar="MANIFEST", help="a file, or the name of a shipped manifest")
        one.add_argument("-C", "--cwd", metavar="DIR", help="the working folder")
        one.add_argument(
            "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="any key; may be repeated"
        )
        one.add_argument("--json", action="store_true", help="print JSON")
    actions["show"].add_argument("--toml", action="store_true", help="as TOML")


def _trust(parser: ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", nargs="?", help="the working folder (default: this one)")
    group = parser.add_argument_group("something else instead").add_mutually_exclusive_group()
    group.add_argument("--list", action="store_true", help="the folders that were decided about, and how each stands")
    group.add_argument("--diff", action="store_true", help="what changed since the folder was trusted")
    group.add_argument("--remove", action="store_true", help="take the decision back")
    group.add_argument(
        "--ignore", action="store_true", help="leave the folder's configuration out, what it tightens as well"
    )
    parser.add_argument("--yes", action="store_true", help="trust what is shown without being asked")
    _json(parser)


def _doctor(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="one pod (default: all)")
    parser.add_argument("--repair", action="store_true", help="put damage aside, make a lost pod.json anew")
    _json(parser)


_ALL = (
    Command("run", "run a task with a manifest", "run:run",
            'pod run coder.toml "Fix the flaky test" --max-cost 5', _run),
    Command("resume", "go on with a pod, with or without a new message", "run:resume", "pod resume fix-flaky", _resume),
    Command("batch", "run many tasks with one manifest; the same command again goes on", "batch:batch",
            "pod batch tickets.jsonl --manifest batch-triage --concurrency 20 --max-cost 25", _batch,
            "run many tasks with one manifest, each in a pod of its own. Results are written as tasks end. Stopped or killed, the "
            "same command goes on: what ended is not done again, what was begun is gone on with. Exit code 0 only where all "
            "finished. `pod batch report BATCH` shows the figures of a batch again"),
    Command("serve", "serve pods through HTTP, with a page for the browser", "serve:serve",
            "pod serve --manifests ./manifests --port 8421", _serve,
            "serve the pods of a home through HTTP until SIGTERM or Ctrl-C: make them from the manifests of one folder, talk to them, "
            "answer their questions, follow their events. What is asked of a pod is durable before it is answered. Listening on this "
            "machine alone, a token is made and shown where none is given; elsewhere $POD_TOKEN or --tokens is needed. The first "
            "signal lets each run come to a halt before its next request"),
    Command("node", "serve queues: run what `pod batch --engine dbos` submits", "node:node",
            "pod node --queue nightly --concurrency 20", _node,
            "serve queues until SIGTERM or Ctrl-C: run the pods that were submitted to them, in their folders, from their logs on. "
            "Any number of nodes may serve a queue, wherever the home is shared; what a node leaves that is killed, others take over. The first "
            "signal has each run end before its next request, the second ends at once; all is resumable"),
    Command("queue", "what is on the queues; cancel, retry, limits, schedules", "queue:queue", "pod queue ls", _queue),
    Command("send", "leave a message for a pod; durable when it returns", "sending:send",
            'pod send fix-flaky "Keep the public API"', _send),
    Command("ls", "list pods", "listing:ls", "pod ls --json", _ls,
            "list pods: how each stands, when it was last active, its requests and cost (those of compactions "
            "included). docs/cli.md says what each status means (Status words)"),
    Command("show", "one pod: state, figures, what waits", "showing:show", "pod show fix-flaky", _show),
    Command("context", "what fills a pod's context, and its limits", "contexts:context",
            "pod context fix-flaky", _look,
            "what fills a pod's context: window, ceiling and triggers with their origin, the parts and their tokens, the "
            "summary and where it comes from, and what would go next, and why"),
    Command("compact", "compact a pod's context now", "compacting:compact",
            'pod compact fix-flaky --focus "the failing tests"', _compact),
    Command("inspect", "the session as a timeline with figures", "inspecting:inspect",
            "pod inspect fix-flaky --html fix-flaky.html", _inspect),
    Command("log", "the events of a session", "logs:log", "pod log fix-flaky -f", _log),
    Command("stop", "end a pod's run; it can be resumed", "sending:stop", "pod stop fix-flaky", _stop),
    Command("interrupt", "end a pod's run at its next request", "sending:interrupt", "pod interrupt fix-flaky", _pod),
    Command("approve", "answer a question with yes", "answering:approve", "pod approve fix-flaky --resume", _approve),
    Command("deny", "answer a question with no", "answering:deny",
            'pod deny fix-flaky --message "use the copy" --resume', _deny),
    Command("fork", "a new pod from a point of another", "changing:fork",
            "pod fork fix-flaky other-way --at 120", _fork,
            "a new pod from a point of another, where no call is open and no input waits for its reply; another entry "
            "is rounded down. Inside a run, `pod resume` goes on with its task from there. Both pods have the same "
            "working folder, and its files stay as they are. The new pod keeps the logs of before, which its agent can "
            "look things up in; its requests and cost count from nothing, the numbers of its entries go on"),
    Command("rewind", "take a pod back to an earlier point", "changing:rewind",
            "pod rewind fix-flaky --to 120", _rewind,
            "take a pod back to an earlier point of its session, where no call is open and no input waits for its "
            "reply; another entry is rounded down. Inside a run, `pod resume` goes on with its task from there. The "
            "files in the working folder stay as they are: what the agent wrote since is not undone"),
    Command("clear", "start a pod's session anew; nothing of before is carried over", "changing:clear",
            "pod clear fix-flaky", _pod,
            "start a pod's session anew; nothing of before is carried over but the totals. No command and no tool shows the logs "
            "of before any more, in a fork those of its past neither; the files stay on disk until `pod rm`. The files in the "
            "working folder stay, the agent's notes (context-notes.md) too: new windows show only what is added to them from then on"),
    Command("rm", "remove a pod for good", "changing:rm", "pod rm fix-flaky", _pod,
            "remove a pod for good, at once: its logs, artifacts and texts, not the files of its working folder. While "
            "a process writes to it, it is refused. A pod that can't be read goes too"),
    Command("gc", "remove finished pods that nothing was done with for long", "changing:gc",
            "pod gc --older-than 30d --force", _gc,
            "remove pods whose last run finished and that nothing was done with for long. What waits, is queued, "
            "answered, stopped short, failed, was cancelled or came to a limit stays (see --all-ended). What a "
            "process left that was killed while it imported (.import-*.tmp) or made a pod goes as well"),
    Command("manifest", "make, check and show manifests", "manifests:manifest",
            "pod manifest check coder.toml", _manifest),
    Command("export", "write a pod into one portable file", "transferring:export",
            "pod export fix-flaky -o fix-flaky.pod.tar", _export,
            "write a pod into one portable file: its session with all that belongs to it, and hashes of everything. "
            "What was cleared or rewound stays behind, and so do background jobs"),
    Command("import", "make a pod of an exported file", "transferring:import_",
            "pod import fix-flaky.pod.tar --name fix-flaky-2", _import,
            "make a pod of an exported file, or pods of those of another home (--from). Every hash is checked before anything "
            "is placed. The pod brings its manifest, permissions included: import what you trust"),
    Command("models", "known models, windows and prices", "catalog:models", "pod models --manifest coder.toml", _models,
            "known models with window, longest output and price, each with its source and date"),
    Command("tools", "the tools that come with the runtime", "catalog:tools", "pod tools coder.toml", _tools,
            "the tools that come with the runtime; or those of a manifest: its servers are started for a moment, and those "
            "that fail are named (exit code 1)"),
    Command("trust", "let a folder's own configuration do more than tighten", "trusting:trust",
            "pod trust ~/src/site", _trust,
            "show what the .pod/config.toml of a working folder asks for, and trust it as it stands now. Without that it may "
            "only tighten; once its content changes it is asked about again. Trust reaches no other folder, below or above"),
    Command("doctor", "look for damage, and repair it", "doctoring:doctor", "pod doctor fix-flaky --repair", _doctor,
            "look for damage, and repair it. The exit code is 1 where something is damaged or lost and stays so; an older "
            "log that is gone can't be mended, and a pod goes on without it"),
    Command("completion", "completion for bash, zsh or fish", "completing:completion",
            "pod completion bash", _completion,
            'print a completion script. In ~/.bashrc: eval "$(pod completion bash)"; in ~/.zshrc, behind compinit: '
            'eval "$(pod completion zsh)"; in fish: pod completion fish | source'),
)  # fmt: skip

COMMANDS: dict[str, Command] = {command.name: command for command in _ALL}
"""All commands by name."""

GROUPS: dict[str, tuple[str, ...]] = {
    "run": ("run", "resume", "batch", "serve", "node", "queue", "send", "stop", "interrupt", "approve", "deny"),
    "look": ("ls", "show", "context", "inspect", "log"),
    "change": ("compact", "fork", "rewind", "clear", "export", "import", "rm", "gc", "doctor"),
    "set up": ("manifest", "trust", "models", "tools", "completion"),
}
"""The commands as the help lists them."""
