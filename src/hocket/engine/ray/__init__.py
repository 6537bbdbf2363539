"""The cluster: the engine contract, mapped onto Ray.

Nothing is scheduled, stored or sent by ourselves. The parts, from the bottom:

1. `natives`: our handles and Ray's, and what becomes of one in the other.
2. `errors`: Ray's exceptions, said in our words.
3. `keywords`: our records of options, as Ray's keywords.
4. `runner`: what runs in Ray's workers around the user's code.
5. `listing`: what Ray knows of its tasks, actors and nodes, as rows.
6. `engine`: the contract.
"""
