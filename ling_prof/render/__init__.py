"""Renderers: a Report in, text out. Nothing here computes a figure."""
