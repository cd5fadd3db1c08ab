"""Supervise a command: pass everything through, watch every process of the job, say what went wrong."""
