"""Writes the reference of the manifest, `docs/manifest.md`, from the models, so that it cannot fall behind them."""

from __future__ import annotations

from pod.manifest.aliases import ALIASES, REMOVED
from pod.manifest.errors import key_label
from pod.manifest.layers import TIGHTENING
from pod.manifest.render import toml_value
from pod.manifest.schema import Key, children
from pod.manifest.sections import BUILT_IN_TOOLS

_HEAD = """\
# The manifest

A manifest is a TOML file that says what a pod is: its model, its instructions, its tools, what it may do, and how
its context is kept small. Every key has a default except `[model] name`. An unknown key, a value of the wrong type,
a tool, a provider or a file that is not there, and numbers that contradict each other are errors with file, line and key; all
of them are reported at once, in the order of the lines.

`pod manifest new agent.toml` writes a file with every key that is served and its meaning (`pod manifest new agent`
prints it). `pod manifest check FILE` validates one and proves its arithmetic; `pod manifest show FILE` prints each value
with where it came from.

`check` also warns of what works and is likely not meant: a model whose window is not known, with the name that may be meant
(a run puts this warning on record too); tools that write where `[scope] write` names no folder; roots that are not there.

Some tables and values are part of the format and not served yet; they say so, and using one is an error that names it.

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

_LAYERS = """\
## Layers

Values come from these places, each over the one before:

1. the defaults above;
2. the user's `$XDG_CONFIG_HOME/pod/config.toml` (`~/.config/pod/config.toml`);
3. the project's `.pod/config.toml` in the working folder, which may only tighten;
4. the manifest, over what it `extends`;
5. environment variables `POD__SECTION__KEY`, for example `POD__COMPACTION__THRESHOLD=70000`;
6. `--set section.key=value`.

Values of the last two are read as TOML (`--set 'tools.enable=["read_file"]'`), and as plain text where they are no
TOML or where the key takes text. Tables are merged key by key; an array replaces the one below, except
`permissions.rules` and `hooks`, whose entries of all layers add up. Of the rules that match a call, deny wins over ask, and ask
over allow.

The project's configuration comes with the folder, perhaps from strangers. Unless the folder is trusted it may add
rules that deny, and set these keys, in the direction given, compared with the layers below it:
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


def manifest_markdown() -> str:
    """The text of `docs/manifest.md`."""
    parts = [_HEAD, "## Top level\n\n" + _table([key for key in children(()) if key.section is None])]
    for key in children(()):
        if key.section is not None:
            parts.append(_section(key))
    parts.append(_LAYERS + "\n" + _tightening())
    parts.append(_PATHS)
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
