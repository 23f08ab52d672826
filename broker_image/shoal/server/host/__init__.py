"""Several brokers on one host."""
