"""What stands in a secret's place."""

MARK = "[redacted]"
