"""Records as the pages show them: read in bounded memory, decoded and masked."""
