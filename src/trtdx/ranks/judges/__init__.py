"""One table of checks over what the ranks of a job see; each yields what is wrong, with the code of its page."""
