"""Which stored objects of a request belong to its app, and the strict reader of request bodies."""
