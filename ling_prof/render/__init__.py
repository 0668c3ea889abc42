"""Renderers: a Report in, text out. They show figures, at most per step, and find none."""
