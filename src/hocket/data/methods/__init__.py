"""The methods of a data set, each a function of its plan. `hocket.data.dataset` binds them.

`rows` and `columns` add steps to it; `tables` has the steps and numbers that need all rows. `batches`, `looking`,
`conversions`, `splits` and `writers` execute it. `contract` is the part of a data set that they need.
"""
