"""How the endpoints of Chat Completions differ, as far as it must be known before a request (facts, providers 2.2)."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from worker.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Quirks:
    """How an endpoint differs. `id_limit` is the longest call id that it takes; `key_env` the variable of its key."""

    max_tokens: str = "max_tokens"
    stream_usage: bool = True
    cache_key: bool = False
    effort: str = "reasoning_effort"
    id_limit: int = 64
    key_env: str | None = None


_OPENAI = Quirks(max_tokens="max_completion_tokens", cache_key=True, id_limit=40, key_env="OPENAI_API_KEY")
_QUIRKS: dict[str, Quirks] = {
    "api.openai.com": _OPENAI,
    "openai.azure.com": Quirks(max_tokens="max_completion_tokens", id_limit=40, key_env="AZURE_OPENAI_API_KEY"),
    "openrouter.ai": Quirks(effort="reasoning", key_env="OPENROUTER_API_KEY"),
    "api.mistral.ai": Quirks(stream_usage=False, key_env="MISTRAL_API_KEY"),
    "api.deepseek.com": Quirks(key_env="DEEPSEEK_API_KEY"),
    "api.groq.com": Quirks(key_env="GROQ_API_KEY"),
    "api.x.ai": Quirks(key_env="XAI_API_KEY"),
    "generativelanguage.googleapis.com": Quirks(key_env="GEMINI_API_KEY"),
}


_OWNERS = {
    "api.anthropic.com": "ANTHROPIC_API_KEY",
    **{host: known.key_env for host, known in _QUIRKS.items() if known.key_env is not None},
}
"""The usual variables of the vendors' keys, by host."""


def check_key(variable: str, base_url: str, *, anthropic: bool, model: str) -> None:
    """Raises `ConfigError` where a variable is known to hold another vendor's key than the one this request is for.

    Such a key goes to the hosts of its vendor, and to an address that is nobody's (a proxy, this machine) over the wire
    of its vendor only. A variable of the user's own naming may go anywhere.
    """
    if variable not in _OWNERS.values():
        return
    host = urlsplit(base_url).hostname or ""
    owner = next((env for name, env in _OWNERS.items() if host == name or host.endswith("." + name)), None)
    if variable == owner or (owner is None and anthropic == (variable == "ANTHROPIC_API_KEY")):
        return
    vendor = next(name for name, env in _OWNERS.items() if env == variable)
    raise ConfigError(
        f"api_key_env names {variable}, the key for {vendor}: it is not sent to {model} at {host}; "
        "name the variable of that one's own key, or leave api_key_env out for the usual one"
    )


def quirks(base_url: str) -> Quirks:
    """The quirks of the endpoint at this URL; those of a plain compatible server where it is not listed."""
    host = urlsplit(base_url).hostname or ""
    return next((q for name, q in _QUIRKS.items() if host == name or host.endswith("." + name)), Quirks())
