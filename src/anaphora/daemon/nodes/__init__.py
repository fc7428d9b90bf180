"""State shared by the nodes of one PostgreSQL store, besides the ledger: the grants, the key of
token hashes, and the list of nodes.

    membership      this node: what it serves, whether it is drained, what it reports; tokens,
                    grants and drains that another node or a command wrote
    generations     the grants of all nodes, in numbered versions
    directory       the list of nodes; drains
    administration  the methods behind `anaphora nodes` and `anaphora grants apply`
"""
