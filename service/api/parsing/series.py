"""Series of samples in a request of any protocol, and the streams that they are for.

Rules say which series become streams, under which id, with what settings.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from hashlib import blake2b
from math import nan
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

import msgspec
import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, ValidationError

from model_core import wording
from service import wire
from service.api.parsing.bodies import CommandParser
from service.problems import InvalidField, StartupError
from service.schema import rendering
from service.schema.commands import check_selector
from service.schema.observations import STREAM_CHARACTERS, Form, StreamForm, is_stream
from service.schema.queries import RESULT_SERIES
from service.settings import read_toml
from service.wire import tags

MAX_AHEAD_MS = 10 * 60_000  # of a sample's time before now: a later one would block its stream
RESULTS = ("applied", "skipped", "unmatched", "rejected", "untried", "deferred")
MAX_LABEL = 1e100  # in size; larger ones no model takes: `model_core.labels.LARGEST`
TEMPLATE = "{__name__}@{instance}~{fingerprint}"
DEFAULTS = {"interval": 60.0, "ttl": 7 * 86_400.0}  # of streams made by rules that name none
FINGERPRINT = "fingerprint"  # stands for a digest of all labels
MAX_PART = 80  # characters of a label in an id that the fingerprint tells apart
MAX_RULES = 100
MAX_REMEMBERED = 20_000  # series whose targets are cached: some 30 MB
MAX_KEY = 2 * tags.MAX_ALL  # characters of the labels of a series; bytes of one that is cached
SHOWN = 100  # characters of a label's name or value in an error
_reference = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}", re.ASCII)
_forbidden = re.compile(r"^(?=[0-9])|[^A-Za-z0-9_]", re.ASCII)
_plain = re.compile(r"[A-Za-z0-9._:@-]*", re.ASCII).fullmatch
Labels = bytes | tuple[str, ...]  # as sent: it depends on the protocol
Samples = list[tuple[float | None, int]]  # value, None where it is missing, and ms since 1970
KnownTargets = Mapping[Labels, "Target | None"]
UNKNOWN: Any = object()  # in place of the target of a series that is not known
Texts = Callable[[Labels], tuple[str, ...]]  # of labels: name, value, name, value ...


def plain_texts(labels: Labels) -> tuple[str, ...]:
    """Return labels that were sent as texts."""
    return cast(tuple[str, ...], labels)


class RemoteWrite(NamedTuple):
    """Content of a request, and counts of what is not read.

    texts: reads the labels of its series; of one that is known they are not read.
    """

    series: list[tuple[Labels, Samples]]
    refusals: list[tuple[int, str]]  # samples of series that are not read, and why
    samples: int
    histograms: int
    exemplars: int
    texts: Texts = plain_texts


class KnownSamples(NamedTuple):
    """Samples of series that have one each, by columns.

    targets: UNKNOWN: the sample is to be read from the message. sizes: bytes of each sample, after
    the labels. times: ms since 1970.
    """

    targets: list[Any]
    sizes: list[int]
    values: NDArray[np.float64]
    times: NDArray[np.int64]


def too_many_labels(count: float) -> str:
    """Return what is wrong with a series of more labels than a stream has tags."""
    return f"expected at most {tags.MAX_TAGS} labels, got {count:g}"


def finite(value: float) -> float | None:
    """Return a sample's value; those that are no numbers, such as staleness markers, are missing.

    So is infinity, of which no model can learn anything.
    """
    return value if math.isfinite(value) else None


# --- rules ----------------------------------------------------------------------------------------


def _check_template(template: str) -> str:
    between = _reference.sub("", template)
    if not re.fullmatch(f"[{STREAM_CHARACTERS}]*", between):
        raise ValueError("expected names of labels in braces, and A-Z a-z 0-9 . _ : @ ~ - between")
    return template


class RuleForm(StreamForm):
    """One `[[rule]]` of the file: settings of a stream, and which series it is for."""

    match: Annotated[str, AfterValidator(check_selector)] = "{}"
    stream: Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_check_template)] = (
        TEMPLATE
    )
    drop: bool = False  # whether such series become no streams


class RulesForm(Form):
    """The whole file."""

    rule: Annotated[list[RuleForm], Field(min_length=1, max_length=MAX_RULES)]


class Target(msgspec.Struct):
    """Stream that a series is written to.

    settings: of the stream, if it does not exist yet, as of `wire.Ingest`: encoded once for all
    samples. made: whether it was there when a sample was written last: then they are not sent.
    """

    stream: str
    settings: msgspec.Raw
    fingerprint: str  # of the series
    made: bool = False


class _Rule(NamedTuple):
    selector: tags.Selector
    template: str
    settings: dict[str, Any]
    drop: bool
    by_name: bool  # only such a rule takes results of this service


class SeriesRules:
    """Finds the stream of each series."""

    def __init__(self, path: Path | None, parser: CommandParser) -> None:
        """Read a file of rules, None for the default: every series becomes a stream.

        Raises StartupError for a file that cannot be used, saying why.
        """
        forms = [RuleForm.model_validate({})] if path is None else _read(path).rule
        self._rules: list[_Rule] = []
        for i, form in enumerate(forms):
            try:
                settings = parser.settings(form, f"rule.{i}")
            except InvalidField as error:
                raise StartupError(f"{path}: {error}") from None
            for name in ("match", "stream", "drop"):
                settings.pop(name, None)
            selector = tags.parse(form.match)
            by_name = any(matcher.name == tags.METRIC for matcher in selector.matchers)
            rule = _Rule(selector, form.stream, {**DEFAULTS, **settings}, form.drop, by_name)
            self._rules.append(rule)
        self.known: dict[Labels, Target | None] = {}  # of series whose targets were found last

    def target(self, labels: Labels, texts: Texts = plain_texts) -> Target | None:
        """Return where a series goes, None: nowhere; raises ValueError for one that cannot.

        In one thread at a time; others may read what is known.
        """
        target: Target | None = self.known.get(labels, UNKNOWN)
        if target is UNKNOWN:
            target = self._find(labels, texts)
            size = len(labels) if isinstance(labels, bytes) else sum(map(len, labels))
            if size <= MAX_KEY:
                if len(self.known) >= MAX_REMEMBERED:
                    del self.known[next(iter(self.known))]
                self.known[labels] = target
        return target

    def _find(self, own: Labels, texts: Texts) -> Target | None:
        labels = texts(own)
        size = sum(map(len, labels))
        if size > MAX_KEY:  # many series may name the same text, which is sent once
            raise ValueError(f"expected at most {MAX_KEY} characters in all labels, got {size}")
        names = labels[::2]
        if len(set(names)) < len(names):
            repeated = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"expected each label once, got {repeated[:SHOWN]!r} several times")
        pairs = zip(names, labels[1::2], strict=True)
        sent = {name: value for name, value in pairs if value}  # an empty label is none
        series_tags = _tags(sent)
        is_result = sent.get(tags.METRIC) in RESULT_SERIES
        for rule in self._rules:
            if is_result and not (rule.by_name or rule.drop):
                continue  # results that are written back would multiply
            if rule.selector.fits("", series_tags):
                # A digest of the labels as sent; no text in UTF-8 has the byte between them.
                sorted_texts = [text.encode() for pair in sorted(sent.items()) for text in pair]
                fingerprint = blake2b(b"\xff".join(sorted_texts), digest_size=6).hexdigest()
                return None if rule.drop else _target(rule, series_tags, fingerprint)
        return None


def _tags(labels: Mapping[str, str]) -> dict[str, str]:
    """Return labels under names that tags can have; raises ValueError where two would be one."""
    renamed: dict[str, str] = {}
    for name, value in labels.items():
        # Labels of any characters exist since Prometheus 3; its own text format has them so.
        tag = _forbidden.sub("_", name)
        if tag in renamed:
            raise ValueError(f"expected labels that differ as tags, got two for the tag {tag!r}")
        renamed[tag] = value
    if tags.STREAM in renamed:
        renamed[tags.exported(tags.STREAM, renamed)] = renamed.pop(tags.STREAM)
    return renamed


def _target(rule: _Rule, labels: Mapping[str, str], fingerprint: str) -> Target:
    stream_tags = tags.check({**rule.settings.get("tags", {}), **labels})
    stream = _id_from(rule.template, labels, fingerprint)
    if not is_stream(stream):
        raise ValueError(
            f"expected a stream id of 1 to 200 characters from {rule.template!r}, got "
            f"{len(stream)}: {stream[:250]!r}"
        )
    settings = {**rule.settings, "tags": stream_tags}
    return Target(stream, msgspec.Raw(wire.encode(settings)), fingerprint)


def _id_from(template: str, labels: Mapping[str, str], fingerprint: str) -> str:
    """Return the id by a template; with the fingerprint in it long labels are shortened."""
    longest = MAX_PART if f"{{{FINGERPRINT}}}" in template else None

    def text_of(name: str) -> str:
        return fingerprint if name == FINGERPRINT else _escaped(labels.get(name, ""))[:longest]

    return _reference.sub(lambda reference: text_of(reference[1]), template)


def _escaped(value: str) -> str:
    """Return a label's value for an id: other characters, and ~, are escaped as ~ and hex digits.

    So no two values give the same text.
    """
    if _plain(value):
        return value
    return "".join(
        character if _plain(character) else f"~{character.encode().hex()}" for character in value
    )


def _read(path: Path) -> RulesForm:
    try:
        return RulesForm.model_validate(read_toml(path, "the rules of series"))
    except ValidationError as error:
        faults = [
            f"{'.'.join(map(str, fault['loc']))}: {wording.described(fault)}"
            for fault in error.errors()
        ]
        raise StartupError(f"{path}: {'; '.join(faults)}") from None


# --- the streams of a request ---------------------------------------------------------------------


class SampleTally:
    """Counts of a request's samples by result, and the reason of the first failure."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.counts = dict.fromkeys(RESULTS, 0)
        self.reason = ""

    def add(self, result: str, count: int, reason: str = "") -> None:
        """Count samples; reason: of those that were rejected, untried or deferred."""
        self.counts[result] += count
        self.reason = self.reason or reason


