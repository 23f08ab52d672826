"""QueueUsers: credentials, certificates and permissions."""
