"""Share groups on this broker: fetches, acknowledgements, their state and dead letters."""
