"""Rows between Spark and datasets, by way of Parquet files.

Spark's executors write files and tasks of this package read them, or the other way round: no row goes through a driver.
The number of rows written on one side is compared with the number found on the other.

- `access`: access to Spark, and the folder that both sides see.
- `kinds`: the Spark types that a file keeps.
- `manifest`: a record of the files that Spark has written, and their reading, checked against it.
- `receiving`: has Spark write a data frame. `sending`: writes files for Spark.
"""
