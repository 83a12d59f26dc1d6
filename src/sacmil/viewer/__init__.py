"""The viewer: a web page over one results folder; it knows no model and reads nothing else."""
