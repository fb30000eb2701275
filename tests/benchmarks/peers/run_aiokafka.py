"""Runs in the environment of aiokafka: one producer that sends messages and waits for the broker's answer to each."""

from __future__ import annotations

import asyncio
import json
import pickle
import sys
import time
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer

AT_ONCE = 20_000


async def main() -> None:
    work = json.load(sys.stdin)
    messages: list[Any] = pickle.loads(Path(work["messages"]).read_bytes())
    producer = AIOKafkaProducer(
        bootstrap_servers=work["servers"], enable_idempotence=True, compression_type="lz4",
        linger_ms=work["linger"], max_batch_size=work["batch"],
    )  # fmt: skip
    await producer.start()
    try:
        began = time.perf_counter()
        for first in range(0, len(messages), AT_ONCE):
            sent = [
                await producer.send(work["topic"], value, key, headers=headers)
                for key, value, headers in messages[first : first + AT_ONCE]
            ]
            await asyncio.gather(*sent)
        print(json.dumps({"seconds": time.perf_counter() - began}))
    finally:
        await producer.stop()


if __name__ == "__main__":
    asyncio.run(main())
