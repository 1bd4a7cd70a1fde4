"""Rows: the only place with SQL. Every question about a tenant's data takes a `Scope`."""
