"""Bodies of the hot path, decoded by msgspec under the rules of their pydantic forms.

The form is the only source: the types are made from its JSON schema, which OpenAPI shows, and from
its validators, which must not change accepted values. A body refused here goes to pydantic, which
decides and names the errors. So nothing is accepted that pydantic refuses, as long as msgspec is at
least as strict; tests check that. A form with a rule that cannot be converted raises TypeError when
it is set up.
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
_ANNOTATIONS = {"title", "description", "default", "examples"}  # annotations, not constraints
LONGEST, AT_ONCE = 16_384, 64  # bytes of an object, and objects, in one call of msgspec
REFUSALS = (msgspec.MsgspecError, ValueError, RecursionError)


class MsgspecForm:
    """Decoders of one form: an object, or a list of them. None: pydantic has to decide."""

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
            form = self._one(body)
            self._check((form,))
        except REFUSALS:
            return None
        return form

    def many(self, body: bytes) -> list[Any] | None:
        """Return a list of objects, or None."""
        if len(body) > AT_ONCE * LONGEST:
            return None
        try:
            forms: list[Any] = self._many(body)
            self._check(forms)
        except REFUSALS:
            return None
        return forms

    def each(self, parts: Sequence[msgspec.Raw]) -> Iterator[Any]:
        """Yield the objects of a list that was cut into its parts; None for refused ones."""
        for first in range(0, len(parts), AT_ONCE):
            batch = parts[first : first + AT_ONCE]
            forms = None
            if max(map(len, batch)) <= LONGEST:
                forms = self.many(b"[" + b",".join(batch) + b"]")
            yield from map(self.one, batch) if forms is None else forms

    def _check(self, forms: Sequence[Any]) -> None:
        for name, check in self._checks:
            for form in forms:
                value = getattr(form, name)
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
    models = {model.__name__: model for hint in hints.values() for model in _models(hint)}
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
    rules = {name: value for name, value in schema.items() if name not in _ANNOTATIONS}
    if "$ref" in rules:
        name = rules.pop("$ref").rsplit("/", 1)[-1]
        if rules or any(True for _ in _checks(models[name])):
            raise TypeError(f"{name}: unsupported constraints")
        return _struct(models[name], definitions[name], definitions)
    if set(rules) == {"anyOf"}:
        return reduce(or_, [_type(member, definitions, models) for member in rules["anyOf"]])
    kind = rules.pop("type", None)
    items = rules.pop("items", None)
    if kind == "array" and items is not None:
        result: Any = list[_type(items, definitions, models)]  # type: ignore[misc]
    elif kind in _PLAIN and items is None:
        result = _PLAIN[kind]
    else:
        raise TypeError(f"unsupported schema: {schema}")
    bounds = {_BOUNDS[name]: rules.pop(name) for name in list(rules) if name in _BOUNDS}
    if "pattern" in rules:
        bounds["pattern"] = _pattern(rules.pop("pattern"))
    if rules:
        raise TypeError(f"unsupported constraints: {rules}")
    return Annotated[result, msgspec.Meta(**bounds)] if bounds else result


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
    """Yield the fields of a form with their validators."""
    for name, hint in get_type_hints(form, include_extras=True).items():
        if name not in form.model_fields:
            continue
        members = [member for member in _members(hint) if member is not NoneType]
        for member in members:
            for check in _validators(member):
                if len(members) > 1:
                    raise TypeError(f"{name}: validator on one member of a union is not supported")
                yield name, check


def _members(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union; any other type is its only member."""
    return get_args(hint) if get_origin(hint) in {Union, UnionType} else (hint,)


def _validators(hint: Any) -> Iterable[Check]:
    """Yield the checks of a type; TypeError for nested ones or those of another kind."""
    if get_origin(hint) is Annotated:
        inner, *metadata = get_args(hint)
        for item in metadata:
            if isinstance(item, AfterValidator | BeforeValidator):
                yield item.func  # type: ignore[misc]
            elif type(item).__name__.endswith("Validator"):
                raise TypeError(f"{item}: not supported")
    else:
        inner = hint
    if any(True for deeper in get_args(inner) for _ in _validators(deeper)):
        raise TypeError(f"{hint}: validator on a part is not supported")


def _models(hint: Any) -> Iterable[type[BaseModel]]:
    """Yield the forms within a type."""
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        yield hint
    for argument in get_args(hint):
        yield from _models(argument)
