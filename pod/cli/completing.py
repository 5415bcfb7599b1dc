"""`pod completion`: scripts for bash, zsh and fish, made from the parsers.

A script is static; only the names of pods are asked for, with `pod ls --names`, while a word is completed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from pod.cli.flags import Argument, Usage, usages
from pod.cli.output import put


def completion(args: argparse.Namespace) -> int:
    """Prints the script for a shell."""
    put({"bash": bash, "zsh": zsh, "fish": fish}[args.shell]())
    return 0


def _tables() -> tuple[list[Usage], list[Usage]]:
    """The commands, and the actions inside them."""
    found = list(usages())
    return [u for u in found if len(u.words) == 1], [u for u in found if len(u.words) == 2]


def _shipped() -> str:
    from pod.manifest.shipped import shipped_names

    return " ".join(shipped_names())


def _quoted(text: str) -> str:
    """A word for a shell, in single quotes."""
    return "'" + text.replace("'", "'\\''") + "'"


# -- bash -----------------------------------------------------------------------------------------------------

_BASH = r"""# bash completion of pod, made by `pod completion bash`
_pod_words() { COMPREPLY=($(compgen -W "$1" -- "$cur")); }

_pod_paths() {
    local IFS=$'\n'
    compopt -o filenames 2>/dev/null
    COMPREPLY+=($(compgen "$1" -- "$cur"))
}

_pod_value() {
    case "$1" in
    pod) _pod_words "$("${COMP_WORDS[0]}" ls --names 2>/dev/null)" ;;
    manifest) _pod_words "@SHIPPED@"; _pod_paths -f ;;
    file) _pod_paths -f ;;
    dir) _pod_paths -d ;;
    text) ;;
    *) _pod_words "$1" ;;
    esac
}

# What a command takes: its options, those with a value, and the kinds of its other words, separated by "/".
_pod_command() {
    case "$1" in
@COMMANDS@
    *) return 1 ;;
    esac
}

# The kind of the value behind an option.
_pod_option() {
    case "$1 $2" in
@OPTIONS@
    *) kind="" ;;
    esac
}

_pod() {
    local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD - 1]}"
    local command="${COMP_WORDS[1]}" first=2 options="" valued="" places="" kind="" place=0 i
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        case "$cur" in
        -*) _pod_words "--help --version" ;;
        *) _pod_words "@NAMES@" ;;
        esac
        return
    fi
    case "$command" in
@ACTIONS@
    esac
    _pod_command "$command" || return
    if [[ $cur == "=" ]]; then
        cur=""
    elif [[ $prev == "=" ]]; then
        prev="${COMP_WORDS[COMP_CWORD - 2]}"
    fi
    _pod_option "$command" "$prev"
    if [[ -n $kind ]]; then
        _pod_value "$kind"
        return
    fi
    if [[ $cur == -* ]]; then
        _pod_words "$options"
        return
    fi
    for ((i = first; i < COMP_CWORD; i++)); do
        if [[ $valued == *" ${COMP_WORDS[i]} "* ]]; then
            [[ ${COMP_WORDS[i + 1]} == "=" ]] && ((i += 1))
            ((i += 1))
        elif [[ ${COMP_WORDS[i]} != -?* ]]; then
            ((place += 1))
        fi
    done
    for ((i = 0; i < place; i++)); do
        [[ $places == */* ]] || return
        places="${places#*/}"
    done
    _pod_value "${places%%/*}"
}

complete -F _pod pod"""


def bash() -> str:
    """The script for bash 3.2 and newer."""
    commands, actions = _tables()
    plain = [u for u in (*commands, *actions) if u.name not in {a.words[0] for a in actions}]
    rows = (f"    {_quoted(u.name)}) {_bash_command(u)} ;;" for u in plain)
    options = (
        f"    {'|'.join(_quoted(f'{u.name} {flag}') for flag in o.flags)}) kind={_quoted(_bash_kind(o))} ;;"
        for u in plain
        for o in u.options
        if o.kind != "none"
    )
    inner = (
        f'    {name})\n        if ((COMP_CWORD == 2)); then\n            _pod_words "{words}"\n            return\n'
        f'        fi\n        command="{name} ${{COMP_WORDS[2]}}" first=3\n        ;;'
        for name, words in _inner(actions).items()
    )
    return _filled(
        _BASH, SHIPPED=_shipped(), COMMANDS="\n".join(rows), OPTIONS="\n".join(options), ACTIONS="\n".join(inner),
        NAMES=" ".join(u.name for u in commands),
    )  # fmt: skip


def _bash_command(usage: Usage) -> str:
    valued = [flag for o in usage.options if o.kind != "none" for flag in o.flags]
    words = {
        "options": " ".join(flag for o in usage.options for flag in o.flags),
        "valued": f" {' '.join(valued)} ",
        "places": "/".join(_bash_kind(p) for p in usage.positionals),
    }
    return " ".join(f"{name}={_quoted(text)}" for name, text in words.items())


def _bash_kind(argument: Argument) -> str:
    return " ".join(argument.choices) if argument.kind == "choice" else argument.kind


def _inner(actions: list[Usage]) -> dict[str, str]:
    """The actions by command, as words."""
    found: dict[str, str] = {}
    for usage in actions:
        found[usage.words[0]] = f"{found.get(usage.words[0], '')} {usage.words[1]}".strip()
    return found


def _filled(text: str, **values: str) -> str:
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


# -- zsh ------------------------------------------------------------------------------------------------------

_ZSH = r"""#compdef pod
# zsh completion of pod, made by `pod completion zsh`
_pod_pods() {
    local -a names
    names=(${(f)"$(command pod ls --names 2>/dev/null)"})
    compadd -a names
}

