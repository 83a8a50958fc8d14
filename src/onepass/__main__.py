"""`python -m onepass` is the command `onepass`."""

from onepass.cli import main

main()
