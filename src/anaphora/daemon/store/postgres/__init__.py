"""The store of several nodes: a database in PostgreSQL.

Each node has an epoch, a row of the table `nodes` whose id is on all that it holds. A node that is
silent is taken for dead by the others: its holds are settled at their bound, and it cannot hold
under that epoch any more. It comes back under a new one, and its late settlements correct the
entries at the bound.
"""

from .epoch import MOST_SKEW
from .store import PostgresStore

__all__ = ["MOST_SKEW", "PostgresStore"]
