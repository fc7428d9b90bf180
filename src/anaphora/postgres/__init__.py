"""PostgreSQL: addresses, connections and migrations, for the store that nodes share.

address = PostgresAddress.parse("postgresql://anaphora@db.example/anaphora", password)
connection = await connect(address, name="migrate")
await migrate(connection)
"""
