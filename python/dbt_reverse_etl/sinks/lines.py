"""Settings of one line: a variable that was filled from a file often ends with a line break, and a login with it fails."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import AfterValidator, SecretStr

_T = TypeVar("_T", bound=str | SecretStr | None)


def one_line(value: _T) -> _T:
    """The text, if no line break is at its ends; there it was never meant."""
    text = value.get_secret_value() if isinstance(value, SecretStr) else value
    if text is not None and text != text.strip("\r\n"):
        raise ValueError("found a line break; expected none; next: look for a line break at the end of the variable")
    return value


def _before_a_colon(user: str) -> str:
    if ":" in user:
        raise ValueError("found a user with a colon; expected none, as the password begins behind it; next: correct it")
    return user


OneLine = Annotated[str, AfterValidator(one_line)]
SecretLine = Annotated[SecretStr, AfterValidator(one_line)]
BasicUser = Annotated[OneLine, AfterValidator(_before_a_colon)]  # of HTTP Basic
