"""`trtdx capture build`: a compile as a report, and what its messages mean."""
