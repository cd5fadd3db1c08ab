"""Programs that the job's own Python runs, on every rank, through the user's launcher.

They need Python 3.8 and nothing else. Nothing has to be installed or copied to the nodes: `programs.py` joins their
sources into one text, without the lines that import from trtdx, and hands it to `python3 -c`.
"""
