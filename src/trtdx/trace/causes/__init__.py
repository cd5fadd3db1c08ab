"""One table of causes; each yields its share of the time and the evidence, in the words of a rule page."""
