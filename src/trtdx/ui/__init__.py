"""Something to look at: cases in a browser, or as one file."""
