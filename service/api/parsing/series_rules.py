"""Rules by which series of Prometheus become streams: which, under which id, with what settings."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, Field, ValidationError

from service.api.parsing.observations import ObservationParser
from service.errors.base import InvalidField, StartupError
from service.schema.observations import STREAM_ID, Form, StreamForm
from service.wire import tags

TEMPLATE = "{__name__}@{instance}~{fingerprint}"
DEFAULTS = {"interval": 60.0, "ttl": 7 * 86_400.0}  # of streams made by rules that name none
FINGERPRINT = "fingerprint"  # stands for a digest of all labels
MAX_RULES = 100
REMEMBERED = 20_000  # series, so that rules are not applied to each sample
_known = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}", re.ASCII)
_id = re.compile(STREAM_ID.strip("^$")).fullmatch
_forbidden = re.compile(r"^(?=[0-9])|[^A-Za-z0-9_]", re.ASCII)
_plain = re.compile(r"[A-Za-z0-9._:@-]*", re.ASCII).fullmatch


def _check_selector(text: str) -> str:
    tags.parse(text)
    return text


def _check_template(template: str) -> str:
    rest = _known.sub("", template)
    if not re.fullmatch(r"[A-Za-z0-9._:@~-]*", rest):
        raise ValueError("expected names of labels in braces, and A-Z a-z 0-9 . _ : @ ~ - between")
    return template


class RuleForm(StreamForm):
    """One `[[rule]]` of the file: settings of a stream, and which series it is for."""

    match: Annotated[str, AfterValidator(_check_selector)] = "{}"
    stream: Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_check_template)] = (
        TEMPLATE
    )
    drop: bool = False  # whether such series become no streams


class RulesForm(Form):
    """The whole file."""

    rule: Annotated[list[RuleForm], Field(min_length=1, max_length=MAX_RULES)]


class Target(NamedTuple):
    """What a series is written to. settings: of the stream, if it does not exist yet."""

    stream: str
    settings: dict[str, Any]


class _Rule(NamedTuple):
    selector: tags.Selector
    template: str
    settings: dict[str, Any]
    drop: bool


class SeriesRules:
    """Finds the stream of each series."""

    def __init__(self, path: Path | None, parser: ObservationParser) -> None:
        """Read a file of rules, None for the default: every series becomes a stream.

        Raises StartupError for a file that cannot be used, saying why.
        """
        forms = [RuleForm.model_validate({})] if path is None else _read(path).rule
        self._rules = [_rule(path, i, form, parser) for i, form in enumerate(forms)]
        self.target = lru_cache(maxsize=REMEMBERED)(self._target)

    def _target(self, labels: tuple[str, ...]) -> Target | None:
        """Return where a series goes, None: nowhere; raises ValueError for one that cannot.

        labels: names and values in turn.
        """
        named = dict(zip(labels[::2], labels[1::2], strict=True))
        # Labels of any characters exist since Prometheus 3; its own text format has them so.
        named = {_forbidden.sub("_", name): value for name, value in named.items()}
        if tags.STREAM in named:  # as Prometheus renames what a scrape's own labels hide
            named[f"exported_{tags.STREAM}"] = named.pop(tags.STREAM)
        for rule in self._rules:
            if rule.selector.fits("", named):
                return None if rule.drop else _made(rule, named)
        return None


def _made(rule: _Rule, labels: Mapping[str, str]) -> Target:
    stream = _known.sub(lambda found: _part(found[1], labels), rule.template)
    if _id(stream) is None or stream in {".", ".."}:
        raise ValueError(
            f"expected a stream id of 1 to 200 characters from {rule.template!r}, got "
            f"{len(stream)}: {stream[:250]!r}"
        )
    every = {**rule.settings.get("tags", {}), **labels}
    tags.check(every)
    return Target(stream, {**rule.settings, "tags": every})


def _part(name: str, labels: Mapping[str, str]) -> str:
    """Return a label's value for an id: other characters, and ~, are escaped as ~ and hex digits.

    So no two values give the same text.
    """
    if name == FINGERPRINT:
        text = "\0".join(f"{label}\0{labels[label]}" for label in sorted(labels))
        return blake2b(text.encode(), digest_size=6).hexdigest()
    value = labels.get(name, "")
    if _plain(value):
        return value
    return "".join(each if _plain(each) else f"~{each.encode().hex()}" for each in value)


def _read(path: Path) -> RulesForm:
    try:
        return RulesForm.model_validate(tomllib.loads(path.read_text()))
    except OSError as error:
        raise StartupError(f"cannot read the rules of series: {error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StartupError(f"{path}: invalid TOML: {error}") from None
    except ValidationError as error:
        raise StartupError(f"{path}: {_faults(error.errors())}") from None


def _faults(errors: Sequence[Any]) -> str:
    return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in errors)


def _rule(path: Path | None, index: int, form: RuleForm, parser: ObservationParser) -> _Rule:
    try:
        settings = parser.named(form, f"rule.{index}")
    except InvalidField as error:
        raise StartupError(f"{path}: {error}") from None
    for name in ("match", "stream", "drop"):
        settings.pop(name, None)
    return _Rule(tags.parse(form.match), form.stream, {**DEFAULTS, **settings}, form.drop)
