"""QueueTopics, ShareGroups, Redrives and schedules."""
