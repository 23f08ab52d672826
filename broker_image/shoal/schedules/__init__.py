"""Schedules: records that are produced at the times of a cron expression, once for each tick.

`ticks` decides which record is due, from a clock that is an argument. `specs` reads QueueSchedules,
`producing` makes their records, and `runner` runs schedules in this process. The operator, `shoal
schedule run` and `shoal.worker` share them.
"""
