"""From what the user gave to one `Setup`."""
