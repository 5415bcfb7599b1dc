"""What `docs/hooks.md` says before the reference."""

from __future__ import annotations

HEAD = '''\
# Hooks

A hook is a program or a function of yours that is asked at an event: before a call, after it, around a compaction, when a run begins, when
the agent wants to end. It can stop what it is asked about, and say why. It can only tighten: nothing that a hook says allows what the
permissions deny or ask about.

```toml
version = 1

[model]
name = "offline:surveyor"

[tools]
enable = ["read_file", "write_file"]

[[hooks]]
event = "PreToolUse"
match = "write_file"
command = ["python3", "/etc/pod/no_migrations.py"]
timeout = 10

[[hooks]]
event = "Stop"
command = ["sh", "-c", "make test >&2"]
on_error = "block"
max_blocks = 5
```

A program gets one JSON object on its standard input (below, and in `hooks.schema.json`) and answers by its exit code:

| exit code | meaning |
| --- | --- |
| 0 | go on, where standard output is empty; else it is a JSON object with `decision`, `reason`, `additional_context` |
| 2 | block; standard error is the reason |
| any other, a signal, no answer in time, not found, output that is none of these | no answer: `on_error` says what that means |

`on_error` is by default `block` for `PreToolUse` and `PreCompact`, because a guard that can't speak must not let through what it guards,
and `ignore` for the others: there it is done already, or a broken hook would keep every run from beginning or ending. `make` above ends
with 2 where a test fails; what it prints goes to standard error, so that standard output stays empty where all is well.

`{"decision": "deny", "reason": "..."}` blocks; `{"additional_context": "..."}` is put before the model after `RunStart`, `PostToolUse` and
`PostCompact`. `decision` is `allow` (which only means: go on), `deny` or `block`. Unknown keys, other types and plain text on standard
output are no answer, so that a slip does not let a call through. Of a reason 2,000 characters are kept, of a context 4,000, both without
control characters. What the model is told of a hook is data: it has no authority.

## What holds

- **Order.** Hooks are asked in the order in which they stand, the manifest's before those given in code; `[[hooks]]` of all layers add up.
  The first that blocks ends the round, but after something was done (`Post...`) each is heard.
- **Permissions.** A hook sees only calls that the permissions allow or ask about, and sees them before a human does: nobody is asked about
  a call that a hook refuses. Once a human has approved a call, the hook is asked again, right before it runs. Each refusal is a
  `permission.denied`.
- **Processes.** A program runs in the working folder, in a process group of its own, with the environment of the tool `shell` (no keys).
  When it ends, takes too long or the run is cancelled, all that it started is ended too. What a killed runtime left of one is ended at the
  next start.
- **Secrets.** Input, reasons and contexts are redacted as tools' output is. An input has at most 1 MiB; where one would have more, its
  texts are cut and `cut` is true: a strict hook denies then.
- **On record.** Each answer is a `hook.ran` with its time, shown by `pod log`, `pod inspect` and the stream.
- **No loop.** A hook that blocks every compaction leaves the run going until the next request would pass the ceiling; there it ends
  (`hook_blocked`). One that blocks every end is followed `max_blocks` times in a run, then the run ends at that limit (exit code 4).
- **After a crash.** A call that had not started is not run by itself: its `PreToolUse` hooks are asked again when the agent makes it again,
  or when it runs after an approval. `PostToolUse` may be missed, and is repeated only with a call that is run again (an idempotent tool).
  `RunStart` is asked again until a request was answered, `Stop` until the end is on record. `PostCompact` may be missed.
- **Trust.** A project's `.pod/config.toml` can't add hooks unless the folder is trusted. A hook that the agent can edit guards nothing:
  keep its program outside of `[scope] write`.

The compact worker's own calls (it reads files and history, nothing else) ask no hooks.

## Functions

`use = "my_package.guards:NoMigrations"` names a function of one argument, or a class of such objects; `use = "no-migrations"` one that an
installed package offers as an entry point of the group `pod.hooks`. No package acts unless a manifest names it. In code, hooks are given to
`Pod.open`. A function is plain (it then runs in a thread, and is left to itself where it does not return in time) or async, and returns
None, `GoOn` or `Block`. It gets a frozen copy of the input, of its own: nothing that it changes there reaches anything.

```python
from pathlib import Path

import anyio

from pod import Block, Hook, Manifest, Pod
from pod.hooks import PreToolUse
from worker.testing import ScriptedModel, call, say


def no_migrations(asked: PreToolUse) -> Block | None:
    wanted = (Path(asked.cwd) / asked.arguments["path"]).resolve()
    if wanted.is_relative_to(Path(asked.cwd).resolve() / "migrations"):
        return Block("migrations/ is written by the release tool alone")
    return None


async def main() -> None:
    model = ScriptedModel(
        [
            call("write_file", path="migrations/0002.sql", content="drop table users;"),
            call("write_file", path="notes.md", content="Migrations are left alone."),
            say("Done."),
        ]
    )
    manifest = Manifest.model_validate(
        {
            "tools": {"enable": ["write_file"]},
            "scope": {"write": ["."]},
            "permissions": {"profile": "workspace-write"},
        }
    )
    guard = Hook("PreToolUse", no_migrations, match="write_file")
    async with Pod.open(manifest, name="guarded", model=model, hooks=[guard]) as pod:
        result = await pod.run("Tidy up the database")
        assert result.raise_for_status().denials == 1
        assert not (pod.cwd / "migrations").exists() and (pod.cwd / "notes.md").exists()


anyio.run(main)
```

The same guard as a program:

```python
import subprocess
import sys
from pathlib import Path

GUARD = """\\
import json, pathlib, sys

asked = json.load(sys.stdin)
wanted = pathlib.Path(asked["arguments"]["path"]).resolve()
if wanted.is_relative_to(pathlib.Path("migrations").resolve()):
    print("migrations/ is written by the release tool alone", file=sys.stderr)
    sys.exit(2)
"""

Path("no_migrations.py").write_text(GUARD)
asked = b'{"event": "PreToolUse", "tool": "write_file", "arguments": {"path": "migrations/1.sql"}}'
done = subprocess.run([sys.executable, "no_migrations.py"], input=asked, capture_output=True)
assert (done.returncode, done.stderr.split()[0]) == (2, b"migrations/")
```

## Inputs

Every input has these fields; each event adds its own.
'''
