"""The manifest: everything that a pod is told before it starts. One frozen model, one attribute for each table of the
TOML file.
"""

from __future__ import annotations

import json
import os
from typing import Annotated, Any, Literal

from pydantic import Field, Strict, field_validator

from pod.manifest.context import ACTING, CompactionSection, ContextSection, Policy, PruneSection, RolloverSection
from pod.manifest.sections import (
    Hook,
    InterceptorUse,
    LimitsSection,
    LogSection,
    McpServer,
    ModelSection,
    PermissionsSection,
    PodSection,
    RetrySection,
    SandboxSection,
    ScopeSection,
    ToolsSection,
    WorkerSection,
)
from pod.manifest.types import Section


class Manifest(Section):
    """A whole manifest.

    `load_manifest` makes one from files; code may make one directly. Paths in a loaded manifest are absolute.
    `compaction` and `rollover` are None where the table is absent.
    """

    version: Literal[1] = Field(default=1, description="The version of the format.")
    extends: str | None = Field(
        default=None,
        description="Another manifest that this one builds on: a file, relative to this one, or the name of a shipped manifest.",
        examples=["base.toml"],
    )
    pod: PodSection = Field(default_factory=PodSection)
    worker: WorkerSection = Field(default_factory=WorkerSection)
    model: ModelSection = Field(default_factory=ModelSection)
    tools: ToolsSection = Field(default_factory=ToolsSection)
    scope: ScopeSection = Field(default_factory=ScopeSection)
    permissions: PermissionsSection = Field(default_factory=PermissionsSection)
    sandbox: SandboxSection = Field(default_factory=SandboxSection)
    prune: PruneSection = Field(default_factory=PruneSection)
    context: ContextSection = Field(default_factory=ContextSection)
    rollover: RolloverSection | None = None
    compaction: CompactionSection | None = None
    limits: LimitsSection = Field(default_factory=LimitsSection)
    retry: RetrySection = Field(default_factory=RetrySection)
    log: LogSection = Field(default_factory=LogSection)
    mcp: Annotated[tuple[McpServer, ...], Strict(False)] = ()
    hooks: Annotated[tuple[Hook, ...], Strict(False)] = ()
    interceptors: Annotated[tuple[InterceptorUse, ...], Strict(False)] = ()

    @field_validator("version", mode="before")
    @classmethod
    def _a_whole_number(cls, value: Any) -> Any:
        if type(value) is not int:  # `true` and 1.0 equal 1
            raise ValueError("should be a whole number")
        return value

    @property
    def policy(self) -> Policy:
        """The context policy in force: as written, else `compact` where a trigger is set, else `warn`."""
        if self.context.policy is not None:
            return self.context.policy
        return "compact" if self._compaction_triggers else "warn"

    @property
    def overflow_recovery(self) -> bool:
        """Whether a rejected, too long request is made shorter: as written, else where the policy acts."""
        written = self.context.overflow_recovery
        return self.policy in ACTING if written is None else written

    @property
    def triggers(self) -> dict[str, int | str]:
        """The triggers of the policy that are set, by key: tokens, or a share of what the window leaves for input. Those of
        `[compaction]` bound a compaction by hand under every policy.
        """
        own: dict[str, int | str] = {"rollover.at": self.window.at} if self.policy == "rollover" else {}
        return {**own, **self._compaction_triggers}

    @property
    def acting_triggers(self) -> dict[str, int | str]:
        """The triggers that start something: all of them where the policy acts, else none."""
        return self.triggers if self.policy in ACTING else {}

    @property
    def request_triggers(self) -> dict[str, int | str]:
        """Those of the acting triggers that are looked at between two requests: the lowest of them acts."""
        return {key: value for key, value in self.acting_triggers.items() if key not in BETWEEN_RUNS}

    @property
    def window(self) -> RolloverSection:
        """`[rollover]`, with the defaults where the table is absent."""
        return self.rollover or RolloverSection()

    @property
    def ladder(self) -> tuple[str, ...]:
        """The rungs of the policy: those of `[context] ladder` from the policy's own on, or it alone where it is none;
        `native` stands before all others.
        """
        rungs: tuple[str, ...] = self.context.ladder
        if self.policy == "native":
            return ("native", *(rung for rung in rungs if rung != "native"))
        if self.policy not in ("rollover", "checkpoint"):
            return rungs
        return rungs[rungs.index(self.policy) :] if self.policy in rungs else (self.policy,)

    @property
    def _compaction_triggers(self) -> dict[str, int | str]:
        if self.compaction is None:
            return {}
        both = {"threshold": self.compaction.threshold, "request_threshold": self.compaction.request_threshold}
        return {key: value for key, value in both.items() if value is not None}

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of `kept_text`: equal manifests have equal digests."""
        import hashlib

        return hashlib.sha256(self.kept_text().encode()).hexdigest()

    def kept_text(self) -> str:
        """The resolved values as JSON, as a pod keeps them: with a mark for each secret of the environment that came into them
        (`${NAME}` in an address), unless `[log] redact` is off.
        """
        from worker.gate import Gate
        from worker.masking import Masker, secrets_in
        from worker.text import escaped_halves

        values = self.model_dump(mode="json")
        if self.log.redact:
            values = Gate(Masker(secrets_in(os.environ))).own(values)
        # A byte of a path that is no UTF-8 stands there as half a character, which JSON can only escape.
        return escaped_halves(json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False))

    @classmethod
    def read_kept(cls, text: str) -> Manifest:
        """The manifest that was kept so, with the values of this environment for the marks; a mark whose variable is not set stays
        one. Raises `ManifestError`.
        """
        from worker.text import half_in_json

        if "[secret " in text:
            from worker.masking import secrets_in, unmasked

            text = json.dumps(unmasked(json.loads(text), secrets_in(os.environ)))
        if half_in_json(text):
            return cls.model_validate(json.loads(text), strict=False)
        return cls.model_validate_json(text, strict=False)


BETWEEN_RUNS = frozenset({"threshold"})
"""The triggers that are looked at between two runs only."""


def trigger_path(key: str) -> tuple[str, ...]:
    """Where one of a manifest's `triggers` stands."""
    return tuple(key.split(".")) if "." in key else ("compaction", key)
