"""The methods of a dataset, each a function. `hocket.data.dataset` binds them.

`rows` and `columns` add steps to the plan; `tables` has the steps and aggregates that need all rows. `batches`,
`looking`, `conversions`, `splits` and `writers` execute the plan. `contract` is the part of a dataset that they need.
"""
