"""Where Spark puts the rows of a push: which stripes of buckets lie in which partition."""

from __future__ import annotations

from functools import cache
from itertools import count

from pyspark.sql import SparkSession

from dbt_reverse_etl.delivery.streams import PERIOD

_WORD = 0xFFFFFFFF


def partitions_of(spark: SparkSession) -> int:
    """Into so many Spark divides rows that are distributed by an expression; where nobody says, any number will do."""
    conf = spark.conf
    number = conf.get("spark.sql.adaptive.coalescePartitions.initialPartitionNum", None)
    number = number or conf.get("spark.sql.shuffle.partitions", None) or ""
    return int(number) if number.isdigit() else PERIOD


@cache
def places(stripes: int, partitions: int) -> tuple[int, ...]:
    """For each stripe a number that Spark's hash puts into a partition: as many stripes in each, in their order."""
    wanted = [stripe * partitions // stripes for stripe in range(stripes)]
    found: dict[int, int] = {}
    for number in count():
        found.setdefault(_hash(number) % partitions, number)
        if all(partition in found for partition in wanted):
            break
    return tuple(found[partition] for partition in wanted)


def _hash(number: int) -> int:
    """Spark's hash of an int: Murmur3 with the seed 42."""
    word = number * 0xCC9E2D51 & _WORD
    word = (word << 15 | word >> 17) * 0x1B873593 & _WORD
    mixed = 42 ^ word
    mixed = (mixed << 13 | mixed >> 19) * 5 + 0xE6546B64 & _WORD
    mixed ^= 4
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B & _WORD
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 & _WORD
    mixed ^= mixed >> 16
    return mixed - 2**32 if mixed >> 31 else mixed
