"""The cluster: brokers, controllers, features, and what they ask each other."""
