"""The databases a store can lie in, behind one interface: SQLite for one machine, PostgreSQL for a team."""
