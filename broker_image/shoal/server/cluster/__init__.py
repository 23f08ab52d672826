"""The metadata quorum, the controller, and this broker's place in the cluster."""
