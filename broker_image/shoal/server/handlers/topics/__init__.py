"""Topics and their partitions: create, describe, reassign, elect leaders, delete."""
