"""The sections of a manifest that say who the agent is and what it may do."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, Strict, ValidationInfo, WithJsonSchema, field_validator

from pod.manifest.types import (
    BaseUrl,
    Command,
    Count,
    EnvName,
    Host,
    ModelName,
    Reasoning,
    Reference,
    Seconds,
    Section,
    Strings,
    Written,
)
from pod.manifest.values import is_json_object
from pod.names import NAME_PATTERN, unfit_name

Profile: TypeAlias = Literal["safe", "workspace-write", "read-only", "unattended"]
Action: TypeAlias = Literal["allow", "ask", "deny"]

BUILT_IN_TOOLS = (
    "append_file",
    "context",
    "edit_file",
    "fetch_url",
    "find_files",
    "jobs",
    "list_files",
    "new_context",
    "read_file",
    "search_text",
    "session_history",
    "shell",
    "tasks",
    "write_file",
)
"""The names that `[tools] enable` knows and this version serves."""

LATER_TOOLS = ("notes", "spawn_pod")
"""The names that a later version serves."""


class PodSection(Section):
    """The pod itself."""

    name: Annotated[str, WithJsonSchema({"type": "string", "pattern": f"^{NAME_PATTERN}$"})] | None = Field(
        default=None, description="The pod's name, by which it is resumed. Generated where unset.", examples=["auditor"]
    )
    description: str = Field(default="", description="What the pod is for, for listings.")

    @field_validator("name")
    @classmethod
    def _usable(cls, value: str | None) -> str | None:
        if value is not None and (why := unfit_name(value)) is not None:
            raise ValueError(f"can't be a pod's name: {why}")
        return value


class WorkerSection(Section):
    """What the agent is told, and how long one run may get."""

    system_prompt: str | None = Field(
        default=None,
        description="The system prompt. `$cwd`, `$platform`, `$tools` and `$pod` are filled in when a segment starts;"
        " everything else is left as it stands. Unset: a short general prompt.",
        examples=["You audit Python projects. Work in $cwd."],
    )
    system_prompt_file: str | None = Field(
        default=None,
        description="A file that holds the system prompt, instead of `system_prompt`. Relative to the manifest that "
        "names it.",
        examples=["prompt.md"],
    )
    instructions: Strings = Field(
        default=("AGENTS.md",),
        description="Names of instruction files. In each folder from the root of the project down to the working "
        "folder the first one that exists is read: at most 32 KiB a file and 128 KiB in all.",
    )
    max_requests: Count | None = Field(
        default=None, description="Requests to the model in one run. Unset: no limit.", examples=[500]
    )
    output_schema: str | None = Field(
        default=None,
        description="A JSON Schema that the final answer must meet: a file, relative to the manifest that names it, or the schema "
        "itself as a text that begins with `{`.",
        examples=["out.schema.json"],
    )

    @property
    def output_schema_file(self) -> str | None:
        """The file of `output_schema`; None where there is none, or the schema itself stands there."""
        given = self.output_schema
        return None if given is None or is_json_object(given) else given

    @field_validator("instructions")
    @classmethod
    def _names_only(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not name or name.startswith(("/", "~")) or ".." in name.replace("\\", "/").split("/"):
                raise ValueError("holds names that are looked up in each folder; a path that leaves the folder is none")
        return value


class ModelSection(Section):
    """The model, and how it is asked."""

    name: ModelName | None = Field(
        default=None,
        description="The model, as `provider:model`. Providers: `anthropic`, `openai`, `openai-chat` (any compatible "
        "server, see `base_url`), `offline` (no key, no network).",
        examples=["anthropic:claude-opus-5-5"],
    )
    fallback: Annotated[tuple[ModelName, ...], Strict(False)] = Field(
        default=(),
        description="Models that are asked in turn where the first is down. One that the request does not fit is "
        "skipped.",
    )
    base_url: BaseUrl | None = Field(
        default=None,
        description="Another address of the provider's API. Plain http only to this machine. `${NAME}` is expanded.",
        examples=["http://localhost:8000/v1"],
    )
    api_key_env: EnvName | None = Field(
        default=None,
        description="The environment variable that holds the API key. Unset: the provider's usual one. It goes with the "
        "model: a higher layer (`--model` too) that names one of another provider leaves it behind. A variable known as "
        "another vendor's is refused. The key itself never stands in a manifest.",
        examples=["ANTHROPIC_API_KEY"],
    )
    max_output_tokens: Annotated[int, Field(ge=0)] = Field(
        default=8192, description="Tokens that one reply may have. 0: what the model allows."
    )
    context_window: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="The model's window in tokens. 0: from the table of models, else 32,768 with a warning. Another number "
        "than before drops what refusals taught.",
    )
    reasoning: Reasoning | None = Field(
        default=None,
        description="How much the model reasons: a label of the provider, or a budget in tokens. Unset: the model's "
        "own default.",
        examples=["medium"],
        json_schema_extra={"kind": "label or tokens"},
    )
    temperature: Annotated[float, Field(ge=0, le=2)] | None = Field(
        default=None, description="Sampling temperature, only where the model takes one.", examples=[0.2]
    )
    top_p: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="Nucleus sampling, only where the model takes it.", examples=[0.9]
    )
    cache_ttl: Annotated[str, Written(r"[1-9]\d*[smh]", 'a time like "5m", "30m" or "1h"')] = Field(
        default="5m",
        description="How long the provider keeps the prefix cache, as far as it offers a choice: `5m`, `30m`, `1h`.",
    )
    connect_timeout: Seconds = Field(default=10.0, description="Seconds until a connection must stand.")
    read_timeout: Seconds = Field(default=120.0, description="Seconds without a byte from the provider.")
    idle_timeout: Seconds = Field(
        default=120.0, description="Seconds without content before a stream counts as stalled."
    )
    extra_headers: dict[str, str] = Field(
        default_factory=dict[str, str], description="Headers that are added to each request. Never a key."
    )
    extra_body: dict[str, Any] = Field(
        default_factory=dict[str, Any], description="Fields that are added to the body of each request."
    )


class ShellTool(Section):
    """The shell tool."""

    timeout: Seconds = Field(default=120.0, description="Seconds that a command may run.")
    max_output: Count = Field(
        default=65_536, description="Bytes of output that reach the model; the rest is kept as an artifact."
    )
    env: Annotated[tuple[EnvName, ...], Strict(False)] = Field(
        default=(),
        description='Further environment variables of the runtime that commands get, for example `["GITHUB_TOKEN"]`. Without '
        "this they get none but those of a fixed list (paths, languages, proxies), and no keys.",
    )


class FetchTool(Section):
    """The tool `fetch_url`: text from the web, from these hosts alone."""

    hosts: Annotated[tuple[Host, ...], Strict(False)] = Field(
        default=(),
        description='The hosts that may be asked, for example `["docs.python.org", "*.readthedocs.io"]`. By https on port 443;'
        " `http://host` lets plain http too, `host:8443` names another port. None: the tool can't be enabled.",
    )
    allow_private: bool = Field(
        default=False,
        description="Whether these hosts may stand for this machine and private networks. Link-local addresses, those of cloud"
        " metadata and reserved ones are never asked.",
    )
    proxy: bool = Field(
        default=False,
        description="Whether the proxies of the environment (`HTTPS_PROXY`, `HTTP_PROXY`, `NO_PROXY`) are used. The proxy then looks"
        " names up, and must itself refuse private addresses.",
    )
    max_bytes: Annotated[int, Field(gt=0, le=67_108_864)] = Field(
        default=2_097_152, description="Bytes of a page that are read, packed or not; the rest is cut off."
    )
    timeout: Seconds = Field(
        default=30.0, description="Seconds for all of it, redirects included. A connection has 10."
    )


class ToolsSection(Section):
    """The tools that the agent has."""

    enable: Strings = Field(
        default=("read_file", "list_files", "search_text", "edit_file", "shell", "tasks"),
        description="Built-in tools that are on: " + ", ".join(f"`{name}`" for name in BUILT_IN_TOOLS) + ".",
    )
    python: Annotated[tuple[Reference, ...], Strict(False)] = Field(
        default=(), description='Tools of your own, as `package.module:name`, for example `"my_pkg.tools:search_docs"`.'
    )
    shell: ShellTool = Field(default_factory=ShellTool)
    fetch_url: FetchTool = Field(default_factory=FetchTool)


class ScopeSection(Section):
    """The folders that tools may touch."""

    read: Strings = Field(
        default=(".",),
        description="Roots that may be read. Relative to the working folder (`-C`); `{manifest_dir}` at the start "
        "stands for the folder of the manifest.",
    )
    write: Strings = Field(default=(), description="Roots that may be written, in the same form. Empty: nothing.")


class Rule(Section):
    """A rule for calls. Rules come before the profile."""

    tool: Annotated[str, Field(min_length=1)] = Field(
        description="The tool, or `*` for each. Shell-style wildcards.", examples=["shell"]
    )
    match: str = Field(
        default="*",
        description="What the rule is about: the command of `shell`, the path of a file tool, the URL or host of `fetch_url`. "
        "Shell-style wildcards; what they must match is told under Rules.",
    )
    action: Action = Field(
        description="What happens. Where several rules match, deny wins over ask, and ask over allow.",
        examples=["deny"],
    )


class PermissionsSection(Section):
    """What the agent may do without asking."""

    profile: Profile = Field(
        default="safe",
        description="`safe`: reads in scope are free, the first write of a run asks, each process and network call "
        "asks. `workspace-write`: writes in scope are free too. `read-only`: everything but reads in "
        "scope is denied. `unattended`: as `workspace-write`, everything else is denied and nothing ever "
        "asks.",
    )
    when_headless: Literal["pause", "deny"] = Field(
        default="pause", description="What a question does where no human is: wait durably, or deny."
    )
    rules: Annotated[tuple[Rule, ...], Strict(False)] = Field(
        default=(), description="Rules; those of all layers add up."
    )


class SandboxSection(Section):
    """The sandbox of the commands of `shell` and of all other processes that are started for the agent (Linux, bubblewrap)."""

    mode: Literal["off", "workspace", "read-only"] = Field(
        default="off",
        description="What processes are kept to. `off`: nothing. `workspace`: they see the roots of `[scope]` and the system's "
        "folders and nothing else of the machine, and write in the roots of `[scope] write` alone. `read-only`: the same, and "
        "write nothing. /tmp is private and empty in both.",
    )
    network: bool = Field(
        default=False,
        description="Whether processes in the sandbox have a network; without it not even this machine's own.",
    )
    git: Literal["read-only", "writable"] = Field(
        default="read-only",
        description="Whether they may write in `.git` of the write roots, as `git commit` does. Who may can also have git run "
        "programs for you later (hooks, settings).",
    )


class RepeatCall(Section):
    """The guard against the same call again and again."""

    remind: Annotated[tuple[Count, ...], Strict(False)] = Field(
        default=(3, 5, 8), description="Counts of identical calls in a row at which the model is reminded."
    )
    stop: Count = Field(default=12, description="The count at which the run ends.")


class Stall(Section):
    """The guard against a run that does the same again after each compaction: at least 80 % of its distinct calls, of 5
    or more, gave the same as before."""

    remind: Count = Field(
        default=3, description="How often in a row before the model is reminded and a warning is told."
    )
    stop: Count = Field(default=8, description="How often in a row before the run ends with `no_progress`.")

    @field_validator("stop")
    @classmethod
    def _after_remind(cls, value: int, info: ValidationInfo) -> int:
        remind = info.data.get("remind", 0)
        if remind >= value:
            raise ValueError(f"must be above remind ({remind}), not {value}")
        return value


class LimitsSection(Section):
    """Limits of one run; children and compact workers count, and hold them too. By default only repetition is limited."""

    max_cost_usd: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        default=None,
        description="US dollars. Reserved before each request; a model without a known price is then an error.",
        examples=[5.0],
    )
    max_total_tokens: Count | None = Field(
        default=None,
        description="Tokens of all requests, input and output. No request is sent whose input would pass it; what the last one answers may.",
        examples=[20_000_000],
    )
    max_wall_seconds: Seconds | None = Field(
        default=None, examples=[86_400],
        description="Seconds in which a process drives the run, restarts and segments included; while it waits for a human"
        " or lies stopped no time counts.",
    )  # fmt: skip
    max_tool_calls: Count | None = Field(default=None, description="Tool calls.", examples=[5000])
    repeat_call: RepeatCall = Field(default_factory=RepeatCall)
    stall: Stall = Field(default_factory=Stall)


class RetrySection(Section):
    """How long a request that failed is tried again."""

    max_attempts: Count = Field(default=6, description="Tries for one request, the first included.")
    max_seconds: Seconds = Field(default=300.0, description="Seconds for all tries of one request.")


class LogSection(Section):
    """The session log."""

    durability: Literal["fsync", "batch", "os"] = Field(
        default="fsync",
        description="When an entry counts as written: on the disk, on the disk with others of the same moment, or "
        "handed to the operating system.",
    )
    redact: bool = Field(
        default=True,
        description="Whether values of environment variables that are named like secrets (key, token, password) are "
        "replaced, before anything is logged, sent, kept or shown: in your messages (with a warning), in what the model "
        "says and calls, in the output of tools and in errors. So are keys of known providers and private keys by their shape, "
        "but for your messages. A call runs with what the model wrote.",
    )


SERVER_NAME = "[A-Za-z0-9-]+(_[A-Za-z0-9-]+)*"
"""How a server of tools is named: without `__` and no `_` at its end, so that `server__tool` never means two (case B135)."""

Effect: TypeAlias = Literal["read", "write", "process", "network"]


class McpServer(Section):
    """A server of the Model Context Protocol whose tools the agent gets, as `name__tool` ([mcp.md](mcp.md)): a program (`command`) or an
    address (`url`). Needs the extra `mcp`."""

    name: Annotated[
        str,
        Field(max_length=32),
        Written(SERVER_NAME, "written with letters, digits, '-' and single '_' inside"),
    ] = Field(description="The name before its tools.", examples=["docs"])
    command: Command | None = Field(
        default=None,
        description="The program and its arguments; no shell reads them. It runs in the working folder, in the sandbox where there is"
        " one, with the environment of the tool `shell`.",
        examples=[["docs-mcp"]],
    )
    url: BaseUrl | None = Field(
        default=None,
        description="Instead of a command: the address of a server that speaks streamable HTTP. Plain http only to this machine.",
        examples=["https://docs.example.com/mcp"],
    )
    env: Annotated[tuple[EnvName, ...], Strict(False)] = Field(
        default=(),
        description="Variables of the runtime's environment that its process gets besides.",
        examples=[["DOCS_HOME"]],
    )
    headers_env: dict[str, EnvName] = Field(
        default_factory=dict[str, str],
        description='Headers of each HTTP request, and the environment variables that hold them: `{ Authorization = "DOCS_AUTH" }`. The'
        " values are replaced in all that the server says.",
    )
    tools: Strings = Field(
        default=("*",),
        description='Which of its tools the agent gets: wildcards on the server\'s own names, for example `["search_*"]`.',
    )
    effect: Effect | None = Field(
        default=None,
        description="What its calls are to the permissions. Unset: `process` for a program, `network` for an address. What the server says"
        " of its own tools (`readOnlyHint`) never decides.",
        examples=["network"],
    )
    effects: dict[str, Effect] = Field(
        default_factory=dict[str, Effect],
        description="The effect of some tools, by wildcards on the server's own names; the longest that covers a tool decides:"
        ' `{ "search_*" = "read" }`.',
    )
    start_timeout: Seconds = Field(default=30.0, description="Seconds until it must have listed its tools.")
    call_timeout: Seconds = Field(default=120.0, description="Seconds that one call may take.")
    max_output: Count = Field(
        default=65_536, description="Bytes of a result that reach the model; the rest is kept as an artifact."
    )
    required: bool = Field(
        default=False, description="Whether nothing begins without it. Else a server that fails is a warning."
    )


HookEvent: TypeAlias = Literal["RunStart", "PreToolUse", "PostToolUse", "PreCompact", "PostCompact", "Stop"]
OnError: TypeAlias = Literal["block", "ignore"]


class Hook(Section):
    """A program of yours, or a function, that is asked at an event ([hooks.md](hooks.md)). It can only tighten. Those of all layers
    add up."""

    event: HookEvent = Field(description="When it is asked.", examples=["PreToolUse"])
    command: Command | None = Field(
        default=None,
        description="The program and its arguments; no shell reads them. It runs in the working folder. Keep it where the agent"
        " can't write.",
        examples=[["./check"]],
    )
    use: (
        Annotated[
            str, Written(r"[A-Za-z][\w.-]*(:[A-Za-z_]\w*)?", "written module:function, or the name of an entry point")
        ]
        | None
    ) = Field(
        default=None,
        description="Instead of a command: a function or class, as `package.module:name`, or the name of an entry point of the"
        " group `pod.hooks`.",
        examples=["my_pkg:MyHook"],
    )
    match: Annotated[str, Field(min_length=1)] = Field(
        default="*", description="The tools that it is asked about, as a shell-style wildcard on their names."
    )
    timeout: Seconds = Field(default=60.0, description="Seconds that it may take.")
    on_error: OnError | None = Field(
        default=None,
        description="What it means that it gives no answer (it fails, takes too long, is not there, writes no JSON). Unset: `block`"
        " for the events that begin with `Pre`, which guard something; `ignore` for the others.",
        examples=["block"],
    )
    max_blocks: Count = Field(
        default=3,
        description="How often in a run it may keep the agent from ending (`Stop`); once more is the run's end.",
    )
    name: Annotated[str, Field(min_length=1, max_length=100)] | None = Field(
        default=None,
        description="What it is called in the log. Unset: by its program or function.",
        examples=["migrations"],
    )


class InterceptorUse(Section):
    """An interceptor of your own."""

    use: Reference = Field(description="The class, as `package.module:name`.", examples=["my_pkg:MyInterceptor"])
