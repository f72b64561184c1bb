"""Bodies of the hot path, decoded by msgspec under the rules of their pydantic forms.

The form stays the only source: the types here are made from its JSON schema, the one that OpenAPI
shows, and from its validators, which must leave what is taken as it is. What is refused here goes
to pydantic, which decides and says what is wrong; so nothing is accepted that pydantic refuses as
long as msgspec is at least as strict, which the tests look for. A form with a rule that cannot be
carried over raises TypeError when it is set up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from operator import or_
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
from pydantic import AfterValidator, BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

Schema = dict[str, Any]
Check = Callable[[Any], Any]
_PLAIN: dict[str, Any] = {
    "number": float,
    "integer": int,
    "string": str,
    "boolean": bool,
    "null": NoneType,
}
_BOUNDS = {
    "minimum": "ge",
    "exclusiveMinimum": "gt",
    "maximum": "le",
    "exclusiveMaximum": "lt",
    "minLength": "min_length",
    "maxLength": "max_length",
    "minItems": "min_length",
    "maxItems": "max_length",
}
_TOLD = {"title", "description", "default", "examples"}  # annotations, not constraints
LONGEST, AT_ONCE = 16_384, 64  # bytes of an object, and objects, in one call of msgspec
REFUSALS = (msgspec.MsgspecError, ValueError, RecursionError)


class MsgspecForm:
    """Decoders of one form: an object, or a list of them. None: let pydantic look at it."""

    def __init__(self, form: type[BaseModel]) -> None:
        schema = form.model_json_schema()
        self.struct = _struct(form, schema, schema.get("$defs", {}))
        self._checks = list(_checks(form))
        self._one = msgspec.json.Decoder(self.struct).decode
        self._many = msgspec.json.Decoder(list[self.struct]).decode  # type: ignore[name-defined]

    def one(self, body: bytes | msgspec.Raw) -> Any:
        """Return one object, or None."""
        if len(body) > LONGEST:
            return None
        try:
            found = self._one(body)
            self._check((found,))
        except REFUSALS:
            return None
        return found

    def many(self, body: bytes) -> list[Any] | None:
        """Return a list of objects, or None."""
        if len(body) > AT_ONCE * LONGEST:
            return None
        try:
            found: list[Any] = self._many(body)
            self._check(found)
        except REFUSALS:
            return None
        return found

    def each(self, parts: Sequence[msgspec.Raw]) -> Iterator[Any]:
        """Yield the objects of a list that was cut into its parts, with None for some."""
        for first in range(0, len(parts), AT_ONCE):
            some = parts[first : first + AT_ONCE]
            found = None
            if max(map(len, some)) <= LONGEST:
                found = self.many(b"[" + b",".join(some) + b"]")
            yield from map(self.one, some) if found is None else found

    def _check(self, found: Sequence[Any]) -> None:
        for name, check in self._checks:
            for each in found:
                value = getattr(each, name)
                if value is not None and check(value) != value:
                    raise ValueError(f"{name}: its validator changes the value")


def _struct(form: type[BaseModel], schema: Schema, definitions: Schema) -> type[msgspec.Struct]:
    """Return a form as a msgspec type."""
    decorators = form.__pydantic_decorators__
    if decorators.field_validators or decorators.model_validators or decorators.validators:
        raise TypeError(f"{form.__name__}: model validators are not supported")
    if schema.get("additionalProperties") is not False:
        raise TypeError(f"{form.__name__}: unknown fields must be forbidden")
    if set(schema.get("properties", {})) != set(form.model_fields):
        raise TypeError(f"{form.__name__}: field aliases are not supported")
    hints = get_type_hints(form, include_extras=True)
    models = {each.__name__: each for hint in hints.values() for each in _models(hint)}
    fields: list[Any] = []
    for name, field in form.model_fields.items():
        kind = _type(schema["properties"][name], definitions, models)
        default = () if field.is_required() else (_default(name, field),)
        fields.append((name, kind, *default))
    return msgspec.defstruct(
        form.__name__, fields, forbid_unknown_fields=True, kw_only=True, gc=False
    )


def _type(schema: Schema, definitions: Schema, models: dict[str, type[BaseModel]]) -> Any:
    """Return what a JSON schema describes, as a type for msgspec."""
    rules = {name: value for name, value in schema.items() if name not in _TOLD}
    if "$ref" in rules:
        name = rules.pop("$ref").rsplit("/", 1)[-1]
        if rules or any(True for _ in _checks(models[name])):
            raise TypeError(f"{name}: unsupported constraints")
        return _struct(models[name], definitions[name], definitions)
    if set(rules) == {"anyOf"}:
        return reduce(or_, [_type(each, definitions, models) for each in rules["anyOf"]])
    kind = rules.pop("type", None)
    items = rules.pop("items", None)
    if kind == "array" and items is not None:
        found: Any = list[_type(items, definitions, models)]  # type: ignore[misc]
    elif kind in _PLAIN and items is None:
        found = _PLAIN[kind]
    else:
        raise TypeError(f"unsupported schema: {schema}")
    bounds = {_BOUNDS[name]: rules.pop(name) for name in list(rules) if name in _BOUNDS}
    if "pattern" in rules:
        bounds["pattern"] = _pattern(rules.pop("pattern"))
    if rules:
        raise TypeError(f"unsupported constraints: {rules}")
    return Annotated[found, msgspec.Meta(**bounds)] if bounds else found


def _pattern(pattern: str) -> str:
    r"""Return a pattern that means in Python what it means in JSON schema.

    `$` there is the end and nothing else; classes such as \w are ASCII in one and not the other.
    """
    if "\\" in pattern or pattern[:1] != "^" or pattern[-1:] != "$" or "$" in pattern[:-1]:
        raise TypeError(f"unsupported pattern: {pattern!r}")
    return pattern[:-1] + r"\Z"


def _default(name: str, field: FieldInfo) -> Any:
    if not isinstance(field.default, str | int | float | NoneType):
        raise TypeError(f"{name}: unsupported default")
    return field.default


def _checks(form: type[BaseModel]) -> Iterable[tuple[str, Check]]:
    """Yield the fields of a form with what its validators say of them."""
    for name, hint in get_type_hints(form, include_extras=True).items():
        if name not in form.model_fields:
            continue
        members = [each for each in _members(hint) if each is not NoneType]
        for member in members:
            for found in _validators(member):
                if len(members) > 1:
                    raise TypeError(f"{name}: validator on one member of a union is not supported")
                yield name, found


def _members(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union, or what is none as its only one."""
    return get_args(hint) if get_origin(hint) in {Union, UnionType} else (hint,)


def _validators(hint: Any) -> Iterable[Check]:
    """Yield the checks of a type; TypeError where they are deeper in it, or of another kind."""
    if get_origin(hint) is Annotated:
        inner, *metadata = get_args(hint)
        for each in metadata:
            if isinstance(each, AfterValidator | BeforeValidator):
                yield each.func  # type: ignore[misc]
            elif type(each).__name__.endswith("Validator"):
                raise TypeError(f"{each}: not supported")
    else:
        inner = hint
    if any(True for deeper in get_args(inner) for _ in _validators(deeper)):
        raise TypeError(f"{hint}: validator on a part is not supported")


def _models(hint: Any) -> Iterable[type[BaseModel]]:
    """Yield the forms within a type."""
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        yield hint
    for each in get_args(hint):
        yield from _models(each)
