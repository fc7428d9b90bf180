"""PostgreSQL: addresses, connections and tables, for the store that nodes share.

address = PostgresAddress.parse("postgresql://anaphora@db.example/anaphora", password)
connection = await connect(address, name="start")
await schema.create(connection)
"""
