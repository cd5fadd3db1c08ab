# ruff: noqa: TID253 - imported only where on_cpu gives these modules
from .mlp import *  # noqa: F403 - as the real one does in places
