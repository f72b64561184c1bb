"""Rules by which series of Prometheus become streams: which, under which id, with what settings."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
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
# So that rules are not applied to each sample: of the labels in memory, some 100 bytes of text in a
# usual series. A string has some 50 bytes more than its text.
MAX_REMEMBERED = 16 << 20  # characters
STRING_OVERHEAD = 50
MAX_KEY = 2 * tags.MAX_ALL  # characters of labels that are remembered
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


class _Targets:
    """Targets of recent series by their labels, in bounded memory.

    Two generations: a full one replaces the other, and what is still used moves on. Each operation
    on the dictionaries is atomic, so threads need no lock.
    """

    def __init__(self) -> None:
        self._recent: dict[tuple[str, ...], Target | None] = {}
        self._earlier: dict[tuple[str, ...], Target | None] = {}
        self._size = 0  # characters of the recent ones

    def __getitem__(self, labels: tuple[str, ...]) -> Target | None:
        recent = self._recent
        if labels in recent:
            return recent[labels]
        target = self._earlier[labels]
        self[labels] = target
        return target

    def __setitem__(self, labels: tuple[str, ...], target: Target | None) -> None:
        size = sum(map(len, labels))
        if size > MAX_KEY:
            return
        # Twice: the tags may be strings of their own.
        self._size += 2 * (size + STRING_OVERHEAD * len(labels))
        self._recent[labels] = target
        if self._size > MAX_REMEMBERED / 2:
            self._earlier = self._recent
            self._recent = {}
            self._size = 0

    def __len__(self) -> int:
        return len(self._recent) + len(self._earlier)


class SeriesRules:
    """Finds the stream of each series."""

    def __init__(self, path: Path | None, parser: ObservationParser) -> None:
        """Read a file of rules, None for the default: every series becomes a stream.

        Raises StartupError for a file that cannot be used, saying why.
        """
        forms = [RuleForm.model_validate({})] if path is None else _read(path).rule
        self._rules = [_rule(path, i, form, parser) for i, form in enumerate(forms)]
        self._targets = _Targets()

    def target(self, labels: tuple[str, ...]) -> Target | None:
        """Return where a series goes, None: nowhere; raises ValueError for one that cannot.

        labels: names and values in turn.
        """
        try:
            return self._targets[labels]
        except KeyError:
            target = self._targets[labels] = self._target(labels)
            return target

    def _target(self, labels: tuple[str, ...]) -> Target | None:
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
