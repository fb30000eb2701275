"""A registered secret is in no text in any form; a literal secret is told from a placeholder."""

from __future__ import annotations

import base64
import json
import re
import threading
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbt_reverse_etl.base.redaction import MASK, Redactor, literal_secrets, names_a_secret, redact, register_secret

_COMPILE = re.compile


class TestRedaction:
    @pytest.mark.guarantee("Secrets and row values")
    @settings(deadline=None)
    @given(secret=st.text(min_size=4).filter(lambda text: "*" not in text and len(text.strip()) >= 4), around=st.text())
    def test_a_registered_value_is_in_no_text(self, secret: str, around: str) -> None:
        redactor = Redactor()
        redactor.register(secret)
        raw = secret.encode()
        forms = [
            secret,
            json.dumps(secret)[1:-1],
            repr(secret)[1:-1],
            quote(secret, safe=""),
            quote_plus(secret),
            base64.b64encode(raw).decode(),
            base64.urlsafe_b64encode(raw).decode().rstrip("="),
        ]
        for form in forms:
            assert form not in redactor.redact(around + form + around)

    @pytest.mark.guarantee("Secrets and row values")
    @settings(deadline=None)
    @given(before=st.binary(), secret=st.text(min_size=9), after=st.binary())
    def test_a_secret_inside_base64_is_found_at_each_alignment(self, before: bytes, secret: str, after: bytes) -> None:
        redactor = Redactor()
        redactor.register(secret)
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            assert MASK in redactor.redact(encode(before + secret.encode() + after).decode())

    @pytest.mark.parametrize("read", ["{}\n", " {} ", "\t{}\r\n"])
    def test_a_secret_that_was_read_with_blanks_around_it_is_found_without_them(self, read: str) -> None:
        redactor = Redactor()
        redactor.register(read.format("hunter2!"))
        assert redactor.redact("file: hunter2!; URL: hunter2%21") == f"file: {MASK}; URL: {MASK}"

    @settings(deadline=None)
    @given(registered=st.lists(st.text(alphabet="abc", max_size=6), max_size=4), text=st.text(alphabet="abcd"))
    def test_redaction_touches_nothing_else(self, registered: list[str], text: str) -> None:
        redactor = Redactor()
        for secret in registered:
            redactor.register(secret)
        if not any(secret and secret in text for secret in registered) and len(text) < 4:
            assert redactor.redact(text + "dd") == text + "dd"
        assert redactor.redact("dddd") == "dddd"
        redactor.register("")
        assert redactor.redact("dddd") == "dddd"

    @settings(deadline=None)
    @given(secret=st.text(alphabet="abc", min_size=4), more=st.text(alphabet="def", min_size=1))
    def test_a_secret_that_begins_like_another_one_goes_whole(self, secret: str, more: str) -> None:
        redactor = Redactor()
        redactor.register(secret)
        redactor.register(secret + more)
        assert redactor.redact(f"<{secret}{more}>") == f"<{MASK}>"

    @pytest.mark.parametrize("secret", ["a", "is", "key", "x\n", " no "])
    def test_a_secret_of_three_characters_blanks_out_no_word(self, secret: str) -> None:
        redactor = Redactor()
        redactor.register(secret)
        assert redactor.redact("a key is no key: xa") == "a key is no key: xa"
        redactor.register("four")
        assert redactor.redact("a key of four") == f"a key of {MASK}"

    def test_the_newest_of_the_values_that_are_renewed_are_found_beside_the_others(self) -> None:
        redactor = Redactor()
        redactor.register("hunter2!")
        owner = threading.Event()
        for number in range(1000):
            redactor.register(f"token-{number:04}", owner=owner)
            redactor.register(f"token-{number:04}", owner=owner)
        assert redactor.redact("hunter2! token-0999 token-0937 token-0000") == f"{MASK} {MASK} {MASK} token-0000"
        assert len(redactor._pattern.pattern) < 100_000 if redactor._pattern else False
        redactor.register("is", owner=owner)
        assert redactor.redact("this is it") == "this is it"

    @pytest.mark.guarantee("Secrets and row values")
    def test_a_value_of_an_owner_that_seldom_renews_is_found_beside_those_of_another(self) -> None:
        redactor, owner, other = Redactor(), threading.Event(), threading.Event()
        redactor.register("token-live", owner=owner)
        for number in range(100):
            redactor.register(f"token-{number:04}", owner=other)
        assert redactor.redact("token-live token-0099") == f"{MASK} {MASK}"

    @pytest.mark.guarantee("Secrets and row values")
    def test_a_value_that_is_registered_again_is_the_newest(self) -> None:
        redactor, other = Redactor(), threading.Event()
        for number in range(64 + 63):
            redactor.register("token-same" if number in (0, 63) else f"token-{number:04}", owner=other)
        assert redactor.redact("token-same") == MASK

    @pytest.mark.guarantee("Secrets and row values")
    def test_a_value_is_found_after_its_owner_is_gone(self) -> None:
        redactor = Redactor()
        redactor.register("token-late", owner=threading.Event())
        assert redactor.redact("token-late") == MASK

    def test_values_are_joined_only_where_a_text_is_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        compiled: list[str] = []
        monkeypatch.setattr(re, "compile", lambda pattern, *_: compiled.append(pattern) or _COMPILE(pattern))
        redactor, owner = Redactor(), threading.Event()
        for number in range(100):
            redactor.register(f"token-{number:04}", owner=owner)
        assert compiled == []
        assert {redactor.redact("token-0099") for _ in range(3)} == {MASK}
        assert len(compiled) == 1

    def test_each_line_of_a_key_file_is_a_secret(self) -> None:
        register_secret("-----BEGIN KEY-----\nMIIEpAIBAAKCAQEA\nzzzz1111yyyy2222\n-----END KEY-----\n")
        assert "MIIEpAIBAAKCAQEA" not in redact("bad line: MIIEpAIBAAKCAQEA")

    @pytest.mark.parametrize(
        "name",
        [
            "password",
            "CRM_PASSWORD",
            "PGPASSWORD",
            "x-api-key",
            "apiKey",
            "accessToken",
            "Authorization",
            "client_secret",
            "credentials_json",
            "keyfile_json",
            "private_key_pem",
        ],
    )
    def test_names_of_secrets(self, name: str) -> None:
        assert names_a_secret(name)
        assert not any(
            map(
                names_a_secret,
                ["object", "key", "token_url", "secretary", "path", "monkey", "compass", "credentials_path"],
            )
        )

    @pytest.mark.parametrize(
        "value",
        [
            {"headers": {"Authorization": "Bearer {token}", "X-Api-Key": "{api_key}"}},
            {"fields": {"password": "pw", "token": "device_token"}},
            {"capture": {"strategy": "cdf", "key": {"account_key": "id"}}, "where": "token is not null"},
            {"wide_table": {"nodes": [{"join_on": {"account_key": "account_key"}, "columns": {"auth_token": "x"}}]}},
            {"object": "Token prices"},
            {
                "headers": {
                    "Subscription-Key": "{key}",
                    "Idempotency-Key": "fixed",
                    "X-Routing-Key": "eu",
                    "X-Monkey": "fixed",
                }
            },
            {
                "path": "/contacts?key=email&code=DE&sort-key=created&key={key}&code=2024-01-31&match_key=external_id_2&sig={sig}&author=me&compass=north"
            },
            {"path": "https://h/contacts/{id}?page=1", "token": 5, "secret": None, "password": ""},
            {"options": {"error": "error.code", "codes": {"invalid_token": "fatal", "bad_api_key": "fatal"}}},
            {"fields": {"price": "Basic Price", "n": "Token Count", "b": "Basic internationalprice2"}},
            {"fields": ["Basic Price", "Bearer"]},
            {
                "options": {
                    "constants": {"plan": "basic monthly", "unit": "Token per month", "kind": "Basic subscription"}
                }
            },
            {"options": {"missing_except": "Token not found", "results": {"ok": {"in": ["Token accepted"]}}}},
            {
                "nodes": {
                    "orders": {
                        "aggregates": {
                            "token": "max(token)",
                            "s": "max(k = 'Token status2active')",
                            "n": "count_if(token in('active1','inactive'))",
                        }
                    }
                }
            },
            {
                "constants": {
                    "a": "token in('active','inactive')",
                    "b": "Basic HealthInsurance",
                    "c": "Token https://a.example/B",
                    "d": "Token https://a.example/B2",
                    "e": "Token 'https://a.example/B2'",
                }
            },
            {
                "constants": {
                    "a": "Basic business-subscription",
                    "b": "Basic https://example.com/p",
                    "d": "Basic https://example.com/p2",
                    "e": "token in('active1','inactive')",
                    "c": "Token firstAnd,Second",
                    "f": "Token customerName,Second",
                    "g": "Token (in('active1','inactive'))",
                }
            },
            {
                "constants": {
                    "image": "https://img.x/y.png?pw=480",
                    "link": "(/y.png?x=1&pw=48000&pwd=1)",
                    "sql": "'/x?pw=1'",
                    "tag": "<img src=https://h/y?pw=480>",
                    "set": "x.png?pw=480, y.png?pw=960; [z?pw=480] a?pw=480|b",
                }
            },
            {"where": "utm like '%?token=%' or utm like concat('&sig=', x)"},
        ],
    )
    def test_a_placeholder_or_a_column_name_is_no_literal_secret(self, value: Any) -> None:
        assert list(literal_secrets(value)) == []

    @pytest.mark.parametrize(
        "value",
        [
            {"capture": {"token": "abc"}},
            {"where": "url = 'https://me:pw@host'"},
            {"headers": {"note": "Bearer abc"}},
            {"options": {"account_key": "abc"}},
            {"upsert": {"headers": {"Ocp-Apim-Subscription-Key": "abc"}}},
            {"headers": {"X-Auth": "abc {id}"}},
            {"path": "/workflow?api-version=1&sig=abc"},
            {"path": "/function?code=Zm9vYmFyYmF6MTIz"},
            {"path": "/maps?id={id}&key=AIzaSyA1b2C3d4E5f6"},
            {"path": "/x?subscription-key=0123456789abcdef"},
            {"path": "/x?subscription-key=abc"},
            {"path": "/x?hmac=abc"},
            {"path": "/x?pw=abc"},
            {"path": "/x?pw=123456"},
            {"path": "/x?pwd=1234a"},
            {"path": "/x?db_pw=12-34"},
            {"path": "/x?pw=480&password=1234"},
            {"path": "/x?uid=a&pwd=123;abcSecret9"},
            {"path": "/x?password=1234"},
            {"path": "/x?token=12345"},
            {"path": "/x?pass=abc"},
            {"path": "/x?auth=abc"},
            {"path": "/x?token=%41bc"},
            {"where": "url = 'https://h/x?token=abc'"},
            {"constants": {"note": "Bearer abcdefghijklmno1"}},
            {"constants": {"note": "Basic dXNlcjpwYXNz"}},
            {"constants": {"note": "Basic internationalprice2"}},
            {"constants": {"note": "Bearer abc-defghijklmnopqrstuvwxyz"}},
            {"constants": {"note": "Bearer sk-abcdefghijklmnopqrstuvwxyz"}},
            {"constants": {"note": "Bearer AbCdEfGhIjKlMnOp"}},
            {"constants": {"note": "'Bearer AbCdEfGhIjKlMnOp'"}},
            {"constants": {"note": "Bearer 'AbCdEfGhIjKlMnOp'"}},
            {"constants": {"note": "-H 'Authorization: Bearer abcdefghijklmnopqrstuvwx'"}},
            {"constants": {"note": "Bearer AbCdEfGhIjKlMnOp, x"}},
            {"constants": {"note": "Bearer abcdefghijklmnopqrstuvwx (prod)"}},
            {"constants": {"note": "Bearer (sk_live_51Habcdef1234)"}},
            {"constants": {"note": "Bearer ('sk_live_51Habcdef1234')"}},
            {"constants": {"note": "Bearer sk_live_51Habcdef1234(prod)"}},
            {"constants": {"note": "Token sk_live_51Habcdef1234(prod)"}},
            {"constants": {"note": "Bearer sk_live(abc)12345"}},
            {"constants": {"note": "Basic sk_live(abc)12345"}},
            {"constants": {"note": "Basic dXNlcjpwYXNz,"}},
            {"constants": {"note": "Basic (dXNlcjpwYXNz)"}},
            {"constants": {"note": "Basic dXNlcjpwYXNz(prod)"}},
            {"constants": {"note": "Basic dXNlcjpwYXNz;x"}},
            {"constants": {"note": "Basic 'dXNlcjpwYXNz'"}},
            {"constants": {"note": '{"a":"Basic dXNlcjpwYXNz"}'}},
            {"constants": {"note": "Basic dXNlcjrk/ORwYXNz"}},
            {"where": {"a": "Bearer canary-5772156649"}},
            {"constants": {"codes": {"api_key": "abc"}}},
            {"upsert": {"headers": {"error": "Bearer abc"}}},
            {"headers": {"fields": "Basic abc"}},
        ],
    )
    def test_what_stands_elsewhere_is_one(self, value: Any) -> None:
        assert len(list(literal_secrets(value))) == 1
