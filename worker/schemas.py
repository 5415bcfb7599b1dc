"""JSON Schemas that come from outside (a user, a server): read whole, with every reference followed, before anything depends on them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from jsonschema_specifications import REGISTRY  # pyright: ignore[reportMissingTypeStubs]  (it brings none)
from referencing import Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_SAME_VALUE = ("not", "if", "then", "else")
_SAME_VALUE_LISTS = ("allOf", "anyOf", "oneOf")
_SAME_VALUE_TABLES = ("dependentSchemas", "dependencies")


class BadSchema(ValueError):
    """A value is no JSON Schema, or none that an answer can be held against."""


def checked_schema(text: str) -> Any:
    """The schema in a text. Raises `BadSchema`.

    References lead to places in it or to the published dialects: nothing is ever fetched. One that comes back to
    itself without going into the value is refused, since no answer could be held against it.
    """
    try:
        schema: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadSchema(f"can't be read as JSON: {error}") from error
    if not isinstance(schema, dict | bool):
        raise BadSchema("is no JSON Schema: it should be an object, true or false")
    if isinstance(schema, dict) and not isinstance(cast("dict[str, Any]", schema).get("$schema", ""), str):
        raise BadSchema('is no JSON Schema: its "$schema" should be a text')
    try:
        validator_for(cast("Any", schema), default=Draft202012Validator).check_schema(cast("Any", schema))
        _check(schema)
    except SchemaError as error:
        raise BadSchema(f"is no JSON Schema: {error.message}") from error
    except Unresolvable as error:
        raise BadSchema(
            f"has a reference that leads nowhere: {error.ref!r}; others' schemas are not fetched"
        ) from error
    except RecursionError as error:
        raise BadSchema("is nested too deep") from error
    return cast("Any", schema)


def validator_of(schema: Any) -> Validator:
    """What holds values against a schema; it fetches nothing."""
    return validator_for(schema, default=Draft202012Validator)(schema, registry=REGISTRY)


def _check(schema: Any) -> None:
    root = Resource[Any].from_contents(schema, default_specification=DRAFT202012)
    done: set[int] = set()
    todo = [(root, REGISTRY.resolver_with_root(root))]
    while todo:
        resource, resolver = todo.pop()
        _follow(resource.contents, resolver, (), done)
        todo += [(inner, resolver.in_subresource(inner)) for inner in resource.subresources()]


def _follow(contents: Any, resolver: Any, path: tuple[int, ...], done: set[int]) -> None:
    """Follows what is held against the same value; a path that meets itself would never end."""
    if not isinstance(contents, dict) or id(cast("Any", contents)) in done:
        return
    if id(cast("Any", contents)) in path:
        raise BadSchema("has a reference that comes back to itself without going into the value")
    for inner, its in _same_value(cast("dict[str, Any]", contents), resolver):
        _follow(inner, its, (*path, id(cast("Any", contents))), done)
    done.add(id(cast("Any", contents)))


def _same_value(table: dict[str, Any], resolver: Any) -> Iterator[tuple[Any, Any]]:
    for key in _REFERENCES:
        if isinstance(table.get(key), str):
            found = resolver.lookup(table[key])
            yield found.contents, found.resolver
    inner = [table[key] for key in _SAME_VALUE if key in table]
    inner += [each for key in _SAME_VALUE_LISTS for each in table.get(key, ())]
    inner += [each for key in _SAME_VALUE_TABLES for each in table.get(key, {}).values()]
    for each in inner:
        if isinstance(each, dict):
            resource = Resource[Any].from_contents(cast("Any", each), default_specification=DRAFT202012)
            yield each, resolver.in_subresource(resource)
