"""Tools: typed Python functions with a policy, offered to a model by name, description and JSON Schema."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, cast, get_args, get_type_hints, overload

import anyio.to_thread
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model

from worker.errors import ConfigError
from worker.items import ToolOutput
from worker.models.base import ToolSpec

PATH_FORMATS = frozenset({"path", "file-path", "directory-path"})
"""What a schema says of a parameter that is typed as a path."""

Effect: TypeAlias = Literal["read", "write", "process", "network"]
Preview: TypeAlias = Callable[[Mapping[str, Any], bytes], bytes]
T = TypeVar("T")

MAX_OUTPUT = 65_536
"""Bytes of one tool output that reach the model; the rest goes to an artifact."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a running tool is given: the call, the working folder, and services by type.

    `deps` is the embedder's own object. Services are what the pod lends to tools (scope, artifacts, processes, history).
    """

    call_id: str
    name: str
    cwd: Path
    deps: Any = None
    services: Mapping[type, object] = field(default_factory=dict[type, object])
    before: Callable[[], None] | None = field(default=None, repr=False)
    """What a thread that runs the tool must do first; the runtime's own."""

    def get(self, kind: type[T]) -> T:
        """The service of this type. Raises `ConfigError` where the pod lends none."""
        found = self.services.get(kind)
        if found is None:
            raise ConfigError(f"the tool {self.name!r} needs a {kind.__name__}, and this worker lends none")
        return found  # type: ignore[return-value]  # the mapping is keyed by the type of its value


class ToolFault(Exception):
    """A tool says why it could not do its work; the text reaches the model as an error result."""


@dataclass(frozen=True)
class Tool:
    """A tool. Make one with `@tool`.

    `effect` decides what permission it needs and whether it may run beside others; `idempotent` lets a resume run an open call
    again; `resource` names the argument that locks; `timeout` is in seconds; `max_output` in bytes. `preview` gives what the
    file that `resource` names will hold, from the checked arguments and what it holds now (empty where there is none); it
    raises `ToolFault` where the call will be refused. Humans are shown it before they allow a write. `reads_artifacts` says that a path
    `artifact:NAME` is the pod's artifact of that name, and no path. Raises `ConfigError` for an
    effect that there is not, and for a bound that nothing could keep.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    call: Callable[[dict[str, Any], ToolContext], Any]
    effect: Effect = "read"
    idempotent: bool = False
    prunable: bool = True
    max_output: int = MAX_OUTPUT
    timeout: float | None = None
    resource: str | None = None
    validate: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    preview: Preview | None = None
    reads_artifacts: bool = False

    @property
    def threaded(self) -> bool:
        """Whether `call` runs a plain function in a thread, after the context's `before`."""
        return isinstance(self.call, InThread)

    def __post_init__(self) -> None:
        given: dict[str, Any] = vars(self)
        effects = get_args(Effect)
        if given["effect"] not in effects:
            near = get_close_matches(str(given["effect"]), effects, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(map(repr, effects))}"
            raise ConfigError(f"the tool {self.name!r} has an unknown effect {given['effect']!r}: {hint}")
        for bound, unit in (("timeout", "seconds"), ("max_output", "bytes")):
            value = given[bound]
            if value is None and bound == "timeout":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ConfigError(f"the tool {self.name!r}: {bound} is a number of {unit} above 0, not {value!r}")

    @cached_property
    def spec(self) -> ToolSpec:
        """Name, description and schema as a model is told of them."""
        return ToolSpec(self.name, self.description, self.parameters)

    @cached_property
    def path_parameters(self) -> frozenset[str]:
        """The names of parameters whose type is a path (`pathlib.Path`), also in tables below them."""
        return frozenset(_typed_as_paths(self.parameters))

    def check(self, arguments: dict[str, Any]) -> str | None:
        """What is wrong with the arguments, in words for the model, or None."""
        if self.validate is None:
            return None
        try:
            self.validate(arguments)
        except ValidationError as e:
            lines = [
                f"- {'.'.join(str(p) for p in x['loc']) or 'arguments'}: {x['msg']}"
                for x in e.errors(include_url=False)
            ]
            return f"invalid arguments for {self.name}:\n" + "\n".join(lines)
        return None

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolOutput:
        """Runs the tool. Cancelled, it leaves what the tool itself leaves. Raises what the tool raises."""
        values = self.validate(arguments) if self.validate else arguments
        result = self.call(values, context)
        if inspect.isawaitable(result):
            result = await result
        return as_output(result, label=self.name)


