"""The pods, Jobs and Spark applications of ShareConsumers, and their schedules. Pure."""
