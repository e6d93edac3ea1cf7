"""`python -m embodied_rl` does what the console script does."""

import sys

if __name__ == "__main__":
    if sys.version_info < (3, 11):  # noqa: UP036 - pip would refuse it; a checkout runs with any
        sys.exit(f"embodied-rl needs Python 3.11 or later; {sys.executable} is {sys.version.split()[0]}.")

    from embodied_rl.cli.main import main

    sys.exit(main())
