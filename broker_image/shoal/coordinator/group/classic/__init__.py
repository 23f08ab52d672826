"""Classic consumer groups: JoinGroup and SyncGroup."""
