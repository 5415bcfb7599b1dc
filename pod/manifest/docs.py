"""Writes the reference of the manifest, `docs/manifest.md`, from the models, so that it cannot fall behind them."""

from __future__ import annotations

from pod.manifest.aliases import ALIASES, REMOVED
from pod.manifest.errors import key_label
from pod.manifest.project import TIGHTENING
from pod.manifest.render import toml_value
from pod.manifest.schema import Key, children
from pod.manifest.sections import BUILT_IN_TOOLS

_HEAD = """\
# The manifest

A manifest is a TOML file that says what a pod is: its model, its instructions, its tools, what it may do, and how
its context is kept small. Every key has a default except `[model] name`. An unknown key, a value of the wrong type,
a tool, a provider or a file that is not there, and numbers that contradict each other are errors with file, line and key; all
of them are reported at once, in the order of the lines.

`pod manifest new agent.toml` writes a file with the keys that are changed first and their meaning, in comments but for what
was asked for (`--model`, `--name`, `--set`) and what an agent needs to be of use: a folder to write in, and what keeps its context
small in the window of its model. With `--full` it explains every key that is served. `pod manifest new coder` prints a shipped manifest as it stands.

`pod manifest check FILE` validates one and proves its arithmetic; `pod manifest show FILE` prints each value
with where it came from.

`check` also warns of what works and is likely not meant: a model whose window is not known, with the name that may be meant
(a run puts this warning on record too); tools that write where `[scope] write` names no folder; tools of which the profile denies each call and no
rule allows one; rules and hooks about tools that nobody has; programs of hooks and servers that can't be started as things are; variables to hand on
that are not set; roots that are not there or hold your home folder; a rule that allows every command where no sandbox holds them.

Some values are part of the format and not served yet; they say so, and using one is an error that names it.

```toml
version = 1

[model]
name = "anthropic:claude-opus-5-5"

[compaction]
threshold = 80000
request_threshold = 90000
```

Where the provider compacts histories itself (`pod models` says so), `native` leaves it to the provider first: its own
memory opens the next segment, and the rest of the ladder stands behind it. Where another model takes over (a fallback, a
changed manifest) it reads the memory's text, in the same segment. `pod manifest check` and `pod run` refuse the policy
where no configured model can do it.

```toml
version = 1

[model]
name = "anthropic:claude-opus-5-5"

[context]
policy = "native"
ladder = ["compact", "checkpoint", "rollover"]

[compaction]
request_threshold = "60%"
```

Where `context_window` names a small window, defaults that do not fit it are lowered, and `pod manifest check` says which.
Only numbers that were written can contradict each other.

Units stand in the description of each key; token counts are always of the model in use. "unset" means that the key
has no default.
"""

_TOOLS = """\
## Where your own tools come from

Tools and interceptors of your own are imported from where Python itself looks: packages installed in the environment that `pod`
runs in, and the folders of `PYTHONPATH` (`PYTHONPATH=. pod run agent.toml "..."` for a module in the current folder; with
`python -m pod` the current folder counts as well). The folders of the manifest and of the agent's work are not searched by
themselves: the agent may write there, and what it wrote would run, outside of its permissions, when the pod goes on. `pod run` and
`pod manifest check` say where a module lies that they could not import. A pod keeps the names alone, so what they name must be
importable at each `pod resume` too.
"""

_LAYERS = """\
## Layers

Values come from these places, each over the one before:

1. the defaults above;
2. the user's `$XDG_CONFIG_HOME/pod/config.toml` (`~/.config/pod/config.toml`);
3. the project's `.pod/config.toml` in the working folder, which may only tighten unless you trust the folder;
4. the manifest, over what it `extends`;
5. environment variables `POD__SECTION__KEY`, for example `POD__COMPACTION__THRESHOLD=70000`;
6. `--set section.key=value`.

Values of the last two are read as TOML (`--set 'tools.enable=["read_file"]'`), and as plain text where they are no
TOML or where the key takes text. Tables are merged key by key; an array replaces the one below, except
`permissions.rules` and `hooks`, whose entries of all layers add up. Of the rules that match a call, deny wins over ask, and ask
over allow.

`pod manifest show FILE` prints each value with its source (`--toml` in comments, `--json` under `sources`), rules one by
one, and for what the project tightened the value before it. A manifest stands above the project's configuration: what
you name yourself may take back what a project tightened.

A file of a layer is UTF-8 with at most 1 MiB; a byte order mark and CRLF are fine. What stands in its place and is no
file, or can't be read, is an error and never passed over.

### A folder's own configuration, and trust

The project's configuration comes with the folder, perhaps from strangers. Unless you trust the folder it may add
rules that deny, and set the keys below in the direction given, compared with the layers below it. Everything else that
it asks for is left out, and each run says so; the run itself goes on, with what you set. What is written wrongly in it
(no TOML, an unknown key, a wrong type) is an error as anywhere, for a rule that denies must not be lost to a slip;
`pod trust --ignore` leaves the file of a folder out where you can't mend it.

`pod trust DIR` shows what the file asks for and what would hold else, asks (`--yes` where nobody can be asked), and
keeps your decision in `trust` beside the pods (`$POD_HOME`), where no tool of an agent may write. It holds for this
folder's real path and this content of `.pod/config.toml`: another content is not trusted (`pod trust --diff` shows
what changed), nor is a folder above or below. What the file names (commands, modules, prompts) is not part of that:
trust a folder whose code you would run. `--list` shows all decisions, `--remove` takes one back. A session keeps the
manifest that it began with; a decision counts when a manifest is loaded. From Python: `Pod.open(..., trusted=True)`.

Keys that tighten:
"""

