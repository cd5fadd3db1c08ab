"""The sizes of a model, wherever they are stated."""
