"""The optimization pack: a Ling-3.0 decode engine, its kernels, and the passes that are switched and measured on it.

Imports ling_prof, never the reverse; its commands (`bench`, `trace`) join the command line by entry point.
"""
