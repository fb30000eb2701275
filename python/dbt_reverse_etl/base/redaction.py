"""Secrets: values that were read are taken out of every text by value, and literals where none may stand are found."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import takewhile
from urllib.parse import quote, quote_plus
from weakref import WeakKeyDictionary

from dbt_reverse_etl.base.errors import ReverseEtlError, unexpected

MASK = "***"

_SECRET_NAME = re.compile(
    r"(password|passwd|passphrase|(^|_)(pwd|secret|token|api_?key|(access|private|secret|account|signing|auth)_?key"
    r"|credentials?(_json)?|key_?file_json|private_key_(pem|p8|base64)|authorization|auth_?token|cookie|dsn))$"
)
# Names of parameters of a URL that hold nothing else. `key` and `code` may hold anything.
# Both lists are part of the identity of Singer destinations: for another word, those get all rows again.
_PARAMETER = (
    r"([\w.-]*(password|passwd|secret|token|(api|subscription|functions)_?-?key|signature|hmac)"
    r"|([\w.-]*[-_.])?(sig|pass|pwd?|auth))"
)
_CREDENTIAL_TEXT = (
    re.compile(r"://[^/\s:@]*:[^/\s@]+@"),
    re.compile(
        # What follows in `'%?token=%'` is a wildcard or the end of SQL's text, and `pw=480` may be a width.
        rf"[?&](?!([\w.-]*[-_.])?pwd?=\d{{1,5}}([&#\s'\")>|\]]|[,;](\s|$)|$)){_PARAMETER}="
        r"(?!%(?![0-9a-f]{2}))[^&{\s'\"]",
        re.IGNORECASE,
    ),
    # `key=external_id2` and `code=2024-01-31` are plain words: a secret is longer, and has a digit.
    re.compile(r"[?&]([\w.-]*[-_.])?(key|code)=(?=[^&{\s]{16})[^&{\s\d]*\d", re.IGNORECASE),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
)
_IN_HEADER = re.compile(r"\b(bearer|basic|token)\s+[^\s{]", re.IGNORECASE)
# `Token count`, `token in('a','b')`, a URL and `Token firstName,Last` are no secrets in a constant: a secret has a digit or
# mixed case, or is long.
_WORD = r"\s+(?![\"'(]{0,2}\w+://)[\"'(]{0,2}(?=[^\s{]{12})"
_COLUMN = r"token(?!\s+[\"'(]{0,2}[a-z_]{1,11}\()"  # a column may be called so, but hardly `bearer` or `basic`
_IN_TEXT = re.compile(
    rf"\b(bearer|{_COLUMN}){_WORD}"
    r"([^\s{\d]*\d|(?=[\w.~+/=-]{12})(?!(?-i:[a-z]{3,}([A-Z][a-z]{2,})+,))[\w.~+/=-]*(?-i:[a-z][A-Z])|[\w.~+/=-]{20})",
    re.IGNORECASE,
)
_BASIC = re.compile(rf"\bbasic{_WORD}([^\s{{]*)", re.IGNORECASE)
_OF_COLUMNS, _CAPTURE_KEY, _OF_WORDS = (
    frozenset({"fields", "columns", "join_on", "codes", "aggregates"}),
    ("capture", "key"),
    frozenset({"where", "label", "object"}),
)
_BELOW_WORDS = frozenset({"fields", "codes", "missing_except", "error", "results", "aggregates"})
_FREE = frozenset({"headers", "constants"})  # below them, names are the user's own
# `Ocp-Apim-Subscription-Key`, but not what places or tells requests apart.
_PLAIN_KEYS = "idempotency|partition|routing|surrogate|cache|dedupe|sort"
_SECRET_HEADER = re.compile(rf"^(?!(.*-)?({_PLAIN_KEYS})-key$).*-(key|auth)$", re.IGNORECASE)
_SCHEME = re.compile(r"^\s*(bearer|basic|token|api-?key)?\s*", re.IGNORECASE)
_PLACEHOLDER = re.compile(r"\{\w+\}")

# Fewer characters than this say too little about a secret, and would blank out ordinary words.
_SHORTEST_FRAGMENT = 8
SHORTEST = 4
_MOST_RENEWED, _MOST_OF_OWNER = 64, 8


class Redactor:
    """Replaces registered values, and the forms in which they travel, by `***`; safe to use from threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal may come while it is held, and its handler may log
        self._forms: set[str] = set()
        self._newest: deque[str] = deque(maxlen=_MOST_RENEWED)
        self._of_owners: WeakKeyDictionary[object, deque[str]] = WeakKeyDictionary()
        self._pattern: re.Pattern[str] | None = None
        self._is_new = False

    def register(self, secret: str, *, owner: object | None = None) -> None:
        """Remember a value; of those that an owner renews, such as tokens, only its newest, or a long run would hold all.

        A shorter one than `SHORTEST` is ignored: it would blank out words, and so tell what it is.
        """
        if len(secret.strip()) < SHORTEST:
            return
        with self._lock:
            if owner is None:
                self._forms |= set(_forms(secret))
            else:
                # Those of all together, too: a token may be shown after its owner is gone.
                for newest in (self._newest, self._of_owners.setdefault(owner, deque(maxlen=_MOST_OF_OWNER))):
                    if secret in newest:
                        newest.remove(secret)
                    newest.append(secret)
            self._is_new = True

    def redact(self, text: str) -> str:
        """The text without any registered value."""
        pattern = self._compiled() if self._is_new else self._pattern
        return pattern.sub(MASK, text) if pattern else text

    def _compiled(self) -> re.Pattern[str] | None:
        """Only where a text is shown: an issuer may renew its token with each request."""
        with self._lock:
            if self._is_new:
                renewed = set(self._newest).union(*self._of_owners.values())
                forms = self._forms.union(*map(_forms, renewed))
                # The longest first, or a form would be cut short by one that it begins with.
                ordered = sorted(forms, key=len, reverse=True)
                self._pattern = re.compile("|".join(map(re.escape, ordered))) if ordered else None
                self._is_new = False
            return self._pattern


