"""Regrow beside what people use today: `python benchmarks/compare`, or `make compare`.

Modules of this package import each other as `compare.systems`; those in `jobs` run in the environments of the peers, where
they import each other plainly (`from task import Task`), and nothing else of this package.
"""
