"""The same answers as typed tools for coding assistants: read-only, within the folders that the client names."""
