"""A capture on disk: written in bounded memory, read whole or cut off, queried in SQL."""
