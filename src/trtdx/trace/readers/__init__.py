"""Files of other tools as one model of time: `open_trace.py` tells which reader a file needs."""
