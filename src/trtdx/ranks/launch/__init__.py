"""Which command starts a job here: plan, then a script or a manifest with a reason for every flag."""
