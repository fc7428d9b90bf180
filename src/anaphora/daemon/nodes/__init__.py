"""What several nodes of one store in PostgreSQL have in common, beside the ledger: the grants, the
key of token hashes, and which nodes there are.

    membership      this node: what it serves, whether it is drained, what it reports; tokens,
                    grants and drains that another node or a command wrote
    generations     the grants of all nodes, in numbered versions
    directory       the list of nodes; drains
    administration  the methods behind `anaphora nodes` and `anaphora grants apply`
"""
