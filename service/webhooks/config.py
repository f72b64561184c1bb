"""The file of webhooks: who is called, for what, with which secret, and how often."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from model_core import wording
from model_core.wording import did_you_mean
from service.models.catalogue import REFERENCE
from service.problems import StartupError
from service.settings import Settings, read_toml
from service.webhooks.allowlist import Allowed, NotAllowed
from service.webhooks.sender import AppriseSender, Format, Hook
from service.wire import tags
from service.wire.event_entries import Filter

PREFIX = "whsec_"
# Bytes, as the Standard Webhooks specification has it.
MIN_SECRET = 24
MAX_SECRET = 64
MAX_HOOKS = 100
MAX_SELECTORS = 20
BEARER_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # RFC 6750
CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class HookForm(BaseModel):
    """One `[[hook]]` of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    url: str | None = None  # as secret as a secret where it is all that a receiver asks for
    url_env: str | None = None
    url_file: Path | None = None
    secret: SecretStr | None = None
    secret_env: str | None = None
    secret_file: Path | None = None
    username: str | None = None
    password: SecretStr | None = None
    password_env: str | None = None
    password_file: Path | None = None
    bearer_token: SecretStr | None = None
    bearer_token_env: str | None = None
    bearer_token_file: Path | None = None
    prefix: list[str] = []
    model: list[Annotated[str, Field(pattern=REFERENCE)]] = []
    match: Annotated[list[str], Field(max_length=MAX_SELECTORS)] = []
    # None: confirmed, and withdrawn too of Alertmanager, whose alerts end
    states: (
        Annotated[list[Literal["suspected", "confirmed", "withdrawn"]], Field(min_length=1)] | None
    ) = None
    kinds: Annotated[list[Literal["change", "returned", "anomaly"]], Field(min_length=1)] = [
        "change"
    ]
    format: Format = "native"
    resolve_s: Annotated[float, Field(gt=0, le=30 * 86400)] = 3600.0


