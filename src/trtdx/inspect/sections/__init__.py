"""What `trtdx inspect` shows: overviews, tables, differences."""
