"""How the endpoints of Chat Completions differ, as far as it must be known before a request (facts, providers 2.2)."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit


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


def quirks(base_url: str) -> Quirks:
    """The quirks of the endpoint at this URL; those of a plain compatible server where it is not listed."""
    host = urlsplit(base_url).hostname or ""
    return next((q for name, q in _QUIRKS.items() if host == name or host.endswith("." + name)), Quirks())
