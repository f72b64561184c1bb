"""Errors of HTTP requests refused before their body is parsed."""

from __future__ import annotations

from collections.abc import Mapping

from service.errors.base import FormError, ServiceError, UnsupportedMediaType

REALM = 'Bearer realm="moca"'


class Unauthorized(ServiceError):
    """No valid API key; `error` is the OAuth error code."""

    status, slug, title = 401, "unauthorized", "Unauthorized"

    def __init__(self, detail: str, error: str = "") -> None:
        super().__init__(detail)
        self._error = error

    def headers(self) -> Mapping[str, str]:
        """Return the authentication challenge."""
        return {"WWW-Authenticate": REALM + (f', error="{self._error}"' if self._error else "")}


class MissingScope(ServiceError):
    """The API key lacks the scope of this call; `scope` is the required one."""

    status, slug, title = 403, "missing-scope", "Missing scope"

    def headers(self) -> Mapping[str, str]:
        """Return the challenge with the missing scope, as in OAuth."""
        scope = self.extra["scope"]
        return {"WWW-Authenticate": f'{REALM}, error="insufficient_scope", scope="{scope}"'}


class RateExceeded(ServiceError):
    """The key's rate limit is exceeded; nothing was accepted."""

    status, slug, title = 429, "rate-exceeded", "Rate exceeded"
    retry_after_s = 1

    def __init__(self, detail: str, limit: int, window_s: int, reset_s: int) -> None:
        super().__init__(detail)
        self._limit, self._window_s, self._reset_s = limit, window_s, reset_s

    def headers(self) -> Mapping[str, str]:
        """Return the rate limit and the time until it resets."""
        return {
            "Retry-After": str(self._reset_s),
            "RateLimit-Policy": f'"key";q={self._limit};w={self._window_s}',
            "RateLimit": f'"key";r=0;t={self._reset_s}',
        }


class SlowBody(FormError):
    """The body did not arrive in time."""

    status, slug, title = 408, "slow-body", "Request body too slow"

    def headers(self) -> Mapping[str, str]:
        """Close the connection: late bytes would be taken for the next request."""
        return {"Connection": "close"}


class UnsupportedEncoding(UnsupportedMediaType):
    """The content encoding of the body is not supported."""

    slug, title = "unsupported-encoding", "Unsupported content encoding"

    def headers(self) -> Mapping[str, str]:
        """Return the accepted encodings."""
        return {"Accept-Encoding": "gzip, deflate"}
