"""Redaction: values of secret environment variables never reach the log or a provider through a tool's output.

Nothing else is masked: not the model's text, not the arguments of its calls, not what the user says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from worker.interceptor import CallContext, Interceptor
from worker.items import ToolOutput

SHORTEST = 8
"""Characters below which a value is not taken for a secret: it would be found everywhere."""

_NAMES = re.compile(r"(?:^|_)(?:API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(?:_\w+)?$", re.IGNORECASE)


def secrets_in(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables whose names speak of a secret, with values long enough to be one."""
    return {name: value for name, value in environment.items() if _NAMES.search(name) and len(value) >= SHORTEST}


@dataclass(frozen=True)
class Masker:
    """Replaces secrets in text by their variable's name, the longest first."""

    secrets: Mapping[str, str]

    def mask(self, text: str) -> tuple[str, int]:
        """The text without secrets, and how many were replaced."""
        count = 0
        for name, value in sorted(self.secrets.items(), key=lambda pair: -len(pair[1])):
            if value in text:
                count += text.count(value)
                text = text.replace(value, f"[secret {name}]")
        return text, count


@dataclass(eq=False)
class Redact(Interceptor):
    """Masks each tool's output before it is put on record (cases B082, B083). Stands last, so that no one speaks after it."""

    masker: Masker = field(default_factory=lambda: Masker({}))

    async def after_tool(self, ctx: CallContext, output: ToolOutput) -> ToolOutput:
        """The output with secrets replaced; the same object where there are none."""
        summary, in_summary = self.masker.mask(output.summary)
        content, in_content = self.masker.mask(output.content) if output.content is not None else (None, 0)
        if not in_summary + in_content:
            return output
        return output.model_copy(update={"summary": summary, "content": content})