_RULES = """\
## Rules

What lies outside of `[scope]` is denied whatever rules say. Then rules decide, deny before ask before allow, and where none matches the
profile does. `match` is compared with the whole name, with upper and lower case told apart; `*` stands for any characters, also `/` and
blanks. A rule without `match` is about every call of its tool.

| tool | `match` is compared with |
| --- | --- |
| `shell` | the command line, and each command in it (`&&`, `;`, `\\|`, line ends take it apart) |
| tools on files | the path, links followed, from the working folder and whole: `src/*`, `*.env`, `/etc/*` |
| `fetch_url` | the URL, and its host |
| others | the arguments as JSON |

- `deny` and `ask` look at every reading of a command line: each part, also without a leading `sudo`, `env` or `X=1` and without
  quotes. `git push*`
  is found in `cd x && git push`.
- `allow` with a pattern must match **each** part of the line, and allows no line with a substitution, redirection, group or open quote:
  `git *` allows `git add . && git commit -m x`, and neither `git log > all.txt` nor `git status; rm -r build`. Only `allow` without `match`
  allows such lines. A denial says which of this it was.
- A rule about commands is a convenience and no wall: programs start other programs. What must hold, a sandbox holds.
- A yes to a question holds for one call, or for the same call in this run (`--scope run`). What is to be free always is a rule.

```toml
version = 1
[model]
name = "anthropic:claude-opus-5-5"
[permissions]
profile = "workspace-write"
rules = [
  { tool = "shell", match = "git push*", action = "deny" },
  { tool = "shell", match = "git *", action = "allow" },
  { tool = "shell", match = "make test", action = "allow" },
  { tool = "*", match = "*.env", action = "deny" },
]
```

## What commands are given

`shell`, background jobs and programs of hooks do not inherit your environment: they get `PATH`, `HOME`, language, proxy and toolchain
variables, and settings that keep programs from asking questions. A key that an agent's commands need is named in `[tools.shell] env`; whoever
may run commands may then use it in any way. While `[log] redact` is on, its value is replaced in what the model and the log see of output,
where its name says that it is a secret (key, token, password).

"""

_SANDBOX = """\
## The sandbox, and what no tool writes

With `[sandbox] mode` set, all processes that are started for the agent (commands and background jobs of `shell`, searches) run in
bubblewrap (`bwrap`, looked for in the system's folders alone), on Linux with user namespaces. Where that can't be had, nothing runs:
exit code 2; `pod manifest check` and `pod doctor` say why.

| | `workspace` | `read-only` |
| --- | --- | --- |
| roots of `[scope] read` | read | read |
| roots of `[scope] write` | written, but for what is named below | read |
| `/usr`, `/bin`, `/lib*`, `/sbin`, `/etc`, `/opt`, `/nix` | read | read |
| the home folder | empty, written, gone with the command | empty |
| `/tmp`, `/dev/shm` | empty, written, gone with the command | the same |
| everything else: other folders, other processes, devices, the pods' home | not there | not there |
| network, this machine's own too | only with `network = true` | only with `network = true` |

A program or a setting that lies in the home folder (a toolchain, `~/.gitconfig`) is there when `[scope] read` names it. In the
write roots these stay read-only: `.git` of a root, of the working folder and of the folders directly below (with `git = "writable"`
`git commit` works), `.pod` there, and the protected places below as far as they are there. Not kept: `.git` deeper below, and one that
the agent makes itself; look at a repository that an agent made before you use git in it. Roots of `[scope] write` that are missing are made.
A command that fails says what its sandbox allows. One that a signal ended is told as shells do: 128 and the signal's number.

A sandbox grants nothing: rules and profile decide as without one. `unattended` denies commands; for an agent that works alone, let a
rule allow them and a sandbox hold them:

```toml
version = 1
[model]
name = "anthropic:claude-opus-5-5"
[scope]
write = ["."]
[permissions]
profile = "unattended"
rules = [{ tool = "shell", action = "allow" }]
[sandbox]
mode = "workspace"
```

With or without a sandbox, tools on files never write, by whatever name, link or mount they get there: every `.git` and `.pod`, the
folder of all pods, the files that the manifest was read from, `$XDG_CONFIG_HOME/pod`, `system_prompt_file`, `output_schema`, modules of
`[tools] python` and `[[interceptors]]`, and programs of `[[hooks]]` and `[[mcp]]`. Without a sandbox, `shell` can. Instruction
files may be written: what stands there holds from the next run on, and is on record.

"""

