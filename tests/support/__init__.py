"""What tests share: makers of small things, stand-ins, and what child processes of tests run.

tests/conftest.py makes this package importable, here and in every process that a test starts:
`from tests.support import …`, and "tests.support.<module>:<function>" where a name is asked for. A simulator's Python
environment, or another project's, finds it by PYTHONPATH=<checkout>, or among the packages that a worker is shown.
"""
