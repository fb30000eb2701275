"""TLS: what is asked of a user's own authority, and why a certificate was not accepted."""

from __future__ import annotations

import ssl


def lenient(context: ssl.SSLContext) -> None:
    """Verify as Python did before 3.13: in-house authorities often lack what RFC 5280 asks of their certificates."""
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT


def why_refused(error: ssl.SSLCertVerificationError) -> str:
    """OpenSSL's own text, which quotes nothing but the host's name."""
    message = getattr(error, "verify_message", "").rstrip(".")
    return f": {message}" if message else ""
