"""What the channels of alerts may be set to."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from dbt_reverse_etl.alerts.channels import Mail

MAIL: dict[str, Any] = {"type": "email", "host": "smtp.example.com", "sender": "a@example.com", "to": ["b@example.com"]}


@pytest.mark.guarantee("Report and alerts")
def test_mail_over_port_465_without_tls_from_the_first_byte_is_refused_with_what_to_set() -> None:
    with pytest.raises(ValidationError, match="security: tls, for port 465 has no STARTTLS; or port: 587"):
        Mail(**MAIL, port=465)
    assert Mail(**MAIL, port=465, security="tls").port == 465
    assert Mail(**MAIL).security == "starttls"
