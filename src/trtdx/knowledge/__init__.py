"""The rule book: pages loaded and checked, their templates and patterns, and which releases belong together."""
