"""Rows between Spark and datasets, by way of Parquet files.

Spark's executors write files, tasks of ours read them, and the other way round: no row goes through a driver. What is
counted on one side is compared with what the other side finds.

- `access`: Spark itself, which enters here, and the folder that both sides see.
- `kinds`: which of Spark's types a file keeps.
- `manifest`: what is noted of the files that Spark has written, and how they are read, compared with that.
- `receiving`: has Spark write a data frame. `sending`: writes files for Spark.
"""
