"""What training reads, and in which order.

`ledger` says which rows each rank takes at each step, from three numbers that are all there is to save; `order` is the shuffle behind it;
`exact` adds up an evaluation so that the number of ranks cannot be seen in the result. Nothing here imports a framework.
"""

from hocket.data.exact import ExactMean as ExactMean
from hocket.data.ledger import Ledger as Ledger
from hocket.data.ledger import Slice as Slice
