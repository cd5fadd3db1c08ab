"""Models with one known mistake in each, and pairs with none, for `trtdx compare` to be examined with."""
