"""Other tools' files: read into a capture, written from one."""
