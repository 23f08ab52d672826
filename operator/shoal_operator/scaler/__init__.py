"""What KEDA and others ask for the scale of a ShareConsumer."""