class StreamAssignment:
    """Samples of one request that are for streams, by columns; the others are counted.

    y: nan: it is missing.
    """

    def __init__(self, samples: int) -> None:
        self.targets: list[Target] = []
        self.y: list[float] = []
        self.times: list[str] = []
        self.tally = SampleTally(samples)
        self._instants: dict[int, str] = {}  # by ms: many series have samples of the same time
        self._fingerprints: dict[str, str] = {}  # by stream

    @classmethod
    def of_known(cls, samples: KnownSamples, now_ms: int) -> StreamAssignment | None:
        """Assign samples of known series; None where one of them is to be looked at by itself."""
        targets, _, values, times = samples
        own = cls(len(targets))
        if None in targets:
            matched = [place for place, target in enumerate(targets) if target is not None]
            own.tally.add("unmatched", len(targets) - len(matched))
            targets = [targets[place] for place in matched]
            values = values[matched]
            times = times[matched]
        y = np.where(np.isfinite(values), values, nan)
        too_large = bool((np.abs(y) > MAX_LABEL).any())
        ahead = bool((times > now_ms + MAX_AHEAD_MS).any())
        # A series may come several times, but no two with the same stream.
        shared = len({target.stream for target in targets}) < len({*map(id, targets)})
        if too_large or ahead or shared:
            return None
        own.targets = targets
        own.y = y.tolist()
        milliseconds = times.tolist()
        instants = {ms: rendering.instant(ms) for ms in set(milliseconds)}
        own.times = [instants[ms] for ms in milliseconds]
        return own

    @classmethod
    def of(cls, write: RemoteWrite, rules: SeriesRules, now_ms: int) -> StreamAssignment:
        """Assign the samples of any request."""
        own = cls(write.samples)
        for refused, reason in write.refusals:
            own.tally.add("rejected", refused, reason)
        for labels, samples in write.series:
            if samples:
                own._add(labels, write.texts, samples, rules, now_ms)
        return own

    def _add(
        self, labels: Labels, texts: Texts, samples: Samples, rules: SeriesRules, now_ms: int
    ) -> None:
        try:
            target = rules.target(labels, texts)
            if target is None:
                self.tally.add("unmatched", len(samples))
                return
            if (
                self._fingerprints.setdefault(target.stream, target.fingerprint)
                != target.fingerprint
            ):
                detail = "the rules give another series of the request the same stream"
                raise ValueError(f"{detail}, {target.stream!r}: name more labels in `stream`")
        except ValueError as error:
            reason = f"{_label_text(texts(labels))}: {error}"
            self.tally.add("rejected", len(samples), reason)
            return
        for value, ms in samples:
            try:
                instant = self._instants.get(ms) or self._instant(ms, now_ms)
                if value is not None and abs(value) > MAX_LABEL:
                    raise ValueError(
                        f"expected a value of at most {MAX_LABEL:g} in size, got {value:g}"
                    )
            except (ValueError, OverflowError, OSError) as error:
                text = _label_text(texts(labels))
                self.tally.add("rejected", 1, f"{text}: sample with timestamp {ms}: {error}")
                continue
            self.targets.append(target)
            self.y.append(nan if value is None else value)
            self.times.append(instant)

    def _instant(self, ms: int, now_ms: int) -> str:
        if ms > now_ms + MAX_AHEAD_MS:
            ahead_s = (ms - now_ms) // 1000
            raise ValueError(f"expected at most 600 s after now, got {ahead_s} s: set the clocks")
        instant = self._instants[ms] = rendering.instant(ms)
        return instant


def _label_text(labels: tuple[str, ...]) -> str:
    pairs = zip(labels[::2], labels[1::2], strict=True)
    shown = ",".join(f"{name[:SHOWN]}={value[:SHOWN]!r}" for name, value in pairs)
    return ("{" + shown + "}")[:300]
