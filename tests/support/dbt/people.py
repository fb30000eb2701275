"""A model of people in two steps, for sessions of every kind."""

from __future__ import annotations

MODEL = """
select id, concat('person ', id, if(id % 50 = 0, ' {{ var("step", 1) }}', ' 1')) as name
from range({{ 3 if var("step", 1) > 1 else 0 }}, {{ 201 if var("step", 1) > 1 else 200 }})
"""

FIRST = {n: f"person {n} 1" for n in range(200)}

SECOND = {n: f"person {n} {1 if n % 50 else 2}" for n in range(3, 201)}