def as_output(value: object, *, label: str = "") -> ToolOutput:
    """What a tool returned, as a `ToolOutput`: text is split by size, other values become JSON."""
    if isinstance(value, ToolOutput):
        return value
    if value is None:
        return ToolOutput(summary=f"{label}: done, no output" if label else "done, no output")
    if not isinstance(value, str):
        value = TypeAdapter(type(value)).dump_json(value, indent=None).decode()
    return ToolOutput.from_text(value, label=label)


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    effect: Effect = "read",
    idempotent: bool = False,
    prunable: bool = True,
    max_output: int = MAX_OUTPUT,
    timeout: float | None = None,
    resource: str | None = None,
    preview: Preview | None = None,
    reads_artifacts: bool = False,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    effect: Effect = "read",
    idempotent: bool = False,
    prunable: bool = True,
    max_output: int = MAX_OUTPUT,
    timeout: float | None = None,
    resource: str | None = None,
    preview: Preview | None = None,
    reads_artifacts: bool = False,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Makes a `Tool` of a typed function, sync (run in a thread) or async.

    The schema comes from the annotations, the description and those of the parameters from the docstring. A parameter
    annotated `ToolContext` is injected and not part of the schema; one named `deps` gets the embedder's object.
    Raises `ConfigError` where a parameter has no annotation, where `resource` names none of them, and as `Tool` does.
    """
    if function is None:
        return partial(
            _build, name=name, description=description, effect=effect, idempotent=idempotent, prunable=prunable,
            max_output=max_output, timeout=timeout, resource=resource, preview=preview, reads_artifacts=reads_artifacts,
        )  # fmt: skip
    return _build(function)


def _build(
    function: Callable[..., Any], *, name: str | None = None, description: str | None = None, **policy: Any
) -> Tool:
    import docstring_parser

    if not callable(function):
        raise ConfigError(f"@tool takes a function, and its options by name (@tool(effect=...)); not {function!r}")
    label = name or function.__name__
    doc = docstring_parser.parse(function.__doc__ or "")
    documented = {p.arg_name: p.description for p in doc.params}
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    injected: dict[str, Literal["context", "deps"]] = {}
    for parameter in inspect.signature(function).parameters.values():
        if hints.get(parameter.name) is ToolContext:
            injected[parameter.name] = "context"
            continue
        if parameter.name == "deps":
            injected[parameter.name] = "deps"
            continue
        if parameter.name not in hints:
            raise ConfigError(f"the parameter {parameter.name!r} of the tool {label!r} needs an annotation")
        default = ... if parameter.default is parameter.empty else parameter.default
        # A description given as None would take away the one of an `Annotated` field.
        described: dict[str, Any] = (
            {"description": documented[parameter.name]} if documented.get(parameter.name) else {}
        )
        fields[parameter.name] = (hints[parameter.name], Field(default, **described))
    if (resource := policy.get("resource")) is not None and resource not in fields:
        near = get_close_matches(str(resource), fields, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"its parameters are {', '.join(fields) or 'none'}"
        raise ConfigError(f"the tool {label!r} has no parameter {resource!r} for resource=: {hint}")
    model: type[BaseModel] = create_model(label, __config__=ConfigDict(extra="forbid"), **fields)

    def validate(arguments: dict[str, Any]) -> dict[str, Any]:
        value = model.model_validate(arguments)
        return {key: getattr(value, key) for key in fields}

    def given(values: dict[str, Any], context: ToolContext) -> dict[str, Any]:
        for key, kind in injected.items():
            values[key] = context if kind == "context" else context.deps
        return values

    def call(values: dict[str, Any], context: ToolContext) -> Any:
        return function(**given(values, context))

    threaded = not inspect.iscoroutinefunction(function)
    between = "\n\n" if doc.blank_after_short_description else "\n"  # a first paragraph may have several lines
    text = description or between.join(part for part in (doc.short_description, doc.long_description) if part)
    runs = InThread(function, given) if threaded else call
    return Tool(name=label, description=text, parameters=_schema(model), call=runs, validate=validate, **policy)


@dataclass(frozen=True)
class InThread:
    """Calls a plain function in a thread, after the context's `before`. `given` puts in what is not an argument."""

    function: Callable[..., Any]
    given: Callable[[dict[str, Any], ToolContext], dict[str, Any]]

    def __call__(self, values: dict[str, Any], context: ToolContext) -> Any:
        job = partial(_called, self.function, self.given(values, context), context.before)
        return anyio.to_thread.run_sync(job, abandon_on_cancel=True)


def _called(function: Callable[..., Any], values: dict[str, Any], before: Callable[[], None] | None) -> Any:
    if before is not None:
        before()
    try:
        return function(**values)
    except GeneratorExit as e:
        # Handed over by an event loop, it would close the coroutines that wait for the thread.
        raise RuntimeError("GeneratorExit") from e


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema()
    schema.pop("title", None)
    for value in schema.get("properties", {}).values():
        value.pop("title", None)
    schema.setdefault("properties", {})
    return schema


def members(arguments: object) -> Iterator[tuple[str, object]]:
    """All members of the tables in a JSON value, at any depth, in their order."""
    waiting: list[object] = [arguments]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            table = cast("dict[str, object]", value)  # arguments come from JSON
            yield from table.items()
            waiting += reversed(list(table.values()))
        elif isinstance(value, list | tuple):
            waiting += reversed(cast("Sequence[object]", value))  # what is in it is looked at one by one


def _typed_as_paths(schema: dict[str, Any]) -> Iterator[str]:
    """The names of parameters whose type is a path (`pathlib.Path`), also in tables below them."""
    for name, value in members(schema):
        if name == "properties" and isinstance(value, dict):
            for key, inner in cast("dict[str, object]", value).items():  # a schema is JSON
                if any(n == "format" and v in PATH_FORMATS for n, v in members(inner)):
                    yield key
