"""The environment of commands: a list of what may pass, and settings that keep programs from asking questions.

It keeps secrets out of what commands inherit, their supervisor's environment among it, and is no wall: a command runs as
the same user as the runtime, and may read `/proc/PID/environ` of the runtime or the files of that user. What must not be
reachable needs the sandbox (`worker.builtin.sandbox`), another user, or a container that holds no more than the work.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from worker import tracing
from worker.masking import secrets_in

_NAMES = """
    PATH HOME USER LOGNAME SHELL LANG LANGUAGE TZ TMPDIR TEMP TMP HOSTNAME
    VIRTUAL_ENV CONDA_PREFIX PYENV_ROOT PYTHONPATH NODE_PATH NVM_DIR JAVA_HOME GOPATH GOROOT GOCACHE GOMODCACHE
    CARGO_HOME RUSTUP_HOME GEM_HOME LD_LIBRARY_PATH PKG_CONFIG_PATH CC CXX UV_CACHE_DIR PIP_CACHE_DIR
    SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE NODE_EXTRA_CA_CERTS
    HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY http_proxy https_proxy no_proxy all_proxy
    XDG_CACHE_HOME XDG_CONFIG_HOME XDG_DATA_HOME XDG_RUNTIME_DIR
"""

ALLOWED = frozenset(_NAMES.split())
"""Variables that commands get from the runtime's own environment; those that start with `LC_` too. Keys are not
among them.
"""

QUIET = {
    "TERM": "dumb",
    "NO_COLOR": "1",
    "CI": "1",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MANPAGER": "cat",
    "SYSTEMD_PAGER": "cat",
    "EDITOR": "true",
    "VISUAL": "true",
    "GIT_EDITOR": "true",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "true",
    "SSH_ASKPASS": "true",
    "SSH_ASKPASS_REQUIRE": "never",
    "GIT_SSH_COMMAND": "ssh -oBatchMode=yes",
    "GCM_INTERACTIVE": "never",
    "DEBIAN_FRONTEND": "noninteractive",
    "PIP_NO_INPUT": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PYTHONUNBUFFERED": "1",
}
"""No prompts, no pagers, no editors, no colours (case B089)."""


_LOGIN = re.compile(r"(^|[\s,])(\w[\w+.-]*://)?[^\s/@,]*:[^\s/@,]*@|(^|[\s,])(\w[\w+.-]*://)[^\s/@,]*@")
"""A user with a password, or a token, before the host of an address."""


def shell_environment(extra: Iterable[str] = ()) -> dict[str, str]:
    """What commands are given; `extra` names further variables of the runtime's environment that may pass, as they are.

    Of the others none holds a secret: an address (of a proxy) loses its login, and what is named like a secret does not pass.
    """
    wanted = set(extra)
    listed = {key: value for key, value in os.environ.items() if key in ALLOWED or key.startswith("LC_")}
    passed = {key: _LOGIN.sub(r"\1\2\3\4", value) for key, value in listed.items()}
    secrets = secrets_in(passed)
    passed = {key: value for key, value in passed.items() if key not in secrets}
    passed |= {key: value for key, value in os.environ.items() if key in wanted}
    passed.setdefault("PATH", os.defpath)
    if not any(key == "LANG" or key.startswith("LC_") for key in passed):
        passed["LANG"] = "C.UTF-8"
    return passed | QUIET


def trace_environment() -> dict[str, str]:
    """What tells a command of the work that starts it (TRACEPARENT, TRACESTATE), where that is traced."""
    return {key.upper(): value for key, value in tracing.outgoing().items() if key in tracing.HEADERS}
