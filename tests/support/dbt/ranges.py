"""The ranges of keys that a statement names."""

from __future__ import annotations

import re

from dbt_reverse_etl.base.sql import value_of

LEAST, GREATEST = -(2**63), 2**63 - 1


def ranges_of(bits: int, cells: list[int]) -> list[tuple[int, int]]:
    condition = value_of("_in_cells", "id", {"bits": bits, "cells": cells})
    return [(int(low), int(high)) for low, high in re.findall(r"`id` between (-?\d+) and (-?\d+)", condition)]
