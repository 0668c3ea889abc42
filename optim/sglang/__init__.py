"""A real SGLang server: recorded, timed, and its optimizations switched."""
