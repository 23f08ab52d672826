"""Administration: topics, groups, configs, quotas, permissions, offsets and lag."""
