"""`python -m attsvm` is the `attsvm` command."""

from attsvm.cli import main

main()
