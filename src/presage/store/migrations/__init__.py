"""How a database gets from one revision to the next; Alembic runs it when a store is opened.

A revision that has been released is never edited. `presage.store.tables` shows where they lead.
"""
