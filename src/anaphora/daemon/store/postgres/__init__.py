"""The store of several nodes: a database in PostgreSQL.

Each node has an epoch, a row of the table `nodes` whose id is stored with all its holds. If a node
is silent, the others declare it dead: its holds are settled at their bound, and it cannot make new
ones in that epoch. It returns with a new epoch, and its late settlements correct the entries at the
bound.
"""

from .epoch import MOST_SKEW
from .store import PostgresStore

__all__ = ["MOST_SKEW", "PostgresStore"]