class Delivery(BaseModel):
    """Bounds of delivery, at the top level of the file; they hold for each of its hooks."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    # longest wait of a confirmed change for others of its incident; 0: each is delivered by itself
    collect_s: Annotated[float, Field(ge=0, le=3600)] = 30.0
    attempts: Annotated[int, Field(ge=1)] = 10  # before a delivery is given up
    timeout_s: Annotated[float, Field(gt=0)] = 10.0  # longest time of one attempt
    backoff_s: Annotated[float, Field(gt=0)] = 1.0  # after the first failed attempt; it doubles
    backoff_max_s: Annotated[float, Field(gt=0)] = 300.0  # longest pause between attempts
    in_flight: Annotated[int, Field(ge=1)] = 8  # deliveries of one hook at a time
    dead_letters: Annotated[int, Field(ge=1)] = 1000  # deliveries given up that are kept


class File(Delivery):
    """The whole file."""

    console_url: Annotated[str, Field(pattern=r"^(https?://[^\s#?]+)?$", max_length=500)] = ""
    hook: Annotated[list[HookForm], Field(min_length=1, max_length=MAX_HOOKS)]


class Webhooks(NamedTuple):
    """The hooks of a file, and the bounds of delivery to each."""

    hooks: list[Hook]
    delivery: Delivery


def webhooks_of(settings: Settings, environ: Mapping[str, str]) -> Webhooks:
    """Read the webhooks that `settings` name; StartupError when one cannot be used, saying why."""
    path = settings.webhooks_file
    if path is None:
        return Webhooks([], Delivery())
    allowed = Allowed.parse(settings.webhook_hosts)
    try:
        file = File.model_validate(read_toml(path, "the webhooks file"))
    except ValidationError as error:
        raise StartupError(
            "; ".join(f"{path}: {_fault(details)}" for details in error.errors())
        ) from None
    names = [form.name for form in file.hook]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise StartupError(f"{path}: duplicate hook name {twice[0]!r}")
    hooks = [_hook(path, form, file.console_url, allowed, environ) for form in file.hook]
    return Webhooks(hooks, file)


def _fault(error: Any) -> str:
    loc = error["loc"]
    value = error["input"]
    text = wording.expected(error)
    if error["type"] == "extra_forbidden":
        text = "unknown field"
        if loc[-1] not in Delivery.model_fields:
            text += did_you_mean(str(loc[-1]), (File if len(loc) == 1 else HookForm).model_fields)
    fault = f"{'.'.join(str(part) for part in loc)}: {text}"
    if loc[-1] not in Delivery.model_fields:
        return fault  # only where and why: what was given may be a secret
    if len(loc) > 1:
        return f"{fault}; move it to the top of the file, above the first [[hook]]"
    return f"{fault}, got {value if isinstance(value, int | float) else type(value).__name__}"


def _hook(
    path: Path, form: HookForm, console_url: str, allowed: Allowed, environ: Mapping[str, str]
) -> Hook:
    try:
        url = _one_of("url", form, path, environ)
        if url is None:
            raise ValueError("expected one of url, url_env and url_file")
        url = url.strip()
        stated = _one_of("secret", form, path, environ)
        secret = _secret(form, None if stated is None else stated.strip())
        authorization = _authorization(form, path, environ)
        if form.format == "apprise":
            if secret or authorization:
                raise ValueError("expected no secret and no credentials beside an Apprise URL")
            AppriseSender(url, allowed, 0.0)  # a mistake is to refuse the start
        else:
            allowed.check_url(url)
        selectors = tuple(tags.parse(selector) for selector in form.match)
    except (NotAllowed, ValueError) as error:
        raise StartupError(f"{path}: hook {form.name!r}: {error}") from None
    states = ["confirmed", "withdrawn"] if form.format == "alertmanager" else ["confirmed"]
    wanted = Filter(
        prefixes=tuple(form.prefix),
        models=frozenset(form.model),
        states=frozenset(form.states or states),
        kinds=frozenset(form.kinds),
        match=selectors,
    )
    return Hook(
        form.name,
        url,
        secret,
        wanted,
        format=form.format,
        resolve_s=form.resolve_s,
        console_url=console_url,
        authorization=authorization,
    )


def _authorization(form: HookForm, path: Path, environ: Mapping[str, str]) -> str:
    """Header Authorization, basic (RFC 7617) or bearer (RFC 6750); empty: there is none."""
    password = _one_of("password", form, path, environ)
    token = _one_of("bearer_token", form, path, environ)
    if token is not None:
        if password is not None or form.username is not None:
            raise ValueError("expected bearer_token, or username and password, not both")
        token = token.strip()
        if not BEARER_TOKEN.fullmatch(token):
            raise ValueError("bearer_token: expected letters, digits and -._~+/, and = at the end")
        return f"Bearer {token}"
    if password is None and form.username is None:
        return ""
    if not password or not form.username:
        raise ValueError("expected username and password together, neither empty")
    if ":" in form.username or CONTROL.search(form.username + password):
        raise ValueError(
            "username and password: expected no control characters, and no colon in the username"
        )
    return f"Basic {base64.b64encode(f'{form.username}:{password}'.encode()).decode()}"


def _one_of(name: str, form: HookForm, path: Path, environ: Mapping[str, str]) -> str | None:
    """Return the text of a hook's NAME, of the variable NAME_env or of the file NAME_file; or None.

    As it is: spaces may be part of a password. Variables and files often end with a newline, which
    is left out, once.
    """
    text: str | SecretStr | None = getattr(form, name)
    variable: str | None = getattr(form, f"{name}_env")
    file: Path | None = getattr(form, f"{name}_file")
    if sum(source is not None for source in (text, variable, file)) > 1:
        raise ValueError(f"expected one of {name}, {name}_env and {name}_file")
    if variable is not None:
        if variable not in environ:
            raise ValueError(f"{name}_env: the variable {variable} is not set")
        return _line(environ[variable])
    if file is not None:
        try:
            return _line((path.parent / file).read_text("utf-8-sig"))
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"cannot read {name}_file: {error}") from None
    return text.get_secret_value() if isinstance(text, SecretStr) else text


def _line(text: str) -> str:
    return text.removesuffix("\n").removesuffix("\r")


def _secret(form: HookForm, text: str | None) -> bytes:
    """Key of a secret: base64 after `whsec_`, else the text itself; empty: there is none."""
    if text is None:
        if form.format == "native":
            raise ValueError("expected one of secret, secret_env and secret_file")
        return b""
    try:
        encoded = text.startswith(PREFIX)
        key = base64.b64decode(text[len(PREFIX) :], validate=True) if encoded else text.encode()
    except binascii.Error:
        raise ValueError(f"the secret is not base64 after {PREFIX}") from None
    if not MIN_SECRET <= len(key) <= MAX_SECRET:
        raise ValueError(f"expected a secret of {MIN_SECRET} to {MAX_SECRET} bytes, got {len(key)}")
    return key