def _forms(secret: str) -> Iterator[str]:
    """The value itself, and as base64, percent-encoding, JSON, `repr` or one line of several would show it."""
    for value in {secret, secret.strip()} - {""}:
        yield value
        yield json.dumps(value)[1:-1]
        yield repr(value)[1:-1]
        raw = value.encode("utf-8", "surrogatepass")
        for encoded in (quote(raw, safe=""), quote(raw), quote_plus(raw)):
            yield encoded
            yield re.sub(r"%[0-9A-F]{2}", lambda hexadecimal: hexadecimal.group().lower(), encoded)
        yield from _base64_forms(raw)
        yield from (line for line in value.splitlines() if len(line) >= _SHORTEST_FRAGMENT)


def _base64_forms(raw: bytes) -> Iterator[str]:
    """Alone, and inside a longer text (`user:password`) at each of the three alignments."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        alone = encode(raw).decode()
        yield alone
        yield alone.rstrip("=")
        for offset in range(3):
            encoded = encode(bytes(offset) + raw).decode()
            # Six bits a character: those that mix with the neighbours' bits are left out.
            core = encoded[-(-offset * 8 // 6) : (offset + len(raw)) * 8 // 6]
            if len(core) >= _SHORTEST_FRAGMENT:
                yield core


_REGISTERED = Redactor()
register_secret = _REGISTERED.register
redact = _REGISTERED.redact


def message_of(error: BaseException, where: str) -> str:
    """What may be shown of an error: the text of one that is not ours may hold row values."""
    return redact(str(error)) if isinstance(error, ReverseEtlError) else str(unexpected(error, where))


def names_a_secret(name: str) -> bool:
    """Whether a key or variable of this name usually holds a secret: `CRM_PASSWORD`, `x-api-key`, `accessToken`."""
    return bool(_SECRET_NAME.search(folded(name)))


def is_login_of_url(parameter: str) -> bool:
    """Whether a parameter of this name holds a login or a signature, whatever its value."""
    return re.fullmatch(_PARAMETER, parameter, re.IGNORECASE) is not None


def folded(name: str) -> str:
    """Words in lower case with `_` between them: `accessToken` and `Access-Token` are `access_token`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return re.sub(r"[^A-Za-z0-9]+", "_", words).strip("_").lower()


def literal_secrets(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The key paths at which a value looks like a secret. A placeholder for a column, `{token}`, is none.

    A column in `fields`, `columns`, `join_on` or `capture.key`, and a code in `codes`, may be called `token`, and so may a word
    of SQL, of an object's name or of an answer.
    """
    for leaf_path, text in text_leaves(value, path):
        ours = tuple(takewhile(lambda name: name not in _FREE, leaf_path))
        named = (
            (any(map(names_a_secret, leaf_path)) or _is_secret_header(leaf_path))
            and _OF_COLUMNS.isdisjoint(ours)
            and leaf_path[:2] != _CAPTURE_KEY
        )
        rest = _SCHEME.sub("", _PLACEHOLDER.sub("", text))
        has_scheme = _BELOW_WORDS.isdisjoint(ours) and _OF_WORDS.isdisjoint(ours[len(leaf_path) - 1 :])
        with_scheme = _IN_HEADER.search if "headers" in leaf_path else _follows_a_scheme
        is_credential = any(pattern.search(text) for pattern in _CREDENTIAL_TEXT) or (has_scheme and with_scheme(text))
        if (named and rest.strip()) or is_credential:
            yield leaf_path


def _follows_a_scheme(text: str) -> bool:
    """Whether something that is no plain word comes after `Bearer`, `Token` or `Basic`."""
    return bool(_IN_TEXT.search(text)) or any(
        re.search(r"\d", word) or _is_login(word) for word in _BASIC.findall(text)
    )


def _is_login(word: str) -> bool:
    """Whether it is `user:password` in base64."""
    encoded = "".join(re.findall(r"^[A-Za-z0-9+/]+", word))
    try:
        login = base64.b64decode(encoded + "=" * (-len(encoded) % 4))
    except ValueError:
        return False
    # Plain words are base64, too, but seldom of anything that can be read.
    return b":" in login and any(login.decode(name, "surrogateescape").isprintable() for name in ("utf-8", "latin-1"))


def _is_secret_header(path: tuple[str, ...]) -> bool:
    return path[-2:-1] == ("headers",) and _SECRET_HEADER.search(path[-1]) is not None


def text_leaves(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every string in nested mappings and lists, with its key path."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping | list | tuple):
        for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from text_leaves(inner, (*path, str(key)))
