"""Credentials that are made while running: OAuth 2.0 access tokens, and the signature of one request.

Thirty lines instead of a library: those for OAuth bring a session that follows redirects and reads proxies and `.netrc`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from urllib.parse import quote_plus, urlencode

from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.base.redaction import register_secret
from dbt_reverse_etl.sinks.http.answer import Answer, Failure, error_code, loaded
from dbt_reverse_etl.sinks.http.pause import retry_after
from dbt_reverse_etl.sinks.http.settings import HEADER_VALUE, OAuth2

Post = Callable[[Mapping[str, str], bytes], Answer | Failure]

_PASSING = frozenset({408, 425, 429})
_BEARER = frozenset({"bearer", "bearertoken"})  # the second is Apigee's
_NO_EXPIRY = 300.0
# The next run would send the one in profiles.yml again.
_ROTATED = "found a new refresh token, which cannot be kept; expected the one that was sent; next: use client credentials, or auth: {type: python} with a class that keeps the new one"


@dataclass(frozen=True)
class Token:
    """An access token and the time at which it is renewed, in seconds of the clock."""

    text: str
    renew_at: float


class Tokens:
    """The access token of one destination, renewed before it expires, once for all threads; `post` sends to the token endpoint."""

    def __init__(self, settings: OAuth2, post: Post, clock: Callable[[], float] = time.monotonic) -> None:
        self._headers, self._form = _request(settings)
        self._refresh_token = settings.parameters.get_secret_value().get("refresh_token")
        self._post = post
        self._clock = clock
        self._lock = threading.Lock()
        self._answer: Token | Failure | None = None
        self._asked = 0

    def get(self, refused: str | None = None) -> str | Failure:
        """A token that is not the `refused` one; or why there is none, with nothing sent to the destination."""
        asked = self._asked
        if (text := self._usable(refused)) is not None:
            return text
        with self._lock:
            if (text := self._usable(refused)) is not None:
                return text
            if self._asked > asked and isinstance(self._answer, Failure):
                return self._answer  # another thread asked while this one waited
            answer = _token(self._post(self._headers, self._form), self._clock(), self._refresh_token)
            if isinstance(answer, Token):
                register_secret(answer.text, owner=self)
            self._answer = answer
            self._asked += 1
        return answer.text if isinstance(answer, Token) else answer

    def _usable(self, refused: str | None) -> str | None:
        token = self._answer
        if isinstance(token, Token) and token.text != refused and self._clock() < token.renew_at:
            return token.text
        return None


def _request(settings: OAuth2) -> tuple[dict[str, str], bytes]:
    client, secret = settings.client_id, settings.client_secret.get_secret_value()
    form = {"grant_type": "client_credentials", **settings.parameters.get_secret_value()}
    form |= {} if settings.scope is None else {"scope": settings.scope}
    headers = {"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded"}
    if settings.client_auth == "form":
        form |= {"client_id": client, "client_secret": secret}
    else:
        pair = f"{quote_plus(client)}:{quote_plus(secret)}".encode()  # RFC 6749, section 2.3.1
        headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
    return headers, urlencode(form).encode()


def is_passing(status: int) -> bool:
    """Whether a login that was answered with this status may succeed later."""
    return status >= 500 or status in _PASSING


def _token(answer: Answer | Failure, now: float, refresh_token: str | None) -> Token | Failure:
    """A request for a token changes nothing at the destination: every failure leaves the rows surely not applied."""
    where = "the token endpoint"
    if isinstance(answer, Failure):
        outcome = Outcome.FATAL if answer.outcome is Outcome.FATAL else Outcome.RETRYABLE
        return Failure(outcome, f"{where}: {answer.reason}")
    document = loaded(answer)
    document = document if isinstance(document, dict) else {}
    if is_passing(answer.status):
        pause = retry_after(answer.headers, datetime.now(timezone.utc))
        return Failure(Outcome.RETRYABLE, f"{where}: HTTP {answer.status}", pause)
    if answer.status not in (200, 201):
        return Failure(Outcome.FATAL, f"{where}: HTTP {answer.status}{error_code(document, 'error')}")
    if answer.cut:
        return Failure(Outcome.RETRYABLE, f"{where}: {answer.body_problem}")
    text = document.get("access_token")
    bearer = str(document.get("token_type") or "bearer").lower() in _BEARER
    is_rotated = refresh_token is not None and document.get("refresh_token") not in (None, "", refresh_token)
    if not isinstance(text, str) or not HEADER_VALUE.fullmatch(text) or not bearer or is_rotated:
        reason = _ROTATED if is_rotated else f"HTTP {answer.status}, but no bearer token"
        return Failure(Outcome.FATAL, f"{where}: {reason}")
    return Token(text, now + _lifetime(document.get("expires_in")))


def _lifetime(expires_in: object) -> float:
    """Seconds until the renewal: a tenth of the life, at most a minute, before its end. Zero is no life: some issuers mean none by it."""
    try:
        seconds = float(expires_in) if isinstance(expires_in, int | float | str) else _NO_EXPIRY
    except ValueError:
        seconds = _NO_EXPIRY
    seconds = seconds if seconds > 0 else _NO_EXPIRY
    return seconds - min(60.0, seconds / 10)


def signature(key: bytes, event: str, seconds: int, body: bytes) -> dict[str, str]:
    """The headers of Standard Webhooks for one request of the event `event` at `seconds` since 1970."""
    signed = b"%s.%d.%s" % (event.encode(), seconds, body)
    mac = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return {"webhook-id": event, "webhook-timestamp": str(seconds), "webhook-signature": f"v1,{mac}"}
