"""Variables and embeddings: small objects that hold the address of their shards.

`registry` makes them on the servers, `handles` is their base class, and `foreign` converts other frameworks' variables.
"""
