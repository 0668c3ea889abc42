"""The dashboard: one page, one file with a `show`. `store` reads and analyses, once; pages only show."""
