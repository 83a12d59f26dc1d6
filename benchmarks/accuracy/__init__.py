"""What models are worth: one file per study, ``python -m benchmarks.accuracy.STUDY``.

A study is a list of jobs; a job trains one model once and becomes one line of a CSV file, so a
study that was stopped goes on where it was. Files with an underscore are what studies share.
"""