_pod_manifests() {
    local -a names
    names=(@SHIPPED@)
    compadd -a names
    _files
}

_pod() {
    local command
    if (( CURRENT == 2 )); then
        local -a commands
        commands=(
@NAMES@
        )
        _describe -t commands command commands
        return
    fi
    command=$words[2]
    shift words
    (( CURRENT -= 1 ))
    case $command in
@ACTIONS@
    esac
    case $command in
@COMMANDS@
    esac
}

if [[ $funcstack[1] == _pod ]]; then
    _pod "$@"
else
    compdef _pod pod
fi"""

_ZSH_KINDS = {"pod": "_pod_pods", "manifest": "_pod_manifests", "file": "_files", "dir": "_files -/", "text": " "}


def zsh() -> str:
    """The script for zsh, to be evaluated behind `compinit` or kept as `_pod` in a folder of `fpath`."""
    commands, actions = _tables()
    inner = _inner(actions)
    plain = [u for u in (*commands, *actions) if u.name not in inner]
    rows = (
        f"    {_quoted(u.name)})\n        _arguments -s -S \\\n            "
        + " \\\n            ".join((*map(_zsh_option, u.options), *_zsh_places(u)))
        + "\n        ;;"
        for u in plain
    )
    nested = (
        f"    {name})\n        if (( CURRENT == 2 )); then\n            local -a actions\n            actions=(\n"
        + "\n".join(_zsh_row(u, u.words[1]) for u in actions if u.words[0] == name)
        + "\n            )\n            _describe -t actions action actions\n            return\n        fi\n"
        f'        command="{name} $words[2]"\n        shift words\n        (( CURRENT -= 1 ))\n        ;;'
        for name in inner
    )
    return _filled(
        _ZSH, SHIPPED=_shipped(), NAMES="\n".join(_zsh_row(u, u.name) for u in commands), ACTIONS="\n".join(nested),
        COMMANDS="\n".join(rows),
    )  # fmt: skip


def _zsh_row(usage: Usage, name: str) -> str:
    return f"            {_quoted(f'{name}:{usage.summary}')}"


def _zsh_option(option: Argument) -> str:
    told = f"[{_zsh_text(option.help)}]"
    if option.kind != "none":
        told += f":{_zsh_text(option.value)}:{_zsh_kind(option)}"
    if len(option.flags) == 1 or option.repeated:
        return " ".join(_quoted(("*" if option.repeated else "") + flag + told) for flag in option.flags)
    return f"{_quoted('(' + ' '.join(option.flags) + ')')}{{{','.join(option.flags)}}}{_quoted(told)}"


def _zsh_places(usage: Usage) -> Iterator[str]:
    for number, place in enumerate(usage.positionals, 1):
        colon = ":" if place.needed else "::"
        yield _quoted(f"{number}{colon}{_zsh_text(place.value)}:{_zsh_kind(place)}")


def _zsh_kind(argument: Argument) -> str:
    return f"({' '.join(argument.choices)})" if argument.kind == "choice" else _ZSH_KINDS[argument.kind]


def _zsh_text(text: str) -> str:
    for mark in "\\[]:":
        text = text.replace(mark, f"\\{mark}")
    return text


# -- fish -----------------------------------------------------------------------------------------------------

_FISH = r"""# fish completion of pod, made by `pod completion fish`
function __pod_in
    set -l words (commandline -opc)
    set -e words[1]
    string match -q -- "$argv *" "$words "
end

function __pod_only
    set -l words (commandline -opc)
    set -e words[1]
    test "$words" = "$argv"
end

complete -c pod -f
@ROWS@"""

_FISH_KINDS = {
    "pod": "(pod ls --names 2>/dev/null)",
    "file": "(__fish_complete_path (commandline -ct))",
    "dir": "(__fish_complete_directories (commandline -ct))",
    "text": "",
}


def fish() -> str:
    """The script for fish 3."""
    rows: list[str] = []
    for usage in usages():
        *before, name = usage.words
        at = _quoted(f"__pod_only {' '.join(before)}".rstrip())
        rows.append(f"complete -c pod -n {at} -a {name} -d {_fish(usage.summary)}")
        here = f"complete -c pod -n {_quoted(f'__pod_in {usage.name}')}"
        for option in usage.options:
            flags = (f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags)
            value = "" if option.kind == "none" else f" -x -a {_fish(_fish_kind(option))}"
            rows.append(f"{here} {' '.join(flags)}{value} -d {_fish(option.help)}")
        kinds = dict.fromkeys(_fish_kind(place) for place in usage.positionals if place.kind != "text")
        rows += [f"{here} -a {_fish(kind)}" for kind in kinds]
    return _filled(_FISH, ROWS="\n".join(rows))


def _fish_kind(argument: Argument) -> str:
    if argument.kind == "choice":
        return " ".join(argument.choices)
    if argument.kind == "manifest":
        return f"{_shipped()} {_FISH_KINDS['file']}"
    return _FISH_KINDS[argument.kind]


def _fish(text: str) -> str:
    """A word for fish, in single quotes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
