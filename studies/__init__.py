"""Studies as data: a YAML file each, one harness that runs them all, and their results."""
