"""What a push asks of Spark, and the ledger that it keeps there. The only importers of pyspark."""
