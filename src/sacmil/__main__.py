"""Run the command ``sacmil`` as ``python -m sacmil``."""

from sacmil.cli.main import main

main()
