"""The file of webhooks: who is called, for what, and with which secret."""

from __future__ import annotations

import base64
import binascii
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from service.feed import Filter
from service.models import REFERENCE
from service.process import Refused
from service.settings import Settings
from service.webhooks.allow import Allowed, NotAllowed

PREFIX = "whsec_"
MIN_SECRET, MAX_SECRET = 24, 64  # bytes, as the Standard Webhooks specification has it
MAX_HOOKS = 100


class Hook(NamedTuple):
    """One webhook, ready for use."""

    name: str
    url: str
    secret: bytes
    wanted: Filter

    def __repr__(self) -> str:
        """Name it without its secret, which is in no log and no traceback."""
        return f"Hook({self.name!r})"


class HookForm(BaseModel):
    """One `[[hook]]` of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    url: str
    secret: SecretStr | None = None
    secret_env: str | None = None
    secret_file: Path | None = None
    prefix: list[str] = []
    model: list[Annotated[str, Field(pattern=REFERENCE)]] = []
    states: Annotated[list[Literal["suspected", "confirmed", "withdrawn"]], Field(min_length=1)] = [
        "confirmed"
    ]


class File(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid")

    hook: Annotated[list[HookForm], Field(min_length=1, max_length=MAX_HOOKS)]


def hooks_of(settings: Settings, environ: Mapping[str, str]) -> list[Hook]:
    """Read the webhooks that `settings` name; Refused when one cannot be used, saying why."""
    path = settings.webhooks_file
    if path is None:
        return []
    allowed = Allowed.parse(settings.webhook_hosts)
    forms = _read(path)
    names = [form.name for form in forms]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise Refused(f"{path}: more than one hook is named {twice[0]!r}")
    return [_hook(path, form, allowed, environ) for form in forms]


def _read(path: Path) -> list[HookForm]:
    try:
        return File.model_validate(tomllib.loads(path.read_text())).hook
    except OSError as error:
        raise Refused(f"the file of webhooks cannot be read: {error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Refused(f"{path} is not TOML: {error}") from None
    except ValidationError as error:
        # Only where and why: what was given may be a secret.
        raise Refused("; ".join(f"{path}: {_fault(each)}" for each in error.errors())) from None


def _fault(error: Any) -> str:
    return f"{'.'.join(str(part) for part in error['loc'])}: {error['msg']}"


def _hook(path: Path, form: HookForm, allowed: Allowed, environ: Mapping[str, str]) -> Hook:
    try:
        allowed.check_url(form.url)
        secret = _secret(_given(path, form, environ))
    except (NotAllowed, ValueError) as error:
        raise Refused(f"{path}: hook {form.name!r}: {error}") from None
    wanted = Filter(
        prefixes=tuple(form.prefix), models=frozenset(form.model), states=frozenset(form.states)
    )
    return Hook(form.name, form.url, secret, wanted)


def _given(path: Path, form: HookForm, environ: Mapping[str, str]) -> str:
    sources = (form.secret, form.secret_env, form.secret_file)
    if sum(source is not None for source in sources) != 1:
        raise ValueError("expected one of secret, secret_env and secret_file")
    if form.secret_env is not None:
        if form.secret_env not in environ:
            raise ValueError(f"the variable {form.secret_env} of secret_env is not set")
        return environ[form.secret_env]
    if form.secret_file is not None:
        try:
            return (path.parent / form.secret_file).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"secret_file cannot be read: {error}") from None
    return form.secret.get_secret_value() if form.secret is not None else ""


def _secret(text: str) -> bytes:
    """Key of a secret: base64 after `whsec_`, else the text itself."""
    text = text.strip()
    try:
        encoded = text.startswith(PREFIX)
        key = base64.b64decode(text[len(PREFIX) :], validate=True) if encoded else text.encode()
    except binascii.Error:
        raise ValueError(f"the secret is not base64 after {PREFIX}") from None
    if not MIN_SECRET <= len(key) <= MAX_SECRET:
        raise ValueError(f"expected a secret of {MIN_SECRET} to {MAX_SECRET} bytes, got {len(key)}")
    return key
