"""Finds keys and passwords that stand in a manifest themselves. Their values are never shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pod.manifest.errors import Problem, key_label
from pod.manifest.values import leaves, take_out

if TYPE_CHECKING:
    from pod.manifest.source import Layer

_SECRET_KEYS = re.compile(
    r"(.*_)?(api_?key|secret|secret_key|access_token|auth_token|bearer_token|password|authorization)"
)
_SECRET_VALUES = re.compile(
    r"""
    \b(?:
        sk-(?=[A-Za-z0-9_-]*\d)[A-Za-z0-9_-]{20,}  # OpenAI, Anthropic and what copies them
      | AIza[0-9A-Za-z_-]{35}                     # Google
      | gsk_[0-9A-Za-z]{20,}                      # Groq
      | xai-[0-9A-Za-z]{20,}                      # xAI
      | hf_[0-9A-Za-z]{30,}                       # Hugging Face
      | gh[pousr]_[0-9A-Za-z]{36,}                # GitHub
      | github_pat_[0-9A-Za-z_]{40,}
      | glpat-[0-9A-Za-z_-]{20,}                  # GitLab
      | xox[abprs]-[0-9A-Za-z-]{20,}              # Slack
      | A[KS]IA[0-9A-Z]{16}                       # AWS
      | dckr_[op]at_[0-9A-Za-z_-]{20,}            # Docker
      | npm_[0-9A-Za-z]{30,} | pypi-[0-9A-Za-z_-]{30,}
      | [sr]k_live_[0-9A-Za-z]{16,}               # Stripe
      | eyJ[0-9A-Za-z_=-]{10,}\.eyJ[0-9A-Za-z_=-]{10,}\.  # JSON Web Token
    )
    | hooks\.slack\.com/services/T\w+/B\w+/\w+
    | -----BEGIN[ ][A-Z ]*PRIVATE[ ]KEY-----
    """,
    re.VERBOSE,
)
_SECRET_LINE = re.compile(r"(?i)(key|secret|token|password|passwd|authorization|bearer|credential)")
_NAME_IT = "name the variable in its place: ${NAME} in base_url, the name itself in [model] api_key_env"
_HINT = "put it in an environment variable and name that in [model] api_key_env"


def may_hold_secret(line: str) -> bool:
    """Whether a line of a file should not be shown: it names something secret, or holds what looks like it."""
    return _SECRET_LINE.search(line) is not None or _SECRET_VALUES.search(line) is not None


def take_secrets(layer: Layer, environment: Mapping[str, str]) -> list[Problem]:
    """Problems for each literal secret of a layer, those of the environment too. It is taken out, so that nothing later can show it."""
    from worker.masking import Masker, secrets_in

    problems: list[Problem] = []
    known = Masker(secrets_in(environment))
    for path, holder, name, value in list(leaves(layer.data)):
        # There stands the name of a variable, and its type is checked.
        names_a_variable = len(path) > 1 and path[-2] == "headers_env"
        by_name = (
            isinstance(name, str) and not names_a_variable and _SECRET_KEYS.fullmatch(name.lower().replace("-", "_"))
        )
        if by_name or (isinstance(value, str) and _SECRET_VALUES.search(value)):
            message = "a secret must not stand in a manifest" if by_name else "this looks like an API key"
            problems.append(layer.problem(path, message, key=key_label(path), hint=_HINT))
            take_out(holder, name)
        elif isinstance(value, str) and (marks := known.names_in(value)):
            message = f"the value of a secret variable of the environment stands in it ({', '.join(marks)})"
            problems.append(layer.problem(path, message, key=key_label(path), hint=_NAME_IT))
            take_out(holder, name)
    return problems
