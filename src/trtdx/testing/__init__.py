"""What a test uses to define something, run it and look inside: the fixture `dx` of pytest_plugin.py."""
