"""The linters of the house style: sizes, places, prose, references, layers and decision records.

`make lint` runs them over the whole tree. Each failure states the remedy.
"""
