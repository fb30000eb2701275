"""The signature of dbt Cloud's webhooks: the header `Authorization` is the hex HMAC-SHA256 of the raw body.

Source: https://docs.getdbt.com/docs/deploy/webhooks
"""

from __future__ import annotations

import hmac


def is_signed(body: bytes, header: str, secret: str) -> bool:
    """Whether the header proves that who sent the body knows the secret; takes as long for a wrong one as for a right one."""
    expected = hmac.new(secret.encode(), body, "sha256").hexdigest()
    return hmac.compare_digest(expected.encode(), header.strip().lower().encode("utf-8", "replace"))
