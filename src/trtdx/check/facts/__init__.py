"""What is gathered: the probe's answer, import trials, shared libraries, the machine."""