_PATHS = """\
## Paths and variables

Paths are resolved once, when the manifest is loaded, and are absolute from then on. `extends`, `system_prompt_file`
and `output_schema` start from the folder of the file that names them; the roots in `[scope]` start from the working
folder (`-C`), or with `{manifest_dir}` from the folder of the manifest. `~/` is the home folder.

`${NAME}` stands for an environment variable in `base_url` and in these paths, nowhere else. A variable that is
undefined or empty is an error. `$$` stands for one `$` there.

In a system prompt `$cwd`, `$platform`, `$tools` and `$pod` are filled in when a segment starts (`$$cwd` keeps the
characters `$cwd`). Every other `$` in a prompt stays as it is.

An API key never stands in a manifest: name the variable that holds it in `api_key_env`. A key, and text that looks
like one, is an error.
"""


_INSTRUCTIONS = """\
## Instruction files

From the root of the project (the nearest folder at or above the working folder with `.git`, else with `.pod`, else the
working folder) down to the working folder, the first file of `[worker] instructions` in each folder is taken: at most
32 KiB of one and 128 KiB of all, with a mark where one is cut. A link is followed inside of the project and of
`[scope] read`. Folders, pipes, devices and binary files are not taken; characters that nobody sees (tags, marks that turn
the direction, control characters) are left out; each with a warning on record.

They come with the folder, so they stand below the system prompt and below your own words, and grant nothing.

A run begins with the files as they are then, and keeps these texts to its end: through compactions, the compact worker
and a restart in its middle. A change counts from the next run on, and is on record (`instructions.changed`, with the
hashes before and now). `pod show` lists the files of the newest run.
"""


def manifest_markdown() -> str:
    """The text of `docs/manifest.md`."""
    parts = [_HEAD, "## Top level\n\n" + _table([key for key in children(()) if key.section is None])]
    for key in children(()):
        if key.section is not None:
            parts.append(_section(key))
    parts.append(_TOOLS)
    parts.append(_LAYERS + "\n" + _tightening())
    parts.append(_RULES)
    parts.append(_SANDBOX)
    parts.append(_PATHS)
    parts.append(_INSTRUCTIONS)
    parts.append(_names())
    return "\n".join(parts)


def _section(key: Key) -> str:
    assert key.section is not None
    name = ".".join(key.path)
    title = f"## `[[{name}]]`" if key.repeated else f"{'#' * (1 + len(key.path))} `[{name}]`"
    about = "\n\n".join(" ".join(part.split()) for part in (key.section.__doc__ or "").split("\n\n"))
    if key.field.description:
        about = key.field.description
    if key.path == ("compaction", "model"):
        return f"{title}\n\n{about} The keys are those of `[model]`.\n"
    inner = children(key.path)
    parts = [f"{title}\n\n{about}\n"]
    plain = [child for child in inner if child.section is None or child.repeated]
    if plain:
        parts.append(_table(plain))
    for child in inner:
        if child.section is not None:
            parts.append(_section(child) if not child.repeated else _entries(child))
    return "\n".join(parts)


def _entries(key: Key) -> str:
    return f"Each entry of `{key.path[-1]}`:\n\n{_table(children(key.path))}"


def _table(keys: list[Key]) -> str:
    rows = ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
    for key in keys:
        kind = "array of tables" if key.repeated else key.kind
        cells = (f"`{key.path[-1]}`", kind, _default(key), key.field.description or "")
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def _default(key: Key) -> str:
    if key.field.is_required():
        return "required"
    if key.default is None:
        examples = key.field.examples
        return f"unset, e.g. `{toml_value(examples[0])}`" if examples else "unset"
    return f"`{toml_value(key.default)}`"


def _tightening() -> str:
    rows = ["| key | direction |", "| --- | --- |"]
    for path, order in TIGHTENING.items():
        if isinstance(order, tuple):
            steps = (" or ".join(f"`{toml_value(value)}`" for value in sorted(values)) for values in order)
            direction = " to ".join(steps)
        elif not isinstance(order, str):
            ways = (
                (value, " or ".join(f"`{toml_value(x)}`" for x in sorted(tighter))) for value, tighter in order.items()
            )
            direction = "; ".join(f"`{toml_value(value)}` to {tighter}" for value, tighter in ways if tighter)
        else:
            direction = order
        rows.append(f"| `{'.'.join(path)}` | {direction} |")
    return "\n".join(rows) + "\n"


def _names() -> str:
    lines = ["## Old names", "", "These old names load as the new ones; old and new together are an error.", ""]
    lines += ["| old | new |", "| --- | --- |"]
    lines += [f"| `{key_label(old)}` | `{key_label(new)}` |" for old, new in ALIASES.items()]
    lines += ["", "These are gone, and an error that says what to do:", "", "| removed | instead |", "| --- | --- |"]
    lines += [f"| `{key_label(old)}` | {reason} |" for old, reason in REMOVED.items()]
    lines += ["", f"Built-in tools: {', '.join(f'`{name}`' for name in BUILT_IN_TOOLS)}.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    import sys

    sys.stdout.write(manifest_markdown())
