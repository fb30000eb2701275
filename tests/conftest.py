"""What holds for every test: how long random searches go on."""

from __future__ import annotations

from hypothesis import settings

from tests.support.effort import scaled

settings.register_profile("effort", max_examples=scaled(settings.default.max_examples), deadline=None)
settings.load_profile("effort")
