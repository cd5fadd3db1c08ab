"""The agent: a few modules of the standard library alone that are loaded into the processes of a supervised job.

They run in the job's Python (3.8 or newer), where trtdx is not installed, so nothing here imports trtdx. `site` is put
on the job's PYTHONPATH; its `sitecustomize.py` loads this folder as the package `_trtdx_agent`. Whatever fails in here
is written down in the case and goes no further: the program runs as if nobody were watching.
"""
