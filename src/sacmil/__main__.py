"""``python -m sacmil`` is the command ``sacmil``."""

from sacmil.cli.main import main

main()
