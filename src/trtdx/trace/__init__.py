"""Where the time of a run goes: profiler traces, iteration logs, request records and benchmark reports."""
