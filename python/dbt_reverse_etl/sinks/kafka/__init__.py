"""A Kafka topic; `sink` is the door."""
