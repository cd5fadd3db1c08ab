"""What a team has met before: cases kept in a store, searched, resolved, and sent as one file."""
