"""Key ranges of partitions: slots, their load, and who owns them."""
