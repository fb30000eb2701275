"""JSON Lines, CSV or Parquet parts in a folder or in object storage; `sink` is the door."""
